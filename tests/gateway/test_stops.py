"""Stop strings over a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stops import StopScanner


def scan(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What is sent for each piece, and whether a stop was hit."""
    scanner = StopScanner(stops)
    sent = []
    for piece in pieces:
        sent.append(scanner.feed(piece))
        if scanner.hit:
            return sent, True
    return [*sent, scanner.finish()], False


PIECES = ["al", "pha", " be", "ta", " gam", "ma", "!"]


def test_stop_over_several_pieces_is_never_sent() -> None:
    """Text that may be the start of a stop waits until it is known."""
    sent, hit = scan(PIECES, ["beta gamma"])
    assert ("".join(sent), hit) == ("alpha ", True)


def test_false_start_is_sent_whole() -> None:
    """What turns out not to be a stop arrives in order, with nothing lost at the end."""
    sent, hit = scan(PIECES, ["beta gammX"])
    assert ("".join(sent), hit) == ("alpha beta gamma!", False)


def test_answer_that_ends_inside_a_stop_keeps_its_tail() -> None:
    """Half a stop at the end of an answer is text."""
    assert "".join(scan(["one tw"], ["two"])[0]) == "one tw"


def test_stop_that_is_a_prefix_of_another_wins() -> None:
    """Of two stops, the one that is complete first ends the answer."""
    assert "".join(scan(["a betaX"], ["beta gamma", "beta"])[0]) == "a "


def test_of_stops_that_end_together_the_longest_counts() -> None:
    """The shorter stop's text before it would belong to the longer one."""
    assert "".join(scan(["see abc"], ["bc", "abc"])[0]) == "see "


def test_only_the_longest_possible_tail_is_held() -> None:
    """Text before the tail that may become a stop goes out at once."""
    assert scan(["x aab"], ["aabb"])[0] == ["x ", "aab"]


def test_no_stops_hold_nothing() -> None:
    """Without stops every piece passes at once."""
    assert scan(["a", "b"], [])[0] == ["a", "b", ""]


def slow(text: str, stops: list[str]) -> str:
    """The slow truth: try every end, cut at the first where some stop ends."""
    for end in range(len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return text


letters = st.text("ab", min_size=1, max_size=5)


@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(letters, min_size=1, max_size=4))
def test_any_cut_gives_the_slow_truth(pieces: list[str], stops: list[str]) -> None:
    """What is sent depends on the text alone, not on where it was cut."""
    sent, _ = scan(pieces, stops)
    assert "".join(sent) == slow("".join(pieces), stops)
