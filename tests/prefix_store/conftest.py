"""An empty shelf for every test."""

from __future__ import annotations

import pytest

from tests.prefix_store.shelf import Shelf


@pytest.fixture
def shelf():
    """An empty tree whose invariants hold when the test is over."""
    shelf = Shelf()
    yield shelf
    shelf.check()
