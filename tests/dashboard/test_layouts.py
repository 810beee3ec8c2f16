"""Where things lie: nodes of the tree as an icicle, a request's time and its prompt as a strip."""

from __future__ import annotations

import pytest

from tests.dashboard.conftest import Lay
from tests.dashboard.made_up import REQUEST, Json

pytestmark = pytest.mark.asyncio(loop_scope="session")


def node(name: str, parent: str | None, own: int, subtree: int, *, tenant: str = "acme", age: float = 1) -> Json:
    """Shape one node of the tree."""
    times = {"left_s": 100.0, "idle_s": 5.0, "age_s": age}
    words = {"tenant": tenant, "model": "tiny", "class": "5m", "kept": "held"}
    counts = {"start": 0, "tokens": own, "subtree_tokens": subtree, "reads": 0, "leases": 0}
    return {"id": name, "parent": parent, **words, **counts, **times}


TREE = [
    node("a", None, 40, 100),
    node("b", "a", 20, 20, age=1),
    node("c", "a", 30, 40, age=9),
    node("d", "c", 10, 10),
    node("e", None, 100, 100, tenant="globex"),
]
BOXES = (
    "icicle.layout(icicle.build(given).root, {width: 200, rows: 9, rowHeight: 10})"
    ".map(({item, x, y, width}) => [item.id, x, y, width])"
)


async def test_a_node_is_as_wide_as_all_that_continues_it(lay: Lay) -> None:
    """Widths are tokens, children lie below their parent, oldest first, and what is a node's own stays free."""
    assert await lay(BOXES, TREE) == [
        ["all", 0, 0, 200],
        ["tenant acme", 0, 10, 100],
        ["a", 0, 20, 100],
        ["c", 0, 30, 40],
        ["d", 0, 40, 10],
        ["b", 40, 30, 20],
        ["tenant globex", 100, 10, 100],
        ["e", 100, 20, 100],
    ]


async def test_an_empty_tree_lays_out_one_bar(lay: Lay) -> None:
    """Nothing kept is one bar for all, not a division by zero."""
    assert await lay(BOXES, []) == [["all", 0, 0, 200]]


async def test_children_of_what_was_left_out_hang_below_their_tenant(lay: Lay) -> None:
    """A node whose parent is not among those that were sent is shown all the same."""
    orphan = [node("x", "gone", 8, 8)]
    assert await lay("icicle.path(icicle.build(given).byId.get('x')).map(({id}) => id)", orphan) == [
        "all",
        "tenant acme",
        "x",
    ]


async def test_what_is_too_narrow_or_too_deep_is_left_out(lay: Lay) -> None:
    """Nothing narrower than asked, nor below the last row, is drawn."""
    drawn = (
        "icicle.layout(icicle.build(given).root, {width: 200, rows: 4, rowHeight: 10, least: 30}).map(b => b.item.id)"
    )
    assert await lay(drawn, TREE) == ["all", "tenant acme", "a", "c", "tenant globex", "e"]


@pytest.mark.parametrize(
    ("start", "way", "end"),
    [
        ("all", "down", "tenant acme"),
        ("a", "down", "c"),
        ("c", "right", "b"),
        ("b", "left", "c"),
        ("a", "right", "e"),
        ("d", "up", "c"),
        ("d", "down", "d"),
        ("b", "right", "b"),
        ("all", "up", "all"),
        ("d", "first", "all"),
        ("a", "last", "e"),
    ],
)
async def test_arrow_keys_move_to_what_is_drawn_there(lay: Lay, start: str, way: str, end: str) -> None:
    """Down goes to the first child, up to the parent, left and right along the row; at an end nothing moves."""
    expression = (
        "(() => { const {root, byId} = icicle.build(given.tree);"
        " const laid = icicle.layout(root, {width: 200, rows: 9, rowHeight: 10});"
        " return icicle.step(laid, byId.get(given.start), given.way).id; })()"
    )
    assert await lay(expression, {"tree": TREE, "start": start, "way": way}) == end


@pytest.mark.parametrize(
    ("x", "y", "found"), [(5, 45, "d"), (70, 35, None), (150, 25, "e"), (0, 0, "all"), (-1, 0, None)]
)
async def test_pointing_finds_what_is_drawn_there(lay: Lay, x: int, y: int, found: str | None) -> None:
    """A point is in one bar or in none."""
    laid = "icicle.layout(icicle.build(given.tree).root, {width: 200, rows: 9, rowHeight: 10})"
    expression = f"icicle.at({laid}, given.x, given.y)?.id ?? null"
    assert await lay(expression, {"tree": TREE, "x": x, "y": y}) == found


async def test_shades_have_steps(lay: Lay) -> None:
    """A node has the first step whose edge it does not exceed, one past its deadline the first, a tenant's bar none."""
    nodes = [[{"idle_s": 10}, "idle"], [{"idle_s": 10.1}, "idle"], [{"left_s": 1e9}, "left"], [{"left_s": -3}, "left"]]
    told = await lay("given.map(([node, scale]) => icicle.shade(node, scale))", [*nodes, [None, "left"]])
    assert told == [0, 1, 4, 0, None]


async def test_phases_fill_the_time_from_queue_to_stop(lay: Lay) -> None:
    """Each phase begins where the last ended; what none explains stands before the first token and at the end."""
    told = await lay("request_layout.timeline(given)", REQUEST)
    assert [(part["name"], part["left"], part["width"]) for part in told["parts"]] == [
        ("queue", 0, 0.1),
        ("prefill", 0.1, 0.2),
        ("elsewhere", 0.3, 0.05),
        ("decode", 0.35, 0.4),
        ("elsewhere", 0.75, 0.25),
    ]
    assert (told["total"], told["first"], told["unknown"]) == (10, 0.35, [])


async def test_phases_that_are_not_known_have_no_part(lay: Lay) -> None:
    """A request that was refused has no phases, and what is unknown is named, not drawn as zero."""
    unknown = {"queue_s": None, "prefill_s": None, "decode_s": None, "first_token_s": None, "seconds": 0}
    told = await lay("request_layout.timeline(given)", REQUEST | unknown)
    assert told == {"total": 0, "parts": [], "first": None, "unknown": ["queue", "prefill", "decode"]}


async def test_phases_longer_than_the_whole_stretch_it(lay: Lay) -> None:
    """Where clocks differ and the parts sum to more than the whole, they still fill it exactly."""
    told = await lay("request_layout.timeline(given)", REQUEST | {"seconds": 5.0})
    assert (told["total"], sum(part["width"] for part in told["parts"])) == (7, 1)


async def test_a_strip_keeps_the_prompt_in_order(lay: Lay) -> None:
    """Parts lie one behind the other, marks at the end of what they cover, a break where the prompts part."""
    told = await lay("request_layout.strip(given)", REQUEST)
    assert [(part["kind"], part["start"], part["left"], part["width"]) for part in told["parts"]] == [
        ("read", 0, 0, 0.6),
        ("write", 60, 0.6, 0.3),
        ("uncached", 90, 0.9, 0.1),
    ]
    assert (told["tokens"], told["marks"][0]["left"], told["breaks"][0]["left"]) == (100, 0.9, 0.6)


async def test_a_strip_of_nothing_is_empty(lay: Lay) -> None:
    """A request without a prompt has neither parts nor a place beyond the end."""
    nothing: Json = {"strip": [], "marks": [], "misses": []}
    assert await lay("request_layout.strip(given)", REQUEST | nothing) == {
        "tokens": 0,
        "parts": [],
        "marks": [],
        "breaks": [],
    }


async def test_a_divergence_is_told_with_its_place(lay: Lay) -> None:
    """Message, token, character and what the text there looks like."""
    assert await lay("request_layout.divergence(given)", REQUEST) == (
        "Parts from the earlier request in system, token 60, character 9, where the text looks like a time"
    )


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ({}, True),
        ({"tenant": "acme", "outcome": "finished"}, True),
        ({"tenant": "globex"}, False),
        ({"reason": "system"}, True),
        ({"reason": "expired"}, False),
        ({"min": "100"}, True),
        ({"min": "101"}, False),
        ({"min": "many"}, True),
        ({"model": "other"}, False),
    ],
)
async def test_filters_narrow_what_comes_live(lay: Lay, wanted: Json, shown: bool) -> None:
    """A live request is shown when every filter that is set fits it; a least length that is no number is none."""
    given = {"request": REQUEST, "wanted": wanted}
    assert await lay("request_layout.accepts(given.request, given.wanted)", given) is shown


async def test_live_requests_come_first_and_once(lay: Lay) -> None:
    """What came live is put before what is shown, newest first, without doubles."""
    given = {"new": [{"id": "b", "at": 2}, {"id": "c", "at": 3}], "old": [{"id": "b", "at": 2}, {"id": "a", "at": 1}]}
    assert await lay("request_layout.merged(given.new, given.old).map(({id}) => id)", given) == ["c", "b", "a"]
