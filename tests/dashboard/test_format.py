"""Numbers and times as words, in the browser that shows them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

Run = Callable[[str], Awaitable[Any]]
MARCH = 1_772_373_909  # 2026-03-01 14:05:09 UTC


async def same(run: Run, expected: dict[str, str]) -> None:
    """Compare what expressions give, with narrow spaces written as plain ones."""
    got = await run(f"[{', '.join(expected)}]")
    assert dict(zip(expected, [str(each).replace("\u202f", " ") for each in got], strict=True)) == expected


async def test_counts_are_separated_by_thousands(run: Run) -> None:
    """Whole numbers have a comma every three digits; zero is 0."""
    await same(
        run, {"m.count(0)": "0", "m.count(999)": "999", "m.count(1234567)": "1,234,567", "m.count(-4200)": "-4,200"}
    )


async def test_large_numbers_have_si_prefixes(run: Run) -> None:
    """From ten thousand on a prefix stands for the zeros, rounded up into the next where it must be."""
    expected = {
        "m.si(0)": "0",
        "m.si(9999)": "9,999",
        "m.si(12345)": "12.3 k",
        "m.si(999960)": "1 M",
        "m.si(1234567)": "1.2 M",
        "m.si(184200000)": "184 M",
        "m.si(0.0314)": "0.031",
        "m.si(2.5)": "2.5",
        "m.short(5000)": "5 k",
        "m.tokens(1)": "1 token",
        "m.tokens(1234567)": "1.2 M tokens",
    }
    await same(run, expected)


async def test_sizes_and_times_have_units(run: Run) -> None:
    """Bytes go by 1024, times from microseconds to days."""
    expected = {
        "m.bytes(0)": "0 B",
        "m.bytes(1536)": "1.5 KiB",
        "m.bytes(3 * 2 ** 30)": "3 GiB",
        "m.seconds(0)": "0 s",
        "m.seconds(0.00005)": "50 µs",
        "m.seconds(0.1842)": "184 ms",
        "m.seconds(0.9999)": "1 s",
        "m.seconds(1.234)": "1.23 s",
        "m.seconds(12.34)": "12.3 s",
        "m.seconds(3600)": "1 h",
        "m.duration(5400)": "1 h 30 min",
        "m.duration(90000)": "1 d 1 h",
        "m.money(12.4, 'USD')": "12.40 USD",
        "m.money(-0.0123, 'EUR')": "−0.0123 EUR",
    }
    await same(run, expected)


async def test_shares_of_few_requests_are_told_as_counts(run: Run) -> None:
    """Below twenty requests a share is counts, never a bare 100 %; of none it is unknown."""
    expected = {
        "m.percent(0.8241)": "82.4 %",
        "m.percent(1, 1)": "1 of 1",
        "m.percent(0.5, 4)": "2 of 4",
        "m.percent(1, 20)": "100.0 %",
        "m.percent(0, 0)": "–",
        "m.share(768, 1024, 2)": "768 of 1,024",
        "m.share(768, 1024, 200)": "75.0 %",
        "m.share(0, 0, 200)": "–",
    }
    await same(run, expected)


@pytest.mark.parametrize("name", ["count", "si", "short", "tokens", "bytes", "seconds", "duration", "percent", "money"])
async def test_what_is_unknown_is_a_dash(run: Run, name: str) -> None:
    """What is no finite number is shown as unknown, never as zero or NaN."""
    values = "[null, undefined, NaN, Infinity, '7']"
    assert await run(f"{values}.map((value) => m.{name}(value))") == ["–"] * 5


async def test_moments_are_relative_and_exact(run: Run) -> None:
    """A moment is told by how long ago it was, and exactly with its zone."""
    expected = {
        f"m.when({MARCH - 12}, {MARCH})": "12 s ago",
        f"m.when({MARCH - 5400}, {MARCH})": "1 h ago",
        f"m.when({MARCH + 180}, {MARCH})": "in 3 min",
        f"m.when({MARCH}, {MARCH})": "now",
        f"m.exact({MARCH}, 'utc')": "2026-03-01 14:05:09 UTC",
        f"m.exact({MARCH}, 'local')": "2026-03-01 14:05:09 +00:00",
        f"m.clock({MARCH}, 'utc')": "14:05",
        f"m.between({MARCH}, {MARCH + 60}, 'utc')": "1 Mar 14:05 to 14:06",
        f"m.tick({MARCH}, 60, 'utc')": "14:05",
        f"m.tick({MARCH}, 86400, 'utc')": "1 Mar",
        "m.exact(null)": "–",
    }
    await same(run, expected)


async def test_the_state_goes_into_a_link_and_back(run: Run) -> None:
    """What differs from the default is in the hash, and the hash read again is the same state."""
    hash_ = await run("m.write(m.changed({view: 'tokens', from: '-6h', tenant: 'a&b', group: 'model'}))")
    assert hash_ == "#/tokens?from=-6h&tenant=a%26b&group=model"
    back = await run(f"m.read({json.dumps(hash_)})")
    assert {key: back[key] for key in ("view", "from", "to", "tenant", "group")} == {
        "view": "tokens",
        "from": "-6h",
        "to": "now",
        "tenant": "a&b",
        "group": "model",
    }


async def test_another_view_keeps_range_and_filters_alone(run: Run) -> None:
    """What only one view knows is left behind when another is opened."""
    moved = await run("m.changed({view: 'misses'}, m.read('#/tokens?from=-6h&tenant=acme&group=model'))")
    assert moved == {"view": "misses", "from": "-6h", "to": "now", "tenant": "acme", "zone": "local", "theme": "auto"}


async def test_events_are_read_however_the_bytes_are_cut(run: Run) -> None:
    """Events of a stream come out whole from single bytes, with comments passed over and data joined."""
    stream = ': hello\n\nevent: state\ndata: {"a":\ndata: "é"}\n\nevent: change\r\ndata: 2\r\n\r\n'
    script = f"""await (async () => {{
        const bytes = new TextEncoder().encode({json.dumps(stream)});
        const start = (c) => {{ for (const byte of bytes) c.enqueue(new Uint8Array([byte])); c.close(); }};
        const body = new ReadableStream({{ start }});
        const found = [];
        for await (const event of m.events(body)) found.push(event);
        return found;
    }})()"""
    assert await run(script) == [["state", '{"a":\n"é"}'], ["change", "2"]]
