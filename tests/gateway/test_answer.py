"""One choice of an answer, read from tokens however the engine cuts them."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Delta, Finished, TokenLogprob
from gateway.answer import ChoiceReader, Part
from gateway.ask import Tool
from gateway.detokenize import TokenSpelling
from gateway.events import CallArguments, CallBegan, Ended, Logprob, Text
from gateway.stops import StopScanner
from gateway.tools.hermes import Hermes
from tests.gateway.templates import tokenizer

SPECIALS = ("<end>", "<tool_call>", "</tool_call>")
TOOLS = (Tool(name="get_time"),)
CALL = '{"name": "get_time", "arguments": {"zone": "UTC"}}'


@cache
def spelling() -> TokenSpelling:
    """Tokens of one byte, a few longer ones and special ones."""
    return TokenSpelling(tokenizer(SPECIALS))


def tokens(text: str) -> list[int]:
    """Ids of a text, special tokens included."""
    found: list[int] = tokenizer(SPECIALS).encode(text, add_special_tokens=False).ids
    return found


def deltas(ids: list[int], sizes: list[int], *, logprobs: bool = False, reason: str = "stop") -> list[Delta]:
    """An answer in pieces of these sizes, the rest at once, then its end."""
    pieces, left = [], ids
    for size in [*sizes, len(ids)]:
        pieces.append(left[:size])
        left = left[size:]
    told = [tuple(TokenLogprob(token=token, logprob=-1.0) for token in piece) if logprobs else () for piece in pieces]
    made = [
        Delta(id="a", tokens=tuple(piece), logprobs=told) for piece, told in zip(pieces, told, strict=True) if piece
    ]
    end = Finished(reason=reason, generated=len(ids) + 1, projected=len(ids), decode_s=0.0)  # type: ignore[arg-type]
    return [*made, Delta(id="a", finished=end)]


def reader(
    *, stops: tuple[str, ...] = (), least: int = 0, tools: tuple[Tool, ...] = (), choice: int = 0
) -> ChoiceReader:
    """A reader of one choice."""
    if not tools:
        return ChoiceReader(choice, spelling(), stops=stops, least=least)
    form = Hermes()
    shown = spelling().shown(form.markers)
    return ChoiceReader(choice, spelling(), stops=stops, parser=form.parser(tools, new_id=lambda: "1"), shown=shown)


def read(made: ChoiceReader, pieces: list[Delta]) -> list[Part]:
    """Everything a choice tells, until it is over."""
    parts: list[Part] = []
    for piece in pieces:
        if not made.over:
            parts += made.feed(piece)
    return parts


def said(parts: list[Part]) -> str:
    """The text."""
    return "".join(part.text for part in parts if isinstance(part, Text))


def logprobs(parts: list[Part]) -> list[Logprob]:
    """The log-probabilities."""
    return [one for part in parts if isinstance(part, Text) for one in part.logprobs]


def cut(text: str, stops: tuple[str, ...]) -> str:
    """The text before the stop string that is complete first; of those that end together, the longest."""
    hits = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text if not hits else text[: min(hits)[0] + min(hits)[1]]


words = st.lists(st.sampled_from(["the", " and", "é", "🙂", "x", "stop", "st", "op", "\n", "<end>"]), max_size=12)
sizes = st.lists(st.integers(0, 4), max_size=12)
stops = st.lists(st.sampled_from(["stop", "st", "opx", "🙂", "\n\n", "the and"]), max_size=3, unique=True).map(tuple)


@given(words=words, sizes=sizes, stops=stops, with_logprobs=st.booleans())
def test_the_text_does_not_depend_on_how_it_came(
    words: list[str], sizes: list[int], stops: tuple[str, ...], with_logprobs: bool
) -> None:
    """However tokens are cut, the text is what comes before the first stop string, and it ends once."""
    text = "".join(words)
    parts = read(reader(stops=stops), deltas(tokens(text), sizes, logprobs=with_logprobs))
    spoken = text.replace("<end>", "")
    assert said(parts) == cut(spoken, stops)
    assert [type(part) for part in parts].count(Ended) == 1
    scanner = StopScanner(stops)
    scanner.feed(spoken)
    assert parts[-1] == (Ended("stop") if scanner.hit is None else Ended("stop_string", stop=scanner.hit))


@given(words=words, sizes=sizes, stops=stops)
def test_logprobs_cover_the_tokens_whose_text_was_given(
    words: list[str], sizes: list[int], stops: tuple[str, ...]
) -> None:
    """Each token that begins in the given text is told once and in order; none is that begins in or behind the stop."""
    ids = tokens("".join(words))
    parts = read(reader(stops=stops), deltas(ids, sizes, logprobs=True))
    spellings = [spelling().bytes_of(token) for token in ids]
    begins = [len(b"".join(spellings[:count]).decode(errors="ignore")) for count in range(len(ids))]
    stopped = isinstance(parts[-1], Ended) and parts[-1].reason == "stop_string"
    wanted = [token for token, begin in zip(ids, begins, strict=True) if not stopped or begin < len(said(parts))]
    assert [one.spelling for one in logprobs(parts)] == [spelling().bytes_of(token) for token in wanted]


@given(words=words, sizes=sizes, stops=stops)
def test_logprobs_never_run_ahead_of_the_text(words: list[str], sizes: list[int], stops: tuple[str, ...]) -> None:
    """At any time, what is told of tokens spells no more than the text so far and the one token it breaks off in."""
    made = reader(stops=stops)
    given_text, told = "", b""
    for piece in deltas(tokens("".join(words)), sizes, logprobs=True):
        if made.over:
            break
        parts = made.feed(piece)
        given_text += said(parts)
        for one in logprobs(parts):
            assert len(told.decode(errors="ignore")) <= len(given_text)
            told += one.spelling


def test_rivals_are_spelt_likeliest_first() -> None:
    """A token's rivals are told with it, special ones by their name and without bytes."""
    (a,), (b,), (end,) = tokens("a"), tokens("b"), tokens("<end>")
    told = TokenLogprob(token=a, logprob=-0.5, top=((a, -0.5), (b, -1.5), (end, -3.0)), rank=1)
    parts = reader().feed(Delta(id="a", tokens=(a,), logprobs=(told,)))
    top = (Logprob("a", b"a", -0.5, id=a), Logprob("b", b"b", -1.5, id=b), Logprob("<end>", b"", -3.0, id=end))
    assert parts == [Text("a", logprobs=(Logprob("a", b"a", -0.5, top, id=a, rank=1),))]


CALLED = f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>"


@given(sizes=sizes, with_logprobs=st.booleans())
def test_calls_are_told_apart_from_text(sizes: list[int], with_logprobs: bool) -> None:
    """However tokens are cut, markers are no text, the call is told once, and it is what ended the answer."""
    parts = read(reader(tools=TOOLS, choice=2), deltas(tokens(CALLED), sizes, logprobs=with_logprobs))
    assert said(parts).strip() == "Let me see."
    assert [part for part in parts if isinstance(part, CallBegan)] == [CallBegan(0, "1", "get_time", choice=2)]
    assert "".join(part.text for part in parts if isinstance(part, CallArguments)) == '{"zone": "UTC"}'
    assert parts[-1] == Ended("tool_calls", choice=2)
    assert {part.choice for part in parts} == {2}
    assert len(logprobs(parts)) == (len(tokens(CALLED)) if with_logprobs else 0)


def test_special_tokens_are_shown_to_parsers_only() -> None:
    """Without tools, the markers of a call are not text, and other special tokens never are."""
    plain = read(reader(), deltas(tokens(CALLED + "<end>"), []))
    assert said(plain) == f"Let me see.\n\n{CALL}\n"
    odd = read(reader(tools=TOOLS), deltas(tokens("a<end><tool_call>no call</tool_call>"), []))
    assert said(odd) == "a<tool_call>no call</tool_call>"


@given(sizes=sizes)
def test_a_stop_string_ends_a_call(sizes: list[int]) -> None:
    """Stop strings are found in calls too: what came before it is told, and nothing after it."""
    made = reader(stops=("UTC",), tools=TOOLS)
    parts = read(made, deltas(tokens(CALLED), sizes))
    told = said(parts) + "".join(part.text for part in parts if isinstance(part, CallArguments))
    assert made.over
    assert "UTC" not in told
    assert isinstance(parts[-1], Ended)


@pytest.mark.parametrize(
    ("text", "reason", "stops", "tools", "ended"),
    [
        ("hi", "stop", (), (), Ended("stop")),
        ("hi", "length", (), (), Ended("length")),
        ("hi there", "length", ("th",), (), Ended("stop_string", stop="th")),
        (CALLED, "stop", (), TOOLS, Ended("tool_calls")),
        (CALLED, "length", (), TOOLS, Ended("length")),
        (CALLED + "\nDone", "stop", ("Done",), TOOLS, Ended("tool_calls")),
        ("", "stop", (), (), Ended("stop")),
        ("", "length", (), TOOLS, Ended("length")),
        ("s", "stop", ("stop",), (), Ended("stop")),
    ],
)
def test_why_an_answer_ended(
    text: str, reason: str, stops: tuple[str, ...], tools: tuple[Tool, ...], ended: Ended
) -> None:
    """A stop string comes before the engine's word; a call counts unless the answer was cut off."""
    parts = read(reader(stops=stops, tools=tools), deltas(tokens(text), [1], reason=reason))
    assert parts[-1] == ended
    if text == "s":
        assert said(parts) == "s"


def test_tokens_and_end_in_one_delta() -> None:
    """The last tokens may come with the end."""
    end = Finished(reason="stop", generated=3, projected=2, decode_s=0.0)
    parts = reader().feed(Delta(id="a", tokens=tuple(tokens("hi")), finished=end))
    assert parts == [Text("hi"), Ended("stop")]


def test_half_a_character_is_not_told() -> None:
    """What the end cut in half is left out of the text, but its tokens were there."""
    half = tokens("a🙂")[:-1]
    parts = read(reader(), deltas(half, [], logprobs=True, reason="length"))
    assert said(parts) == "a"
    assert len(logprobs(parts)) == len(half)


@pytest.mark.parametrize(("least", "text"), [(0, ""), (1, "ab"), (2, "ab"), (3, "abab"), (9, "ababab")])
def test_no_stop_is_looked_for_in_the_first_tokens(least: int, text: str) -> None:
    """Stop strings end an answer only in the text after its fewest tokens."""
    made = reader(stops=("a",), least=least)
    assert said(read(made, deltas(tokens("ababab"), [1] * 6))) == text
