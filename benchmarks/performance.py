"""docs/performance.md and its pictures, from what `cost` found: `make bench` makes them, so they say what it says.

`python -m benchmarks.performance` makes them again without measuring. Rule: every number comes from the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import cost
from benchmarks.drawing import Chart, Line, svg
from benchmarks.environment import Card
from benchmarks.report import RESULTS, card_rows, grid, number

DOCS = Path(__file__).parent.parent / "docs"
QUIET = 0.3  # processes that want to run beside the benchmark
ANSWERS = (20, 100, 500)  # tokens of answers that a copy could pay within

Curves = Mapping[str, Mapping[int, float]]  # medians in ms: by curve, along it


def write(results: Path = RESULTS, docs: Path = DOCS) -> None:
    """Make the page and its pictures from `cost.json`."""
    document = msgspec.json.decode((results / f"{cost.NAME}.json").read_bytes())
    for name, picture in pictures(document).items():
        (docs / name).write_text(picture)
    (docs / "performance.md").write_text(page(document))


def curves(document: Mapping[str, Any]) -> Curves:
    """Return the medians."""
    found: dict[str, dict[int, float]] = {}
    for each in document["series"]:
        found.setdefault(each["curve"], {})[each["at"]] = each["median"]
    return found


def pictures(document: Mapping[str, Any]) -> dict[str, str]:
    """Return every picture by its file's name."""
    told, facts = curves(document), document["facts"]
    charts = {
        "first-token": Chart(
            title=f"First token of a prompt: a prefix and {facts['suffix_tokens']} new tokens",
            x="tokens of the prefix",
            y="ms (logarithmic)",
            lines=_lines(told, cost.COLD, cost.COLD_FLOOR, cost.WARM, cost.WARM_FLOOR),
            decades=True,
        ),
        "between-tokens": Chart(
            title="Time between two tokens of one answer",
            x="tokens of context",
            y="ms",
            lines=_lines(told, cost.CONTEXT, cost.CONTEXT_FLOOR),
        ),
        "batch": Chart(
            title="Time between two tokens when several answers are written",
            x="sequences at the same time",
            y="ms",
            lines=_lines(told, cost.SHARED, cost.OWN, cost.BATCH_FLOOR),
            doubling=True,
        ),
        "throughput": Chart(
            title="Tokens a second of all answers together",
            x="sequences at the same time",
            y="tokens a second",
            lines=[
                Line(name, [(at, _rate(at, ms)) for at, ms in told[name].items()], floor=name == cost.BATCH_FLOOR)
                for name in (cost.SHARED, cost.OWN, cost.BATCH_FLOOR)
            ],
            doubling=True,
        ),
        "extents": Chart(
            title=f"A prefix of {facts['scattered_tokens']:,} tokens in pieces: attention, and putting them together",
            x="extents",
            y="ms",
            lines=_lines(told, cost.DECODE, cost.SUFFIX, cost.COPY),
            doubling=True,
        ),
    }
    return {f"performance-{name}.svg": svg(chart) for name, chart in charts.items()}


def page(document: Mapping[str, Any]) -> str:
    """Return the page."""
    told, facts = curves(document), document["facts"]
    environment = dict(document["environment"])
    after = environment.pop("load_after")
    one = (
        f"A prefix, and {facts['suffix_tokens']} tokens after it that are new. Each further 1,000 cached tokens add "
        f"{number(facts['ms_per_1000_cached'])} ms."
    )
    two = (
        "One answer alone, behind more and more context. Each further 1,000 tokens of context add "
        f"{number(facts['ms_per_1000_of_context'])} ms."
    )
    three = (
        f"Answers that go on together, behind one shared prefix of {facts['shared_prefix_tokens']:,} tokens, which is "
        f"attended to once for all, and behind prefixes of their own of {facts['own_prefix_tokens']:,}."
    )
    parts = [
        "# What it costs",
        _opening(document),
        *_warning(environment["load"]),
        "## First token",
        one,
        _shown("first-token", "First token over the length of the prefix, cached and not, each with its floor"),
        _first_tokens(told),
        "## Time between tokens",
        two,
        _shown("between-tokens", "Time between two tokens over the context, with its floor"),
        _contexts(told),
        "## Several at once",
        three,
        _shown("throughput", "Tokens a second over sequences, with the floor"),
        _shown("batch", "Time between two tokens over sequences, with the floor"),
        _batches(told),
        "## Extents",
        *_extents(told, facts),
        "## Measured on",
        grid(("", ""), [*card_rows(Card(**environment)), ("load after", f"{after}")]),
    ]
    return "\n\n".join(parts) + "\n"


def _shown(picture: str, words: str) -> str:
    return f"![{words}](performance-{picture}.svg)"


def _opening(document: Mapping[str, Any]) -> str:
    runs = {each["curve"]: len(each["values"]) for each in document["series"]}
    return (
        f"Made by `make bench ARGS={cost.NAME}`: the engine alone, in one process, `{document['facts']['model']}` in "
        "float32. The **floor** is the time of the model's linear layers alone for as many rows, measured in turns "
        "with the engine: what would be left if attention, norms, sampling and Python cost nothing. Medians of "
        f"{runs[cost.WARM]} first tokens ({runs[cost.COLD]} where nothing is cached), {runs[cost.CONTEXT]} steps, "
        f"{runs[cost.DECODE]} looks at each layout. All values: `benchmarks/results/{cost.NAME}.json`."
    )


def _warning(load: float) -> list[str]:
    """Say that the machine was not the benchmark's own, where so."""
    if load <= QUIET:
        return []
    return [f"**The machine was busy (load {load:g} before it began): these milliseconds are its neighbours' too.**"]


def _first_tokens(told: Curves) -> str:
    headings = (
        "tokens of prefix",
        "cached, ms",
        "floor, ms",
        "times the floor",
        "not cached, ms",
        "floor, ms",
        "times the floor",
    )
    rows = [
        (
            f"{at:,}",
            *_beside(warm, told[cost.WARM_FLOOR][at]),
            *_beside(told[cost.COLD][at], told[cost.COLD_FLOOR][at]),
        )
        for at, warm in told[cost.WARM].items()
    ]
    return grid(headings, rows)


def _contexts(told: Curves) -> str:
    rows = [(f"{at:,}", *_beside(ms, told[cost.CONTEXT_FLOOR][at])) for at, ms in told[cost.CONTEXT].items()]
    return grid(("tokens of context", "ms", "floor, ms", "times the floor"), rows)


def _batches(told: Curves) -> str:
    headings = ("sequences", "shared, ms", "tokens/s", "own, ms", "tokens/s", "floor, ms", "tokens/s")
    rows = []
    for at in told[cost.SHARED]:
        cells = [f"{at}"]
        for name in (cost.SHARED, cost.OWN, cost.BATCH_FLOOR):
            cells += [number(told[name][at]), number(_rate(at, told[name][at]))]
        rows.append(tuple(cells))
    return grid(headings, rows)


def _extents(told: Curves, facts: Mapping[str, Any]) -> list[str]:
    decodes = cost.break_even(told[cost.COPY], told[cost.DECODE])
    suffixes = cost.break_even(told[cost.COPY], told[cost.SUFFIX])
    headings = ("extents", "decode step, ms", "new tokens, ms", "copy, ms", "pays after steps", "pays after prompts")
    rows = [
        (
            f"{at:,}",
            number(ms),
            number(told[cost.SUFFIX][at]),
            number(told[cost.COPY][at]),
            _times(decodes.get(at)),
            _times(suffixes.get(at)),
        )
        for at, ms in told[cost.DECODE].items()
    ]
    words = (
        f"The attention of all layers over a prefix of {facts['scattered_tokens']:,} tokens that lies in so many "
        f"pieces, for a decode step and for {facts['suffix_tokens']} new tokens, and copying its "
        f"{facts['scattered_bytes'] / 1e6:,.0f} MB into one piece. Each further extent adds "
        f"{number(facts['decode_ms_per_extent'])} ms to a decode step and {number(facts['suffix_ms_per_extent'])} ms "
        "to new tokens. A copy pays after as many steps, or prompts over the prefix, as bring back its time; `-` where "
        "no step was dearer than in one extent."
    )
    return [
        words,
        _shown("extents", "Attention over the number of extents, and the copy"),
        grid(headings, rows),
        " ".join(_within(cost.pays_from(decodes, answer), answer) for answer in ANSWERS),
    ]


def _within(extents: int | None, answer: int) -> str:
    if extents is None:
        return f"An answer of {answer} tokens pays for a copy at no number of extents measured."
    return f"An answer of {answer} tokens pays for a copy from {extents} extents on."


def _times(paid: float | None) -> str:
    return "-" if paid is None else number(paid)


def _beside(ms: float, floor_ms: float) -> tuple[str, str, str]:
    return number(ms), number(floor_ms), f"{ms / floor_ms:.2f}"


def _rate(sequences: int, ms: float) -> float:
    return 1000 * sequences / ms


def _lines(told: Curves, *names: str) -> list[Line]:
    floors = (cost.COLD_FLOOR, cost.WARM_FLOOR, cost.BATCH_FLOOR, cost.CONTEXT_FLOOR)
    return [Line(name, list(told[name].items()), floor=name in floors) for name in names]


if __name__ == "__main__":
    write()
