"""How fast `keepwarm advise` replays a million requests, and in how much memory.

The trace is made up: eight applications with prompts of their own, conversations that grow turn by turn, and gaps of
seconds to hours; 512 tokens a block, as in the public traces. The command runs in a process of its own and reads the
trace from a file. Run: `python -m benchmarks.advise [REQUESTS]`; the last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUESTS = 1_000_000
APPLICATIONS, OPEN = 8, 4000  # and conversations open at a time
SHARED, TURNS, GROWTH = 6, 12, 4  # blocks of an application's own prompt; turns at most; blocks a turn
LIMIT_S, LIMIT_BYTES = 30, 10**9


def write_trace(file: Path, requests: int, seed: int = 7) -> int:
    """Write a trace of so many requests; return how many blocks its prompts have in all."""
    draw = random.Random(seed)
    fresh = APPLICATIONS * SHARED
    talks: list[list[int]] = []
    now = blocks = 0
    with file.open("w", encoding="utf-8") as out:
        for _ in range(requests):
            now += int(draw.expovariate(1 / 40))  # milliseconds
            at = draw.randrange(OPEN)
            if at >= len(talks) or len(talks[at]) > SHARED + TURNS * GROWTH or draw.random() < 1 / TURNS:
                application = draw.randrange(APPLICATIONS)
                talk = list(range(application * SHARED, (application + 1) * SHARED))
                if at >= len(talks):
                    at = len(talks)
                    talks.append(talk)
                else:
                    talks[at] = talk
            grown = draw.randint(1, GROWTH)
            talks[at].extend(range(fresh, fresh + grown))
            fresh += grown
            blocks += len(talks[at])
            row = {"timestamp": now, "input_length": 512 * len(talks[at]), "output_length": 64, "hash_ids": talks[at]}
            out.write(json.dumps(row) + "\n")
    return blocks


def main() -> None:
    """Write a trace, have it read, print seconds and the peak of memory."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        blocks = write_trace(file, requests)
        print(f"{requests:,} requests, {blocks:,} blocks, {file.stat().st_size / 1e6:,.0f} MB", file=sys.stderr)
        command = [sys.executable, "-m", "gateway.cli", "advise", "--trace", str(file), "--blocks", "400000", "--json"]
        began = time.perf_counter()
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * 1024
    told = json.loads(said)
    result = {
        "requests": requests,
        "blocks": blocks,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_rss_mb": round(peak / 1e6),
        "rate": told["sample"]["rate"],
        "within": seconds <= LIMIT_S and peak <= LIMIT_BYTES,
    }
    print(json.dumps({"advise": result}))


if __name__ == "__main__":
    main()
