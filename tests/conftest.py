"""What all tests share: a heap that stays small, so that a full collection late in the run is as cheap as an early one.

aiohttp keeps the last applications that were asked in a cache of the process, and with each of them a whole gateway and
its metrics. They are let go after each test, and what the libraries made when they were imported is put where no
collection walks. Threads of torch's pools, here and in the engines that tests start, sleep while they wait: a spinning
one would keep the tests beside these from working.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from aiohttp import web_app

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # before torch is imported


def pytest_collection_finish() -> None:
    """Spare the collector what the imports made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_gateway_is_kept() -> Iterator[None]:
    """Let go of the applications of a test."""
    yield
    web_app._cached_build_middleware.cache_clear()
