"""What `keepwarm simulate` takes for a large fleet: 1,000 replicas that hold 10 million blocks.

The trace is made up: conversations that begin with a system prompt of their application and grow turn by turn, 512
tokens a block. The command runs in a process of its own and reads the trace from a file. Run:
`python -m benchmarks.simulate [REPLICAS [BLOCKS [GROWTH]]]`, where a turn adds up to GROWTH blocks; the last line is
one JSON object.
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

REPLICAS, BLOCKS, GROWTH = 1_000, 10_000_000, 64  # blocks that a turn adds at most
APPLICATIONS, SHARED = 50, 4  # and blocks of an application's own prompt
OPEN = 1_000  # conversations at a time
TURNS = 6  # of a conversation, about
TOKENS = 512
LIMIT_BYTES_A_BLOCK = 250  # what is held and what is believed of it


def write_trace(file: Path, blocks: int, growth: int, seed: int = 7) -> int:
    """Write a trace with so many different blocks; return how many requests it has."""
    draw = random.Random(seed)
    fresh, requests, at = APPLICATIONS * SHARED, 0, 0.0
    talks: list[list[int]] = []
    with file.open("w", encoding="utf-8") as out:
        while fresh < blocks:
            at += draw.expovariate(0.1)
            if len(talks) < OPEN or draw.random() < 1 / TURNS:
                begin = draw.randrange(APPLICATIONS) * SHARED
                talks.append(list(range(begin, begin + SHARED)))
            place = draw.randrange(len(talks))
            talk = talks[place]
            grown = draw.randint(1, growth)
            talk.extend(range(fresh, fresh + grown))
            fresh += grown
            row = {"timestamp": int(at), "input_length": TOKENS * len(talk), "output_length": 64, "hash_ids": talk}
            out.write(json.dumps(row) + "\n")
            requests += 1
            if len(talk) > SHARED + TURNS * growth:
                talks[place] = talks[-1]
                talks.pop()
    return requests


def main() -> None:
    """Write a trace, have it simulated, print seconds and the peak of memory."""
    given = [int(word) for word in sys.argv[1:4]]
    replicas, blocks, growth = [*given, *(REPLICAS, BLOCKS, GROWTH)[len(given) :]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        requests = write_trace(file, blocks, growth)
        print(f"{requests:,} requests, {file.stat().st_size / 1e6:,.0f} MB", file=sys.stderr)
        command = [sys.executable, "-m", "gateway.cli", "simulate", str(file), "--replicas", str(replicas)]
        command += ["--policy", "prefix", "--ttl", "30d", "--capacity-tokens", str(1 << 40), "--json"]
        began = time.perf_counter()
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    told = json.loads(said)
    (row,) = told["policies"]
    each = peak / row["held_blocks"]
    result = {
        "replicas": replicas,
        "requests": requests,
        "growth": growth,
        "held_blocks": row["held_blocks"],
        "seconds": round(seconds, 1),
        "requests_a_second": round(requests / row["seconds"]),
        "peak_rss_mb": round(peak / 1e6),
        "bytes_a_block": round(each),
        "within": each <= LIMIT_BYTES_A_BLOCK,
    }
    print(json.dumps({"simulate": result}))


if __name__ == "__main__":
    main()
