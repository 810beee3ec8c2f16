"""The picture of cost: every point is measured, and page and pictures say what the result says."""

from __future__ import annotations

from dataclasses import asdict
from xml.etree import ElementTree as ET

import msgspec
import pytest

from benchmarks import cost, performance
from benchmarks.drawing import APART, Chart, Line, even, factors, svg
from benchmarks.environment import take_card
from benchmarks.measure import Result
from benchmarks.report import RESULTS, number, write
from tests.tiny_model import save_tiny_model

PLAN = cost.Plan(
    cached=(32, 64), sequences=(1, 3), shared=64, own=32, scattered=130, colds=1, rounds=2, decodes=2
)  # blocks of 16: the scattered prefix needs nine
ALONG = {
    **dict.fromkeys((cost.WARM, cost.WARM_FLOOR, cost.COLD, cost.COLD_FLOOR), (32, 64)),
    **dict.fromkeys((cost.CONTEXT, cost.CONTEXT_FLOOR), (32, 64)),
    **dict.fromkeys((cost.SHARED, cost.OWN, cost.BATCH_FLOOR), (1, 3)),
    **dict.fromkeys((cost.DECODE, cost.SUFFIX, cost.COPY), (1, 2, 4, 8, 9)),
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[str]]:
    """What a tiny model costs, and what was told on the way."""
    told: list[str] = []
    return cost.measure(save_tiny_model(tmp_path_factory.mktemp("tiny")), "tiny", PLAN, told.append), told


def words(picture: str) -> set[str]:
    """Everything written in a picture; raises where it is not XML."""
    return {each.text or "" for each in ET.fromstring(picture).iter(f"{SVG}text")}


def test_every_point_of_every_curve_is_measured(measured: tuple[Result, list[str]]) -> None:
    """Each curve has each of its places once, as often as was planned; a batch's floor is measured beside both."""
    result, _ = measured
    places: dict[str, list[int]] = {}
    for each in result.series:
        places.setdefault(each.curve, []).append(each.at)
        expected = 1 if each.curve in {cost.COLD, cost.COLD_FLOOR} else 4 if each.curve == cost.BATCH_FLOOR else 2
        assert len(each.values) == expected, each.name
        assert min(each.values) > 0, each.name
    assert {curve: tuple(at) for curve, at in places.items()} == ALONG


def test_the_bar_advances_as_often_as_it_was_told(measured: tuple[Result, list[str]]) -> None:
    """`steps` counts the model's arrival, which `run` tells, and everything that `measure` tells."""
    assert cost.steps(PLAN) == 1 + len(measured[1])


def test_the_floor_is_every_linear_layer_once(tmp_path) -> None:
    """Two layers of seven projections each go in, and the output layer only for rows whose logits are wanted."""
    from torch import nn

    from benchmarks.timed import Floor
    from engine.loading import load

    module = load(save_tiny_model(tmp_path)).module
    seen: list[tuple[int, ...]] = []
    for each in module.modules():
        if isinstance(each, nn.Linear):
            each.register_forward_hook(lambda _layer, given, _out: seen.append(tuple(given[0].shape)))
    Floor(module).ms(5, wanted=0)
    assert [rows for rows, _ in seen] == [5] * 14
    seen.clear()
    Floor(module).ms(5, wanted=1)
    assert [rows for rows, _ in seen] == [5] * 14 + [1]


@pytest.mark.parametrize("extents", [1, 2, 7, 64, 209])
def test_a_scattered_prefix_lies_in_exactly_so_many_extents(extents: int) -> None:
    """Every block stands once, inside twice the room, and the table counts the extents that were asked for."""
    from benchmarks.extents import scatter
    from engine.block_table import BlockTable

    blocks = scatter(209, extents)
    table = BlockTable(16, blocks)
    table.check()
    assert (len(blocks), table.pieces) == (209, extents)
    assert max(blocks) < 2 * 209


def test_a_copy_pays_after_as_many_steps_as_bring_back_its_time() -> None:
    """Its time over what a step saves; where a step saves nothing it never does."""
    copy = {1: 60.0, 2: 60.0, 4: 60.0, 8: 90.0}
    assert cost.break_even(copy, {1: 10.0, 2: 10.0, 4: 14.0, 8: 40.0}) == {2: None, 4: 15.0, 8: 3.0}


def test_a_copy_pays_from_where_it_always_does() -> None:
    """One lucky layout among those that do not pay decides nothing."""
    paid = {2: 5.0, 4: None, 8: 15.0, 16: 3.0}
    assert (cost.pays_from(paid, 20), cost.pays_from(paid, 14), cost.pays_from(paid, 2)) == (8, 16, None)


def test_ticks_hold_what_was_measured() -> None:
    """Even ones begin at nothing; factors begin below the least and end above the most."""
    assert even(93) == [0, 20, 40, 60, 80, 100]
    assert factors(40, 1500) == [20, 50, 100, 200, 500, 1000, 2000]


def test_a_picture_names_its_lines_its_units_and_its_places() -> None:
    """It is XML; names and axes are written out, a floor is dashed, and names of lines that meet lie apart."""
    lines = [Line("fast & near", [(1, 10), (2, 20)]), Line("floor", [(1, 10), (2, 20)], floor=True)]
    picture = svg(Chart(title="Cost", x="sequences", y="ms", lines=lines, doubling=True))
    assert words(picture) == {"Cost", "sequences", "ms", "fast & near", "floor", "1", "2", "0", "5", "10", "15", "20"}
    drawn = [each.get("class") for each in ET.fromstring(picture).iter(f"{SVG}polyline")]
    assert drawn == ["line c0", "line c1 floor"]
    named = [each for each in ET.fromstring(picture).iter(f"{SVG}text") if each.get("class") in {"n0", "n1"}]
    first, second = sorted(float(each.get("y", "")) for each in named)
    assert second - first == APART


def test_page_and_pictures_are_made_of_what_was_measured(measured: tuple[Result, list[str]], tmp_path) -> None:
    """Every curve is named in a picture, and every median that the result has stands in the page."""
    result, _ = measured
    write(take_card(), 0.0, result, tmp_path)
    performance.write(tmp_path, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    pictures = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert set(ALONG) <= set().union(*(words(picture) for picture in pictures.values()))
    assert all(f"]({name})" in page for name in pictures)
    assert [each.name for each in result.series if f"| {number(each.median)} |" not in page] == []


@pytest.mark.parametrize(("load", "said"), [(0.3, False), (7.5, True)])
def test_a_busy_machine_is_said_at_the_top(measured: tuple[Result, list[str]], load: float, said: bool) -> None:
    """Above a load of 0.3 the page opens with a warning."""
    document = measured[0].document() | {"environment": asdict(take_card()) | {"load": load, "load_after": 0.0}}
    told = performance.page(document)
    assert (f"**The machine was busy (load {load:g} before it began)" in told) is said


def test_the_page_says_what_the_kept_result_says() -> None:
    """docs/performance.md and its pictures are those that benchmarks/results/cost.json makes."""
    document = msgspec.json.decode((RESULTS / "cost.json").read_bytes())
    assert (performance.DOCS / "performance.md").read_text() == performance.page(document)
    for name, picture in performance.pictures(document).items():
        assert (performance.DOCS / name).read_text() == picture, name
