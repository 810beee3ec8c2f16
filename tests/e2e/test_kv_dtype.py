"""A real server that stores keys and values in another dtype."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.conftest import StartServer
from tests.e2e.test_retention import ask, call


def test_a_server_stores_what_it_is_told(start_server: StartServer) -> None:
    """With int8 by the environment, the operators' side names it, a token takes its bytes, and a prefix is read."""
    server = start_server("--kv-bytes", "4MiB", KEEPWARM_KV_CACHE_DTYPE="int8")
    card = call(f"{server.admin_url}/admin/v1/about")["card"]
    assert (card["dtype"], card["kv_dtype"], card["kv_bytes_per_token"]) == ("float32", "int8", 2 * 2 * 2 * (8 + 4))
    assert card["blocks"] == (4 << 20) // (16 * 96)
    (cold, _), (warm, _) = ask(server), ask(server)
    assert cold == 0
    assert warm > 0
    assert call(f"{server.admin_url}/admin/v1/retention")["capacity"]["kv_dtype"] == "int8"


def test_a_dtype_that_does_not_exist_is_one_line() -> None:
    """The start ends with exit code 2 and one line that names the flag and what it may be."""
    command = [sys.executable, "-m", "gateway.cli", "serve", "--kv-cache-dtype", "fp4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "expected one of auto, float32, bfloat16, float16, fp8, int8, not 'fp4'"
    assert (done.returncode, done.stderr) == (2, f"keepwarm: --kv-cache-dtype: {said}\n")
