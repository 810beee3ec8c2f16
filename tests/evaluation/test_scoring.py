"""What answers come to, what chance gives, what was kept of the first dtype, and how it is told."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from engine.messages import TokenLogprob
from gateway.evaluation import report
from gateway.evaluation.asking import NoNumbers, numbers
from gateway.evaluation.picture import FULL, NONE, shade, svg
from gateway.evaluation.scoring import Answered, Measured, Read, against, at_chance, by_place, failed, perplexity, told

SVG = "{http://www.w3.org/2000/svg}"


def answer(length: int, depth: float, share: float, *, found: bool = True, chosen: bool = True) -> Answered:
    """One right answer of two tokens, each as likely as that."""
    return Answered(length=length, depth=depth, logprobs=(math.log(share),) * 2, found=found, chosen=chosen)


FIRST = Measured(
    dtype="auto",
    stored="float32",
    kv_bytes_per_token=400,
    answers=(
        *(answer(length, depth, 0.8) for length in (512, 1024) for depth in (0.0, 1.0) for _ in range(2)),
        *(answer(length, 0.5, 0.8, found=False) for length in (512, 1024)),
    ),
    text=(Read(nats=8.0, likeliest=(1, 2, 3)), Read(nats=2.0, likeliest=(4, 5))),
    prompt_tokens=1000,
    read_tokens=900,
    seconds=2.0,
)
WORSE = replace(
    FIRST,
    dtype="int8",
    stored="int8",
    kv_bytes_per_token=100,
    answers=(answer(512, 0.0, 0.2, found=False, chosen=False), *FIRST.answers[1:]),
    text=(Read(nats=9.0, likeliest=(1, 2, 9)), Read(nats=2.0, likeliest=(4, 5))),
)
LACKED = Measured(dtype="fp8", refused="This device has no fp8.")


def document(*rows: Measured, fail_under: float | None = None) -> dict[str, Any]:
    """What the command would tell."""
    first = next(row for row in rows if row.refused is None)
    dtypes = [told(row, None if row is first else first, 10) for row in rows]
    return {
        "model": "tiny",
        "chat_template": True,
        "lengths": [512, 1024],
        "depths": [0.0, 0.5, 1.0],
        "facts_at_each": 2,
        "candidates": 10,
        "text": {"name": "a text", "tokens": 6, "window": 4, "told": 5},
        "dtypes": dtypes,
        "fail_under": fail_under,
        "failed": failed(dtypes, fail_under),
    }


def test_answers_are_summed_up_by_place():
    """Each length and depth has its shares, and the geometric mean over all tokens there."""
    cells = by_place([answer(512, 1.0, 0.9), answer(512, 0.0, 0.4, found=False), answer(512, 0.0, 0.1, chosen=False)])
    assert [(cell["length"], cell["depth"], cell["facts"], cell["found"], cell["chosen"]) for cell in cells] == [
        (512, 0.0, 2, 0.5, 0.5),
        (512, 1.0, 1, 1.0, 1.0),
    ]
    assert [cell["probability"] for cell in cells] == [pytest.approx(0.2), pytest.approx(0.9)]


def test_chance_is_what_guessing_reaches():
    """Of ten candidates, 3 of 10 right are luck in 7 % of all tries and 4 of 10 in 1 %."""
    assert at_chance(0, 10, 10) and at_chance(3, 10, 10)
    assert not at_chance(4, 10, 10)
    assert not at_chance(2, 2, 10)
    assert at_chance(1, 1, 10)


def test_perplexity_is_over_all_tokens_together():
    """It is e to the nats a token, absent for a text without any, and a number for the worst of models."""
    assert perplexity(FIRST.text) == pytest.approx(math.exp(10 / 5))
    assert perplexity((Read(nats=0.0, likeliest=()),)) is None
    assert math.isfinite(perplexity((Read(nats=1e9, likeliest=(1,)),)))


def test_a_dtype_is_told_against_the_first():
    """Ratios below 1 are losses, `kept` is the least of them, and the place that lost most is named."""
    row = against(WORSE, FIRST, 10)
    assert row["chosen"] == pytest.approx(0.9)
    assert row["probability"] == pytest.approx(0.25 ** (1 / 10))
    assert row["perplexity"] == pytest.approx(math.exp(-1 / 5))
    assert row["same_likeliest"] == 4 / 5
    assert row["kept"] == row["perplexity"]
    assert row["worst"] == {
        "length": 512,
        "depth": 0.0,
        "probability": pytest.approx(0.4),
        "first": pytest.approx(0.8),
    }


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_what_is_no_number_is_no_score(broken):
    """A model whose log-probabilities are not numbers is an error that a row tells, never NaN in a table."""
    with pytest.raises(NoNumbers, match="not numbers"):
        numbers([TokenLogprob(1, -0.5), TokenLogprob(2, broken)])


def test_nothing_is_concluded_from_a_first_at_chance():
    """Where the first dtype retrieves nothing, another's share of it is absent, not a number."""
    guesses = tuple(replace(one, chosen=at == 0) for at, one in enumerate(FIRST.answers))
    row = against(FIRST, replace(FIRST, answers=guesses), 10)
    assert (row["chosen"], row["kept"]) == (None, 1.0)
    assert told(replace(FIRST, answers=guesses), None, 10)["at_chance"]
    assert not told(FIRST, None, 10)["at_chance"]


def test_what_kept_less_than_asked_for_is_named():
    """Only dtypes that were measured and compared can fail; with no threshold none does."""
    rows = document(FIRST, WORSE, LACKED)["dtypes"]
    assert failed(rows, None) == []
    assert failed(rows, 0.8) == []
    assert failed(rows, 0.95) == ["int8"]


def test_the_document_is_json_without_what_is_not_known():
    """A dtype that was not measured has its reason and no numbers; nothing is NaN."""
    fp8 = msgspec.json.decode(msgspec.json.encode(document(FIRST, WORSE, LACKED)))["dtypes"][2]
    assert fp8 == {
        "kv_cache_dtype": "fp8",
        "stored": None,
        "refused": "This device has no fp8.",
        "kv_bytes_per_token": None,
    }


def shown(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> str:
    """What a person reads."""
    page = io.StringIO()
    monkeypatch.setattr(report, "page", lambda width: Console(file=page, width=width, highlight=False))
    report.show(told, as_json=False)
    return page.getvalue()


def test_the_tables_say_what_each_dtype_lost(monkeypatch):
    """Differences stand beside each number, a dtype that is lacking has a row, and the threshold is answered."""
    page = shown(monkeypatch, document(FIRST, WORSE, LACKED, fail_under=0.95))
    int8 = next(line for line in page.splitlines() if "int8" in line)
    assert [part.strip() for part in int8.split("│")][1:-1] == [
        "int8",
        "int8",
        "100",
        "90.0% (-10.0%)",
        "70.0%",
        "69.6% (-12.9%)",
        "9.025 (+22.14%)",
        "80.0%",
        "0.819",
        "2.0",
    ]
    assert "fp8: not measured. This device has no fp8." in page
    assert "int8: lost most at 512 tokens, 0% deep: 80.0% to 40.0%" in page
    assert "900 of 1,000 prompt tokens were read from the cache (90.0%)" in page
    assert "Below --fail-under 0.95: int8" in page


def test_a_model_that_retrieves_nothing_is_said_to(monkeypatch):
    """One right of ten, which guessing gives, is called that."""
    guesses = tuple(replace(one, chosen=at == 0) for at, one in enumerate(FIRST.answers))
    page = shown(monkeypatch, document(replace(FIRST, answers=guesses)))
    assert "auto: 1 of 10 facts chosen is what guessing gives (10 ÷ 10 = 1): the model retrieves nothing here" in page


def test_the_picture_has_a_cell_for_each_place_of_each_dtype():
    """Cells stand in order, shaded and labelled by likelihood; what was not measured is said; one legend serves all."""
    drawn = ET.fromstring(svg(document(FIRST, WORSE, LACKED)))
    maps = drawn.findall(f"{SVG}g")
    cells = [one.findall(f"{SVG}g[@class='cell']") for one in maps]
    assert [len(one) for one in cells] == [6, 6, 0]
    first = cells[1][0]
    assert first.find(f"{SVG}title").text == "512 tokens, 0% deep: 40.0%"
    assert first.find(f"{SVG}rect").get("fill") == shade(0.4)
    assert first.find(f"{SVG}text").text == "40.0"
    places = [(cell.find(f"{SVG}rect").get("x"), cell.find(f"{SVG}rect").get("y")) for cell in cells[0]]
    assert places == [(x, y) for x in ("48", "94") for y in ("44", "68", "92")]
    assert "Not measured: This" in "".join(maps[2].itertext())
    assert "".join(drawn.itertext()).count("a right answer's token; down") == 1


def test_shades_go_from_none_to_full():
    """A share of 0 is the lightest colour, 1 the darkest."""
    assert shade(0.0) == "#" + bytes(NONE).hex()
    assert shade(1.0) == "#" + bytes(FULL).hex()
