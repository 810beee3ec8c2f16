"""What operators ask of an engine and are told: policies, purges, entries, the tree, counters.

Their durations travel, instants do not, as everything in `engine.messages`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.wire import Message
from prefix_store import spans

SPANS_S = spans.SPANS_S  # the edges of every histogram of durations in here
EXTENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # those of the histogram of extents


class AskStats(Message, frozen=True, kw_only=True):
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


class SetPolicies(Message, frozen=True, kw_only=True):
    """All policies, replacing those before. Answered by `Changed` once every deadline obeys them.

    With `preview`, nothing changes and the answer says what would.
    """

    seq: int
    policies: tuple[PolicyTerms, ...]
    preview: bool = False


class Purge(Message, frozen=True, kw_only=True):
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


class ListEntries(Message, frozen=True, kw_only=True):
    """One page of the tree, in a stable order. Answered by `Entries`; it renews nothing."""

    seq: int
    offset: int = 0
    limit: int = 100
    tenant: str | None = None


class AskTree(Message, frozen=True, kw_only=True):
    """The nodes with most tokens in and below them. Answered by `Tree`; it renews nothing and holds up no step."""

    seq: int
    limit: int = 2000
    tenant: str | None = None


class AskRetention(Message, frozen=True, kw_only=True):
    """How old live tokens are and how long they still have. Answered by `RetentionView`, in the same way."""

    seq: int


class Histo(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram over `SPANS_S`, in blocks; the last count is of all that is longer."""

    counts: tuple[int, ...] = (0,) * (len(SPANS_S) + 1)
    sum: float = 0.0  # seconds of all blocks together


class EngineStats(Message, frozen=True, kw_only=True):
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
    compacted_blocks_total: int = 0  # copied next to each other
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


class Changed(Message, frozen=True, kw_only=True):
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


class Entries(Message, frozen=True, kw_only=True):
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


class Tree(Message, frozen=True, kw_only=True):
    """The largest nodes of the tree, largest subtree first, so that a parent comes before its children."""

    seq: int
    total: int  # nodes there are
    nodes: tuple[TreeNode, ...] = ()


class RetentionView(Message, frozen=True, kw_only=True):
    """Live tokens by class over `SPANS_S`: how old they are, and how long until their deadline."""

    seq: int
    ages: dict[str, tuple[int, ...]] = {}
    deadlines: dict[str, tuple[int, ...]] = {}
