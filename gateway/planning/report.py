"""A plan as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from gateway.telling import page, print_json
from prefix_store.retention import format_duration

Row = Mapping[str, Any]

PAGE_WIDTH: Final = 132
UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def show(told: Row, *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        print_json(told)
        return
    console = page(PAGE_WIDTH)
    for line in [*_model(told), *_sizes(told)]:
        console.print(Text(line))
    console.print(_variants(told))
    for line in _capacity(told):
        console.print(Text(line))
    console.print(_classes(told["retention"]))
    if told["machine"] is not None:
        for line in _speed(told["machine"], told["kv"]["length"]):
            console.print(Text(line))
        console.print(_decode(told["machine"]))
    for note in told["notes"]:
        console.print(Text(note))


def size(count: float) -> str:
    """Write bytes in the largest unit that leaves a number above one."""
    at = 0
    while count >= 1024 and at < len(UNITS) - 1:  # noqa: PLR2004 - the base of these units
        count, at = count / 1024, at + 1
    return f"{count:,.4g} {UNITS[at]}"


def seconds(value: float) -> str:
    """Write a time."""
    for least, unit, name in ((1.0, 1.0, "s"), (1e-3, 1e-3, "ms")):
        if value >= least:
            return f"{value / unit:,.4g} {name}"
    return f"{value * 1e6:,.4g} µs"


def _model(told: Row) -> list[str]:
    sliding = told["sliding_layers"]
    kinds = f"{sliding} of them sliding over {told['window']:,} tokens, " if sliding else ""
    borrowed = told["layers_without_own_kv"]
    kinds += f"{borrowed} without K and V of their own, " if borrowed else ""
    each = " or ".join(map(str, told["kv_heads"])), " or ".join(map(str, told["head_dim"]))
    parameters, weights = told["parameters"], told["weight_bytes"]
    active = told["active_parameters"]
    some = f" ({active:,} active)" if active != parameters else ""
    heads = f"{told['heads']} heads, {each[0]} KV heads ({told['attention']}) of {each[1]}"
    return [
        f"{told['model']} ({told['family']}): {told['layers']} layers, {kinds}{heads}",
        ("Parameters not known" if parameters is None else f"{parameters:,} parameters{some}")
        + (f"; weights of {size(weights)} in {told['dtype']}" if weights is not None else ""),
    ]


def _sizes(told: Row) -> list[str]:
    kv = told["kv"]
    block = f"{size(kv['bytes_per_block'])} a block of {kv['block_tokens']}"
    sequence = f"{size(kv['sequence_bytes'])} a sequence of {kv['length']:,}"
    lines = [f"K and V in {told['kv_cache_dtype']}: {size(kv['bytes_per_token'])} a token, {block}, {sequence}"]
    if told["sliding_layers"]:
        lines.append(
            "Keepwarm keeps whole prefixes, in sliding layers too. An engine that frees what leaves the window would "
            f"need {size(kv['sequence_bytes_windowed'])} for such a sequence"
        )
    return lines


def _variants(told: Row) -> Table:
    table = Table("heads")
    for column in ("KV heads", "dtype", "a token", "of own", "sequences"):
        table.add_column(column, justify="right")
    for one in told["kv"]["variants"]:
        table.add_row(
            f"{one['heads']}{' (own)' if one['own'] else ''}",
            str(one["kv_heads"]),
            one["dtype"],
            size(one["bytes_per_token"]),
            f"{one['of_own']:.2f}",
            f"{one['sequences']:,}",
        )
    return table


def _capacity(told: Row) -> list[str]:
    room, length, retention = told["capacity"], told["kv"]["length"], told["retention"]
    prefix = retention["prefix_tokens"]
    windowed = f"; {room['sequences_windowed']:,} where windows are freed" if told["sliding_layers"] else ""
    new = retention["rate"] * retention["new_share"]
    used = f" after {format_duration(retention['used_for_s'])} of use" if retention["used_for_s"] else ""
    arrivals = f"at {retention['rate']:g} requests/s, {retention['new_share']:.3g} of them with a new one: {new:g}/s"
    pool = f"{room['blocks']:,} blocks, {room['tokens']:,} tokens"
    shared = f"{room['sequences_sharing_prefix']:,} that share a prefix of {prefix:,}"
    return [
        f"{size(room['kv_bytes'])} for K and V ({room['from']}): {pool}",
        f"Sequences of {length:,} tokens: {room['sequences']:,}; {shared}{windowed}",
        f"Prefixes of {prefix:,} tokens {arrivals}; each lives its class{used}, longer where reads renew it",
    ]


def _classes(retention: Row) -> Table:
    table = Table("class")
    columns = ("resident", "peak", "promised: room", "", "of them kept", "held: room", "", "live", "most new/s")
    for column in columns:
        table.add_column(column, justify="right")
    for one in retention["classes"]:
        promised, held = one["promised"], one["held"]
        table.add_row(
            one["class"],
            f"{one['resident']:,.1f}",
            f"{one['peak']:,}",
            f"{promised['room']:,}",
            promised["verdict"],
            f"{promised['kept_share']:.1%}",
            f"{held['room']:,}",
            held["verdict"],
            life(held["lives_s"]),
            f"{held['most_new_per_s']:,.3g}",
        )
    return table


def life(value: float) -> str:
    """Write how long something is kept."""
    for unit, name in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m")):
        if value >= unit:
            return f"{value / unit:,.3g} {name}"
    return seconds(value)


def _speed(machine: Row, length: int) -> list[str]:
    devices = f"{machine['devices']} x " if machine["devices"] > 1 else ""
    place = f"{devices}{machine['device']} " if machine["device"] else devices
    speeds = f"{machine['flops'] / 1e12:,.4g} Tflop/s and {machine['bandwidth'] / 1e9:,.4g} GB/s"
    lines = [f"At most, on {place}with {speeds} ({machine['source']}):"]
    lines += [
        f"  prefill of {one['computed']:,} tokens after {one['read']:,} cached: {seconds(one['seconds'])}, bound by "
        f"{one['bound']}"
        for one in machine["prefill"]
    ]
    for batch, past in ((machine["break_even_batch"], length), (machine["break_even_batch_empty"], 1)):
        bound = (
            "never bound by compute: K and V outweigh it" if batch is None else f"bound by compute from {batch:,} on"
        )
        lines.append(f"  decoding token {past:,} of many sequences: {bound}")
    return lines


def _decode(machine: Row) -> Table:
    table = Table("batch")
    for column in ("step", "tokens/s", "each", "compute", "bandwidth", "bound by", "fits"):
        table.add_column(column, justify="right")
    for one in machine["decode"]:
        table.add_row(
            f"{one['batch']:,}",
            seconds(one["seconds"]),
            f"{one['tokens_per_s']:,.4g}",
            f"{one['tokens_per_s'] / one['batch']:,.4g}",
            f"{one['compute_share']:.0%}",
            f"{one['memory_share']:.0%}",
            one["bound"],
            "yes" if one["fits"] else "no",
        )
    return table
