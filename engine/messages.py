"""What crosses the border between gateway and engine process: frozen msgspec structs, msgpack on the wire.

Token ids travel as one little-endian uint32 buffer, never as a list. Durations travel, instants do not:
the two processes never compare clocks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "cancelled"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Common shape: tagged by class name, so that one decoder reads the union."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 keeps all; `seed` None draws one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


# ---- gateway → engine ----


class Submit(_Message, frozen=True, kw_only=True):
    """One request. `tokens` is the prompt as little-endian uint32; `stop_ids` end the answer unseen.

    `tenant`, `partition` and `rendering` (tokenizer and template) separate caches: equal tokens under
    different values never share a block.
    """

    id: str
    tokens: bytes
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    tenant: str = "default"
    partition: str = ""
    rendering: str = ""


class Abort(_Message, frozen=True, kw_only=True):
    """The client has left: stop at the next step. Unknown ids are ignored."""

    id: str


class AskStats(_Message, frozen=True, kw_only=True):
    """Ask for one `EngineStats`; it renews nothing."""


EngineBound = Submit | Abort | AskStats


# ---- engine → gateway ----


class ModelCard(_Message, frozen=True, kw_only=True):
    """Sent once when the engine is ready: what it serves and how much it can hold."""

    name: str
    weights: str  # content digest of the weight files
    max_model_len: int  # tokens, prompt and answer together
    vocab_size: int
    eos_ids: tuple[int, ...]
    block_tokens: int
    blocks: int
    kv_bytes: int  # of the whole pool
    kv_bytes_per_token: int
    dtype: str
    device: str


class StartFailed(_Message, frozen=True, kw_only=True):
    """The engine cannot serve this model; the process ends after sending it."""

    reason: str


class Prefilled(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that stand once the prompt is processed. `read + write + uncached == prompt`."""

    prompt: int
    read: int
    write: int
    queue_s: float
    prefill_s: float

    @property
    def uncached(self) -> int:
        """Prompt tokens that were computed and that nobody asked to keep."""
        return self.prompt - self.read - self.write


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that stand once the answer is over. `projected`: K/V projections really done, recomputing included."""

    reason: FinishReason
    generated: int
    projected: int
    decode_s: float


class Delta(_Message, frozen=True, kw_only=True):
    """New answer tokens of one request, in order.

    `prefilled` rides on the first delta of a request, `finished` on its last; both may be the same one.
    The stop token that ended an answer counts in `generated` and is not part of `tokens`.
    """

    id: str
    tokens: tuple[int, ...] = ()
    prefilled: Prefilled | None = None
    finished: Finished | None = None


class Refused(_Message, frozen=True, kw_only=True):
    """The request ended without an answer. `kind` is the error class's name in `engine.errors`."""

    id: str
    kind: str
    message: str
    field: str = ""
    retry_after_s: float = 0.0


class EngineStats(_Message, frozen=True, kw_only=True):
    """A snapshot of pool, tree and queue. Counters only grow while the process lives."""

    waiting: int = 0
    running: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0  # hold a reusable prefix that nobody uses now
    blocks_held: int = 0  # in use by some sequence
    nodes: int = 0
    prompt_tokens_total: int = 0
    read_tokens_total: int = 0
    write_tokens_total: int = 0
    generated_tokens_total: int = 0
    projected_tokens_total: int = 0
    requests_finished_total: int = 0
    requests_cancelled_total: int = 0
    requests_failed_total: int = 0
    preemptions_total: int = 0
    blocks_evicted_total: int = 0
    blocks_expired_total: int = 0
    steps_total: int = 0


GatewayBound = ModelCard | StartFailed | Delta | Refused | EngineStats

encode = msgspec.msgpack.Encoder().encode
decode_engine_bound = msgspec.msgpack.Decoder(EngineBound).decode
decode_gateway_bound = msgspec.msgpack.Decoder(GatewayBound).decode
