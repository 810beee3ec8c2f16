"""The ledger alone: filling and asking thirty days with fifty tenants, over SQLite.

No model, no engine and no HTTP. Times are CPU time, so that a busy machine measures the
same. Run it by itself with `python -m benchmarks.ledger`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

from prefix_store.ledger import DAY, HOUR, Place, Question, Row, Span
from prefix_store.sqlite_ledger import SqliteLedger

DAYS, TENANTS, REPEATS = 30, 50, 9
END = 20_000 * DAY


def counts(dice: random.Random) -> dict[str, int]:
    """Return what an hour of a tenant comes to: what every request counts, some reasons, some durations."""
    plain = ("requests", "hits", "reported", "prompt", "read", "uncached", "output", "done", "without", "write|5m")
    told = {name: dice.randrange(1, 1_000_000) for name in (*plain, "outcome|finished", "write|1h")}
    for reason in ("new", "messages", "expired", "never_written"):
        told |= {f"missed|{reason}": dice.randrange(1, 9999), f"misses|{reason}": dice.randrange(1, 99)}
    for spread, middle in (("first_hit", 24), ("first_miss", 32), ("seconds", 40), ("queue", 6), ("prefill", 28)):
        told |= {f"{spread}|{middle + step}": dice.randrange(1, 99) for step in range(8)}
    return told


async def run() -> dict[str, float]:
    """Fill a file and ask it."""
    dice = random.Random(6)
    places = [Place(f"tenant-{number}", "key", "model", "chat", "bundled") for number in range(TENANTS)]
    with tempfile.TemporaryDirectory() as folder:
        ledger = await SqliteLedger.open(Path(folder) / "ledger.sqlite", clock=lambda: float(END))
        began = time.process_time()
        for hour in range(END - DAYS * DAY, END, HOUR):
            await ledger.add([Row(hour, place, counts(dice)) for place in places])
        filled_s = time.process_time() - began
        measured = {"rows": DAYS * 24 * TENANTS, "fill_s": filled_s}
        measured["bytes"] = await asyncio.to_thread(_size, Path(folder))
        question = Question(spans=(Span(HOUR, END - DAYS * DAY, END),), bucket=HOUR)
        measured["hours_ms"] = await _median_ms(ledger, question)
        tenants = Question(spans=(Span(HOUR, END - DAYS * DAY, END),), fields=("tenant",))
        measured["hours_by_tenant_ms"] = await _median_ms(ledger, tenants)
        days = Question(spans=(Span(DAY, END - DAYS * DAY, END),), bucket=DAY, fields=("tenant",))
        measured["days_by_tenant_ms"] = await _median_ms(ledger, days)
        await ledger.close()
    return measured


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def _median_ms(ledger: SqliteLedger, question: Question) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        await ledger.sums(question)
        taken.append((time.process_time() - began) * 1000)
    return sorted(taken)[REPEATS // 2]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run())))
