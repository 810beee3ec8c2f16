"""What was measured, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from gateway.telling import page, print_json

Row = Mapping[str, Any]

PAGE_WIDTH: Final = 132
TOLD: Final = 0.001  # of a likelihood, below which a loss reads as none


def show(told: Row, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print_json(told)
        return
    console = page(PAGE_WIDTH)
    for line in _asked(told):
        console.print(Text(line))
    console.print(_dtypes(told["dtypes"]))
    console.print(_places(told))
    for line in notes(told):
        console.print(Text(line))


def percent(depth: float) -> str:
    """Write a depth."""
    return f"{depth * 100:.4g}%"


def _asked(told: Row) -> Iterator[str]:
    measured = [row for row in told["dtypes"] if row["refused"] is None]
    text, places = told["text"], len(told["lengths"]) * len(told["depths"])
    how = "through its chat template" if told["chat_template"] else "as plain text: it has no chat template"
    yield (
        f"{told['model']}, asked {how}: {places * told['facts_at_each']} facts at {places} places, each told from "
        f"{told['candidates']} candidates"
    )
    yield (
        f"Text: {text['name']}, {text['told']:,} of {text['tokens']:,} tokens told, in windows of {text['window']:,} "
        "that overlap by half"
    )
    for row in measured[:1]:
        yield (
            f"{row['read_tokens']:,} of {row['prompt_tokens']:,} prompt tokens were read from the cache "
            f"({row['read_tokens'] / row['prompt_tokens']:.1%}): the questions share their haystacks"
        )


def _dtypes(rows: Iterable[Row]) -> Table:
    table = Table("KV dtype", "stored in")
    columns = ("bytes/token", "chosen", "found", "likelihood", "perplexity", "same", "kept", "seconds")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        if row["refused"] is not None:
            table.add_row(Text(row["kv_cache_dtype"]), "not measured", *["-"] * len(columns))
            continue
        against = row["against_first"] or {}
        table.add_row(
            Text(row["kv_cache_dtype"]),
            row["stored"],
            f"{row['kv_bytes_per_token']:,}",
            f"{row['chosen']:.1%}{_change(against.get('chosen'))}",
            f"{row['found']:.1%}",
            f"{row['probability']:.1%}{_change(against.get('probability'))}",
            "-" if row["perplexity"] is None else f"{row['perplexity']:.4g}{_rise(against.get('perplexity'))}",
            "-" if against.get("same_likeliest") is None else f"{against['same_likeliest']:.1%}",
            "-" if against.get("kept") is None else f"{against['kept']:.3f}",
            f"{row['seconds']:.1f}",
        )
    return table


def _places(told: Row) -> Table:
    """Tell the likelihood of right answers by length and depth, a dtype below the other."""
    table = Table("KV dtype", "depth")
    for length in told["lengths"]:
        table.add_column(f"{length:,}", justify="right")
    for row in told["dtypes"]:
        if row["refused"] is not None:
            continue
        cells = {(cell["length"], cell["depth"]): cell["probability"] for cell in row["cells"]}
        for at, depth in enumerate(told["depths"]):
            name = row["kv_cache_dtype"] if at == 0 else ""
            values = (f"{cells[length, depth]:.1%}" for length in told["lengths"])
            table.add_row(Text(name), percent(depth), *values)
        table.add_section()
    return table


def notes(told: Row) -> Iterator[str]:
    """Say what the numbers mean, and what cannot be told from them."""
    for row in told["dtypes"]:
        name = row["kv_cache_dtype"]
        if row["refused"] is not None:
            yield f"{name}: not measured. {row['refused']}"
            continue
        if row["at_chance"]:
            right = round(row["chosen"] * row["facts"])
            yield (
                f"{name}: {right} of {row['facts']} facts chosen is what guessing gives ({row['facts']} ÷ "
                f"{told['candidates']} = {row['facts'] / told['candidates']:.3g}): the model retrieves nothing here"
            )
        worst = (row["against_first"] or {}).get("worst")
        if worst is not None and worst["first"] - worst["probability"] >= TOLD:
            place = f"{worst['length']:,} tokens, {percent(worst['depth'])} deep"
            yield f"{name}: lost most at {place}: {worst['first']:.1%} to {worst['probability']:.1%}"
    yield (
        "chosen: facts whose number was the likeliest candidate; found: whose every token was the likeliest of all; "
        "likelihood: of a right answer's token"
    )
    yield (
        "same: tokens of the text after which the likeliest is the first dtype's; kept: the least of what chosen, "
        "likelihood and 1 ÷ perplexity are of the first's"
    )
    if told["fail_under"] is not None:
        failed = ", ".join(told["failed"])
        yield f"Below --fail-under {told['fail_under']:g}: {failed or 'none'}"


def _change(ratio: float | None) -> str:
    return "" if ratio is None else f" ({_signed(ratio - 1, 1)})"


def _rise(ratio: float | None) -> str:
    """Tell how much a perplexity is above the first's, given the first's ÷ it."""
    return "" if not ratio else f" ({_signed(1 / ratio - 1, 2)})"


def _signed(change: float, places: int) -> str:
    """Write a change; one that would read as plus or minus nothing is nothing."""
    rounded = round(change * 100, places) or 0.0
    return f"{rounded:+.{places}f}%" if rounded else "0%"
