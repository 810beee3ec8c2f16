"""What crosses the border between gateway and engine process: frozen msgspec structs, msgpack on the wire.

Token ids travel as one little-endian uint32 buffer, never as a list. Durations travel, instants do not:
the two processes never compare clocks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.operator_messages import (
    AskRetention,
    AskStats,
    AskTree,
    Changed,
    EngineStats,
    Entries,
    ListEntries,
    Purge,
    RetentionView,
    SetPolicies,
    Tree,
)
from engine.wire import Message

FinishReason = Literal["stop", "length", "cancelled"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 keeps all; `seed` None draws one.

    Penalties act on logits before temperature. Presence and frequency count the answer's own tokens, as OpenAI does;
    the repetition penalty (Keskar et al., CTRL, 2019) also those of the prompt, read from the cache or not.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0  # tokens less likely than this share of the likeliest are left out
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}  # added to logits, by token id
    min_tokens: int = 0  # of the answer, before which no stop id is drawn
    logprobs: int | None = None  # alternatives to tell beside each token's own log-probability; None tells nothing


# ---- gateway → engine ----


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One granted mark: promise the whole blocks of the first `tokens` tokens for `ttl_s`, if the budget has room."""

    tokens: int
    ttl_s: float
    klass: str


class Keep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request's blocks are kept: what the gateway resolved from the client's marks and the operator's policy."""

    policy: str = "default"  # the governing policy's name; the promise budget is counted by it
    marks: tuple[Order, ...] = ()  # shortest first
    held_ttl_s: float | None = 300.0  # what no mark covers, generated tokens included; None: not kept
    held_klass: str = "5m"
    sliding: bool = True
    priority: int = 50
    min_tokens: int = 0  # a shorter prompt neither reads nor writes
    cache: bool = True  # False: the client asked for no caching; neither reads nor writes
    write_all: bool = True  # the whole retained prompt counts as written; False: only what marks cover


class Submit(Message, frozen=True, kw_only=True):
    """One request. `tokens` is the prompt as little-endian uint32; `stop_ids` end the answer unseen.

    `tenant`, `partition` and `rendering` (tokenizer and template) separate caches: equal tokens under
    different values never share a block. With `max_tokens` 0 the prompt is processed and nothing is answered.
    `grammar` (an llguidance grammar, empty for none) confines the answer. `prompt_logprobs` asks for the
    log-probability of every prompt token with so many alternatives, so nothing is read from the cache.
    """

    id: str
    tokens: bytes
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    tenant: str = "default"
    partition: str = ""
    rendering: str = ""
    keep: Keep = Keep()
    grammar: str = ""
    prompt_logprobs: int | None = None


class Abort(Message, frozen=True, kw_only=True):
    """The client has left: stop at the next step. Unknown ids are ignored."""

    id: str


EngineBound = Submit | Abort | AskStats | SetPolicies | Purge | ListEntries | AskTree | AskRetention


# ---- engine → gateway ----


class ModelCard(Message, frozen=True, kw_only=True):
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
    dtype: str  # the model computes in
    kv_dtype: str  # keys and values are stored in: of engine.config.KV_DTYPES, never auto
    device: str
    deterministic: bool = False  # greedy answers are the same to the bit in any batch

    @property
    def kv_space(self) -> str:
        """What tells caches apart: what K and V are stored in, and what they were computed in where that is another."""
        return self.kv_dtype if self.kv_dtype == self.dtype else f"{self.kv_dtype} of {self.dtype}"


class StartFailed(Message, frozen=True, kw_only=True):
    """The engine cannot serve this model; the process ends after sending it."""

    reason: str


class KeptMark(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one `Order`, in the orders' order."""

    tokens: int
    kept: Literal["promised", "held", "none"]
    left_s: float  # until its deadline, from the moment this is sent; 0 for "none"
    reason: Literal["", "budget", "below_minimum"] = ""


Fate = Literal[
    "never_written",
    "below_minimum",
    "no_cache",
    "expired",
    "evicted",
    "broken_promise",
    "purged",
    "policy_changed",
]


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A run of prompt tokens that were not read, and what had become of them `ago_s` seconds before admission."""

    fate: Fate
    tokens: int
    ago_s: float | None = None  # None where nothing happened (never written, no cache)


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was under the model itself: natural logarithms, before penalties, temperature and grammar."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens, likeliest first
    rank: int = 0  # among all tokens, 1 for the likeliest


class Prefilled(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that stand once the prompt is processed. `read + write + uncached == prompt`."""

    prompt: int
    read: int
    write: int
    queue_s: float
    prefill_s: float
    marks: tuple[KeptMark, ...] = ()
    missed: tuple[Missed, ...] = ()  # their tokens sum to prompt − read
    logprobs: tuple[TokenLogprob | None, ...] = ()  # of the prompt's tokens where asked for; None for the first

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


class Delta(Message, frozen=True, kw_only=True):
    """New answer tokens of one request, in order.

    `prefilled` rides on the first delta of a request, `finished` on its last; both may be the same one.
    The stop token that ended an answer counts in `generated` and is not part of `tokens`.
    """

    id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each of `tokens` where asked for
    prefilled: Prefilled | None = None
    finished: Finished | None = None


class Refused(Message, frozen=True, kw_only=True):
    """The request ended without an answer. `kind` is the error class's name in `engine.errors`."""

    id: str
    kind: str
    message: str
    field: str = ""
    retry_after_s: float = 0.0


GatewayBound = ModelCard | StartFailed | Delta | Refused | EngineStats | Changed | Entries | Tree | RetentionView

encode = msgspec.msgpack.Encoder().encode
decode_engine_bound = msgspec.msgpack.Decoder(EngineBound).decode
decode_gateway_bound = msgspec.msgpack.Decoder(GatewayBound).decode
