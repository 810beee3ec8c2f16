"""Where facts are hidden, among what, and beside which other answers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gateway.evaluation.errors import Unmeasurable
from gateway.evaluation.haystack import LONGEST_PIECE, TOWNS, Fact, candidates, facts, filler, laid, pieces
from gateway.evaluation.prompts import ANSWER_TOKENS, BEFORE, Prompts
from gateway.evaluation.reading import MOST_BYTES, read_text, stretches
from gateway.evaluation.wanted import MOST_FACTS
from gateway.prompt import Renderer
from tests.tiny_model import CHATML, save_tiny_tokenizer

PROSE = ("The sea is calm.", "A gull cries twice.", "Rain comes from the west.")


def prompts(folder: Path, template: str | None = CHATML) -> Prompts:
    """The prompts of the tiny tokenizer, which has a token a byte."""
    save_tiny_tokenizer(folder, template)
    return Prompts(Renderer.load(folder, template=""))


def test_facts_stand_after_the_piece_nearest_to_their_depth():
    """0 is before all prose, 1 after it, a half after the half of its tokens, and of two equal places the earlier."""
    drawn = [("a", 10), ("b", 30), ("c", 40), ("d", 20)]
    hidden = [Fact("Oslo", "11111", 0.0), Fact("Riga", "22222", 0.25), Fact("Lima", "33333", 0.5)]
    text = laid(drawn, [*hidden, Fact("Cork", "44444", 1.0)])
    oslo, riga, lima, cork = (
        f"The pass number of {town} is #{number}."
        for town, number in (("Oslo", "11111"), ("Riga", "22222"), ("Lima", "33333"), ("Cork", "44444"))
    )
    assert text == f"{oslo} a {riga} b {lima} c d {cork}"


def test_facts_are_drawn_alike_for_equal_seeds():
    """Equal seeds draw equal towns and numbers, as many at each depth, and none twice."""
    drawn = facts((0.0, 0.5, 1.0), 20, Random(3))
    assert drawn == facts((0.0, 0.5, 1.0), 20, Random(3)) != facts((0.0, 0.5, 1.0), 20, Random(4))
    assert [fact.depth for fact in drawn] == [0.0] * 20 + [0.5] * 20 + [1.0] * 20
    assert len({fact.town for fact in drawn}) == len({fact.number for fact in drawn}) == 60
    assert {len(fact.number) for fact in drawn} == {5}


def test_there_are_towns_for_all_facts():
    """As many facts as are allowed have a town each."""
    assert len(TOWNS) == len(set(TOWNS)) >= MOST_FACTS


@pytest.mark.parametrize("count", [1, 3, 25])
def test_wrong_candidates_are_the_other_facts_first(count):
    """The right number leads ten different ones, the others of the prose before any that stands nowhere in it."""
    hidden = facts((0.5,), count, Random(0))
    given = candidates(hidden[0], hidden, 10, Random(1))
    assert given[0] == hidden[0].number
    assert len(set(given)) == 10
    assert len({fact.number for fact in hidden} & set(given)) == min(count, 10)


def test_a_text_is_cut_into_sentences():
    """Headings go, lines are joined, sentences of any script part, and what is too long is cut at its blanks."""
    assert pieces("# Tides\nThe sea\nis calm. Is it? 海静。\n\nYes;") == (
        "The sea is calm.",
        "Is it?",
        "海静。",
        "Yes;",
    )
    long = pieces("word " * 200)
    assert " ".join(long) == ("word " * 200).strip()
    assert max(map(len, long)) <= LONGEST_PIECE
    assert pieces("x" * 500) == ("x" * LONGEST_PIECE, "x" * LONGEST_PIECE, "x" * 20)


def test_prose_is_drawn_to_the_room_that_there_is():
    """Pieces come in drawn order, again once all are used, and leave less room than the shortest would take."""
    drawn = filler(PROSE, len, 500, Random(0))
    assert drawn == filler(PROSE, len, 500, Random(0))
    assert 500 - len("The sea is calm.") < sum(size for _, size in drawn) <= 500
    assert {piece for piece, _ in drawn[:3]} == set(PROSE)
    assert filler(PROSE, len, 10, Random(0)) == []


@pytest.mark.parametrize("template", [CHATML, None])
def test_a_question_fits_its_length_and_shares_its_haystack(tmp_path, template):
    """Each prompt with its answer has at most the tokens asked for, and not a sentence less; all begin alike."""
    made = prompts(tmp_path, template)
    assert made.templated == (template is not None)
    questions = made.questions(1500, PROSE, depths=(0.0, 0.5, 1.0), each=2, seed=0)
    sizes = [len(question.tokens) // 4 for question in questions]
    assert len(questions) == 6
    assert 1500 - ANSWER_TOKENS - 2 * len(PROSE[2]) < max(sizes) <= 1500 - ANSWER_TOKENS
    spelt = [made._renderer.spell(question.tokens) for question in questions]
    assert all(text.endswith(question.fact.opening) for text, question in zip(spelt, questions, strict=True))
    before = spelt[0].partition("What is the pass number")[0]
    assert all(text.startswith(before) for text in spelt)
    assert all(before.count(question.fact.sentence) == 1 for question in questions)
    assert before.startswith("user\n" + BEFORE if template else BEFORE)


def test_a_template_that_no_answer_goes_on_from_is_left_out(tmp_path):
    """Where the template does not write the last message, questions are asked as plain text."""
    made = prompts(tmp_path, "{{ messages[0]['content'] }}<|im_end|>")
    assert not made.templated
    (question,) = made.questions(600, PROSE, depths=(0.5,), each=1, seed=0)
    assert made._renderer.spell(question.tokens).startswith(BEFORE)


def test_facts_that_do_not_fit_are_refused_with_what_would_do(tmp_path):
    """The refusal names the option and a length, and with that length it works."""
    made = prompts(tmp_path)
    with pytest.raises(Unmeasurable, match=r"--lengths: 200 tokens do not hold 4 facts") as refusal:
        made.questions(200, PROSE, depths=(0.0, 1.0), each=2, seed=0)
    least = int(str(refusal.value).partition("give ")[2].split()[0])
    assert len(made.questions(least + 20, PROSE, depths=(0.0, 1.0), each=2, seed=0)) == 4


def test_a_window_slides_so_that_each_token_is_told_once():
    """Windows overlap by half, the told parts are disjoint and whole, and each has half a window before it."""
    assert list(stretches(100, 100)) == [(0, 100, 0)]
    assert list(stretches(101, 100)) == [(0, 100, 0), (50, 101, 100)]
    assert list(stretches(230, 100)) == [(0, 100, 0), (50, 150, 100), (100, 200, 150), (150, 230, 200)]
    assert list(stretches(0, 100)) == []
    for tokens, width in ((17, 1), (17, 3), (1000, 64)):
        told = [place for start, end, first in stretches(tokens, width) for place in range(first, end)]
        assert told == list(range(tokens))
        assert all(end - start <= width for start, end, _ in stretches(tokens, width))


def test_a_long_file_is_read_as_far_as_it_goes(tmp_path):
    """Only its first bytes are read, to a whole letter; a mark of byte order is no text."""
    file = tmp_path / "long.txt"
    file.write_text("\ufeff" + "ä" * MOST_BYTES, encoding="utf-8")
    name, text = read_text(file)
    assert (name, set(text), len(text)) == ("long.txt", {"ä"}, (MOST_BYTES - 3) // 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"", "holds no text"), (b" \n", "holds no text"), (b"\xff\xfe", "no UTF-8 text")],
)
def test_a_text_that_is_none_is_refused(tmp_path, content, said):
    """The refusal names the option, the file and what is wrong with it."""
    file = tmp_path / "text"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Unmeasurable, match=rf"^--text {file}: .*{said}"):
        read_text(file)
