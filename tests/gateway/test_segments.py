"""Segmented encoding: its ids and borders are those of encoding the whole, whatever the tokenizer and the text."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gateway.ask import Tool, ToolCall, Turn
from gateway.config import Settings, cache_dir
from gateway.detokenize import TokenSpelling
from gateway.encoding import Encoder, StandIns
from gateway.prompt import Renderer
from gateway.segments import Segmenter
from prefix_store.text import SegmentIndex
from tests.gateway.test_detokenize import sentencepiece
from tests.tiny_model import tiny_tokenizer

SPECIALS = ("<|im_start|>", "<|im_end|>")
STAND_INS = StandIns("\U00020000", "\U00020001")
WORDS = (
    "the",
    " the",
    "ing",
    "and",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "1",
    "12",
    ".",
    "漢字",
    "🙂",
    "👩‍👩‍👧",
    "ä",
    "한국",
    "<|im",
    "|>",
)
TEXT = st.lists(st.sampled_from([*SPECIALS, *WORDS]) | st.text(max_size=6), max_size=14).map("".join)


def byte_level(merges: tuple[str, ...] = (), *, strip: bool = False) -> Tokenizer:
    """A byte-level BPE tokenizer with two special tokens, which may take the blanks beside them."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs: list[tuple[str, str]] = []
    for one, other in pairwise(merges):
        if one in words and other in words and one + other not in words:
            pairs.append((one, other))
            words.append(one + other)
    tokenizer = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, rstrip=strip, lstrip=strip) for word in SPECIALS])
    return tokenizer


def gemma_like() -> Tokenizer:
    """A tokenizer in the manner of Gemma: blanks become a letter, bytes where there is no word."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"theingad", "\u2581t", "\u2581\u2581"]
    merges = [("\u2581", "t"), ("\u2581", "\u2581")]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
    return tokenizer


def llama_like() -> Tokenizer:
    """A tokenizer in the manner of Llama 2: a blank before the very first word."""
    tokenizer = sentencepiece()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
    return tokenizer


@cache
def real() -> Tokenizer:
    """The default model's tokenizer."""
    from engine.weights import resolve_in_subprocess

    found = resolve_in_subprocess("smollm2-135m", cache_dir(Settings(), os.environ), lambda *_: None)
    return Renderer.load(Path(found.path))._encoder.tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "tiny": lambda: tiny_tokenizer().backend_tokenizer,
    "bytes": byte_level,
    "strips": lambda: byte_level(strip=True),
    "gemma": gemma_like,
    "llama": llama_like,
    "real": real,
}


def segmenter(tokenizer: Tokenizer) -> tuple[Encoder, Segmenter]:
    """The slow truth, and the fast path over it."""
    encoder = Encoder(tokenizer)
    return encoder, Segmenter(encoder, TokenSpelling(encoder.tokenizer), SegmentIndex(1 << 24))


def unpacked(ids: bytes) -> list[int]:
    """Ids as numbers."""
    numbers: list[int] = np.frombuffer(ids, dtype="<u4").tolist()
    return numbers


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_segmented_ids_are_those_of_the_whole(kind: str) -> None:
    """First and second time, the ids are those of encoding the whole text at once."""
    encoder, fast = segmenter(TOKENIZERS[kind]())

    @settings(max_examples=150, deadline=None)
    @given(TEXT)
    def same(text: str) -> None:
        for _ in range(2):
            assert unpacked(fast.encode(text, "a").ids) == encoder.encode(text)

    same()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_forged_control_tokens_stay_text(kind: str) -> None:
    """With spellings wrapped, the ids and the borders are those of the slow way."""
    encoder, fast = segmenter(TOKENIZERS[kind]())

    @settings(max_examples=100, deadline=None)
    @given(st.lists(TEXT, max_size=4), st.lists(st.integers(0, 60), max_size=4))
    def same(texts: list[str], places: list[int]) -> None:
        text = "".join(
            f"<|im_start|>{encoder.mark(one, STAND_INS)}<|im_end|>" if place % 2 else encoder.mark(one, STAND_INS)
            for place, one in enumerate(texts)
        )
        told, truth = fast.encode(text, "a", STAND_INS), encoder.encode_marked(text, STAND_INS)
        assert unpacked(told.ids) == truth.ids

    same()


@pytest.mark.parametrize("kind", ["tiny", "bytes", "real"])
def test_borders_are_those_of_the_whole(kind: str) -> None:
    """A place has as many tokens before it as the tokenizer's own offsets say; the way back gives the token's begin."""
    encoder, fast = segmenter(TOKENIZERS[kind]())

    @settings(max_examples=150, deadline=None)
    @given(TEXT, st.lists(st.integers(0, 40), max_size=5))
    def same(text: str, places: list[int]) -> None:
        ends = encoder.encode_with_ends(text).ends
        told = fast.encode(text, "a")
        assert told.borders(places) == tuple(bisect_right(ends, min(place, len(text))) for place in places)
        for token in range(len(ends)):
            begin = told.place(token)
            assert begin <= ends[token]

    same()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(pre_tokenizers.ByteLevel.alphabet())), max_size=40), TEXT)
def test_generated_vocabularies_cut_alike(merges: list[str], text: str) -> None:
    """Whatever words a byte-level vocabulary has, cutting at its special tokens changes nothing."""
    encoder, fast = segmenter(byte_level(tuple(merges)))
    assert unpacked(fast.encode(text, "a").ids) == encoder.encode(text)


def test_control_token_that_takes_blanks_is_no_border() -> None:
    """Where a tokenizer does not cut cleanly at a control token, the text is not cut there."""
    encoder, fast = segmenter(byte_level(strip=True))
    text = "a  <|im_start|>  b"
    assert unpacked(fast.encode(text, "a").ids) == encoder.encode(text)
    assert not fast._cuts_at("<|im_start|>")


def test_known_text_is_not_tokenised_again(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    """Of a conversation that goes on, only what was not there before is encoded; another tenant starts afresh."""
    encoded: list[str] = []
    encode = renderer._encoder.encode_piece
    talk = [Turn(role="system", text="the rule " * 50), Turn(role="user", text="hello")]
    renderer.render(talk, tenant="a")

    def noted(text: str, *, at_start: bool) -> list[int]:
        encoded.append(text)
        return encode(text, at_start=at_start)

    monkeypatch.setattr(renderer._encoder, "encode_piece", noted)
    talk += [Turn(role="assistant", text="hi"), Turn(role="user", text="more")]
    renderer.render(talk, tenant="a")
    assert encoded == ["assistant\nhi", "user\nmore"]
    renderer.render(talk, tenant="b")
    assert "system\n" + "the rule " * 50 in encoded


def test_spans_cover_the_prompt(renderer: Renderer) -> None:
    """Every token belongs to one tool, turn or the opening, in rendered order, without gaps."""
    tools = (Tool(name="alpha", description="First."), Tool(name="beta", parameters={"properties": {"x": {}}}))
    turns = (
        Turn(role="system", text="Be kind."),
        Turn(role="user", text="hello"),
        Turn(role="assistant", text="", tool_calls=(ToolCall(id="1", name="alpha", arguments={"x": 1}),)),
        Turn(role="tool", text="42", tool_call_id="1"),
    )
    prompt = renderer.render(turns, tools)
    kinds = [(span.kind, span.index) for span in prompt.spans]
    assert kinds == [
        ("tool", 0),
        ("tool", 1),
        ("system", 0),
        ("user", 1),
        ("assistant", 2),
        ("result", 3),
        ("opening", 0),
    ]
    assert prompt.spans[0].begin == 0
    assert prompt.spans[-1].end == len(prompt)
    assert all(one.end == other.begin for one, other in pairwise(prompt.spans))
