"""What crosses the border between gateway and engine process: frozen msgspec structs, msgpack on the wire.

Token ids travel as one little-endian uint32 buffer, never as a list. Durations travel, instants do not:
the two processes never compare clocks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from prefix_store import spans

FinishReason = Literal["stop", "length", "cancelled"]
SPANS_S = spans.SPANS_S  # the edges of every histogram of durations in here
EXTENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # those of the histogram of extents


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Common shape: tagged by class name, so that one decoder reads the union."""


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


class Submit(_Message, frozen=True, kw_only=True):
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


class Abort(_Message, frozen=True, kw_only=True):
    """The client has left: stop at the next step. Unknown ids are ignored."""

    id: str


class AskStats(_Message, frozen=True, kw_only=True):
    """Ask for one `EngineStats`; it renews nothing."""


class PolicyTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of one policy the engine enforces. `model` and `tenant` None mean any; the most specific one governs."""

    name: str
    model: str | None = None
    tenant: str | None = None
    default_ttl_s: float | None = 300.0
    max_ttl_s: float = 86_400.0
    sliding: bool = True
    promise_budget: float = 0.5  # share of the pool's blocks that promises under this policy may hold
    pool_share: float = 1.0  # share of the pool beyond which a tenant's entries go first
    priority: int = 50


class SetPolicies(_Message, frozen=True, kw_only=True):
    """All policies, replacing those before. Answered by `Changed` once every deadline obeys them.

    With `preview`, nothing changes and the answer says what would.
    """

    seq: int
    policies: tuple[PolicyTerms, ...]
    preview: bool = False


class Purge(_Message, frozen=True, kw_only=True):
    """Forget entries that match every given filter. Answered by `Changed`; with `preview`, nothing is forgotten.

    `prefix` (a prompt as little-endian uint32, with the `partition` and `rendering` it was or would be sent with)
    selects everything that continues it, and the part of it that no other prompt shares.
    """

    seq: int
    tenant: str | None = None
    model: str | None = None
    klass: str | None = None
    older_than_s: float | None = None  # not used for this long
    prefix: bytes | None = None
    partition: str = ""
    rendering: str = ""
    preview: bool = False


class ListEntries(_Message, frozen=True, kw_only=True):
    """One page of the tree, in a stable order. Answered by `Entries`; it renews nothing."""

    seq: int
    offset: int = 0
    limit: int = 100
    tenant: str | None = None


class AskTree(_Message, frozen=True, kw_only=True):
    """The nodes with most tokens in and below them. Answered by `Tree`; it renews nothing and holds up no step."""

    seq: int
    limit: int = 2000
    tenant: str | None = None


class AskRetention(_Message, frozen=True, kw_only=True):
    """How old live tokens are and how long they still have. Answered by `RetentionView`, in the same way."""

    seq: int


EngineBound = Submit | Abort | AskStats | SetPolicies | Purge | ListEntries | AskTree | AskRetention


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
    dtype: str  # the model computes in
    kv_dtype: str  # keys and values are stored in: of engine.config.KV_DTYPES, never auto
    device: str

    @property
    def kv_space(self) -> str:
        """What tells caches apart: what K and V are stored in, and what they were computed in where that is another."""
        return self.kv_dtype if self.kv_dtype == self.dtype else f"{self.kv_dtype} of {self.dtype}"


class StartFailed(_Message, frozen=True, kw_only=True):
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


class Delta(_Message, frozen=True, kw_only=True):
    """New answer tokens of one request, in order.

    `prefilled` rides on the first delta of a request, `finished` on its last; both may be the same one.
    The stop token that ended an answer counts in `generated` and is not part of `tokens`.
    """

    id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each of `tokens` where asked for
    prefilled: Prefilled | None = None
    finished: Finished | None = None


class Refused(_Message, frozen=True, kw_only=True):
    """The request ended without an answer. `kind` is the error class's name in `engine.errors`."""

    id: str
    kind: str
    message: str
    field: str = ""
    retry_after_s: float = 0.0


class Histo(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram over `SPANS_S`, in blocks; the last count is of all that is longer."""

    counts: tuple[int, ...] = (0,) * (len(SPANS_S) + 1)
    sum: float = 0.0  # seconds of all blocks together


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
    coalesced_tokens_total: int = 0  # read, and computed by nobody when who read them came
    blocks_evicted_total: int = 0
    blocks_expired_total: int = 0
    steps_total: int = 0
    blocks_promised: int = 0  # of those cached or held
    tombstones: int = 0  # remembered entries that are gone
    tenant_blocks: dict[str, int] = {}  # blocks in the tree
    broken_promises: dict[str, int] = {}  # blocks, by "class|tenant"
    purged_total: int = 0  # blocks that a purge forgot, those in use included
    blocks_policy_changed_total: int = 0  # of the expired: their deadline was one that a lowered policy had moved
    finished_by: dict[str, int] = {}  # requests by how their answer ended: stop, length, cancelled
    entries_by: dict[str, int] = {}  # entries in the tree, by "class|promised" or "class|held"
    tokens_by: dict[str, int] = {}  # their tokens
    lifetime: Histo = Histo()  # from a block's writing to its going
    idle_before_evict: Histo = Histo()  # from a block's last use to when pressure took it
    reuse_gap: Histo = Histo()  # from the use before to a read; 0 while another request uses it
    age_at_read: Histo = Histo()  # from a block's writing to a read
    extents: tuple[int, ...] = (0,) * (len(EXTENTS) + 1)  # sequences by the stretches that their K/V lay in at the end
    extents_total: int = 0  # of all of them together


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one tenant, counted."""

    entries: int = 0
    tokens: int = 0
    bytes: int = 0


class Changed(_Message, frozen=True, kw_only=True):
    """What a `SetPolicies` or `Purge` did or, as a preview, would do: by tenant."""

    seq: int
    gone: dict[str, Tally] = {}  # expires or is forgotten now
    kept: dict[str, Tally] = {}  # stays
    leased_tokens: int = 0  # of `gone`, still in use: their memory follows when their requests end


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: a path of the tree with a deadline. Never text, never token ids."""

    id: str  # the chain's hash at its end, keyed by nothing a client knows: hex
    tenant: str
    model: str
    tokens: int  # from the root to its end
    own_tokens: int  # of these, in its own run
    klass: str
    kept: Literal["promised", "held"]
    left_s: float  # until its deadline; negative while a lease outlives it
    age_s: float
    idle_s: float  # since its last use
    reads: int
    leases: int


class Entries(_Message, frozen=True, kw_only=True):
    """One page of entries."""

    seq: int
    total: int
    entries: tuple[EntryView, ...] = ()


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the tree, as `EntryView` shows it, and where it lies."""

    id: str
    parent: str | None  # its id; None at the beginning of a prompt
    start: int  # tokens before it
    tokens: int  # its own
    subtree_tokens: int  # its own and of all that continues it
    tenant: str
    model: str
    klass: str
    kept: Literal["promised", "held"]
    left_s: float
    idle_s: float
    age_s: float
    reads: int
    leases: int


class Tree(_Message, frozen=True, kw_only=True):
    """The largest nodes of the tree, largest subtree first, so that a parent comes before its children."""

    seq: int
    total: int  # nodes there are
    nodes: tuple[TreeNode, ...] = ()


class RetentionView(_Message, frozen=True, kw_only=True):
    """Live tokens by class over `SPANS_S`: how old they are, and how long until their deadline."""

    seq: int
    ages: dict[str, tuple[int, ...]] = {}
    deadlines: dict[str, tuple[int, ...]] = {}


GatewayBound = ModelCard | StartFailed | Delta | Refused | EngineStats | Changed | Entries | Tree | RetentionView

encode = msgspec.msgpack.Encoder().encode
decode_engine_bound = msgspec.msgpack.Decoder(EngineBound).decode
decode_gateway_bound = msgspec.msgpack.Decoder(GatewayBound).decode
