"""Tokens back into text."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.detokenize import Detokenizer, TokenSpelling
from gateway.prompt import Renderer

KOREAN = "키위 좋아요"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def stream(spelling: TokenSpelling, groups: list[list[int]]) -> list[str]:
    """The text each group of tokens lets go of."""
    detokenizer = Detokenizer(spelling)
    return [detokenizer.feed(group) for group in groups]


def ids(renderer: Renderer, text: str) -> list[int]:
    """One token a byte, for text without merges."""
    return renderer._encoder.encode(text)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_emoji_cut_over_tokens_arrives_whole(renderer: Renderer, cut: int) -> None:
    """A character split over tokens waits for its last byte."""
    tokens = ids(renderer, "kiwi \U0001f95d")
    split = len(tokens) - 4 + cut
    assert stream(renderer.spelling, [tokens[:split], tokens[split:]]) == ["kiwi ", "\U0001f95d"]


@pytest.mark.parametrize("text", [KOREAN, FAMILY, "café", "a\ufffdb", "\ufffd"])
def test_token_by_token_gives_the_text(renderer: Renderer, text: str) -> None:
    """One token at a time joins to the same text; a U+FFFD that is really there stays."""
    deltas = stream(renderer.spelling, [[token] for token in ids(renderer, text)])
    assert "".join(deltas) == text


def test_no_replacement_character_on_the_way(renderer: Renderer) -> None:
    """No delta shows an unfinished character."""
    deltas = stream(renderer.spelling, [[token] for token in ids(renderer, KOREAN + FAMILY)])
    assert not any("\ufffd" in delta for delta in deltas)


def test_character_cut_by_the_end_is_left_out(renderer: Renderer) -> None:
    """An answer that ends inside a character ends before it."""
    assert stream(renderer.spelling, [ids(renderer, "ok \U0001f95d")[:-1]]) == ["ok "]


def test_special_and_unknown_tokens_are_no_text(renderer: Renderer) -> None:
    """Control tokens and ids beyond the vocabulary add nothing."""
    assert stream(renderer.spelling, [[0, 1, 2, 99999]]) == [""]


def sentencepiece() -> Tokenizer:
    """A tiny tokenizer in the manner of Llama 2."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "h", "i", "\u2581h", "\u2581hi"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: place for place, word in enumerate(words)},
            merges=[("\u2581", "h"), ("\u2581h", "i")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_byte_fallback_vocabulary() -> None:
    """Byte tokens join into characters and only the first space of an answer is dropped."""
    tokenizer = sentencepiece()
    tokens = tokenizer.encode("hi hi \U0001f95d").ids
    assert "".join(stream(TokenSpelling(tokenizer), [[token] for token in tokens])) == "hi hi \U0001f95d"


def test_other_decoders_are_asked_in_context() -> None:
    """A vocabulary of whole words is joined as its decoder joins it."""
    tokenizer = Tokenizer(models.WordLevel({"warm": 0, "cold": 1, "?": 2}, unk_token="?"))
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    assert "".join(stream(TokenSpelling(tokenizer), [[0], [1], [3]])).strip() == "warm cold"
