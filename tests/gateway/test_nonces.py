"""Telemetry in system text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.nonces import RULES, normalise, normalise_with_breaks

LINE = "x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=fa690;"
RULE = "claude-code-billing"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_billing_line_is_dropped(end: str) -> None:
    """Claude Code's first line goes, and the rule that took it is named."""
    assert normalise(LINE + end) == ("", (RULE,))


def test_other_text_of_the_block_stays() -> None:
    """All that follows the line is kept, letter for letter, blank lines too."""
    assert normalise(f"{LINE}\n\nYou are Claude Code.\n") == ("\nYou are Claude Code.\n", (RULE,))


def test_two_requests_become_one_prompt() -> None:
    """Texts that differ only in the nonce are equal afterwards."""
    other = LINE.replace("fa690", "00e1c").replace("3a3", "b2c")
    assert normalise(f"{LINE}\nBe brief.")[0] == normalise(f"{other} cc_workload=cron;\nBe brief.")[0] == "Be brief."


def test_a_line_without_a_nonce_goes_by_its_version() -> None:
    """Sent to another server than Anthropic's, the line has no `cch`, but a version that depends on the question."""
    lines = [f"x-anthropic-billing-header: cc_version=2.1.197.{end}; cc_entrypoint=sdk-cli;" for end in ("123", "2a3")]
    assert [normalise(f"{line}You are.") for line in lines] == [("You are.", (RULE,))] * 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You are helpful.",
        f" {LINE}\nx",
        f"Note:\n{LINE}\nx",
        "x-anthropic-billing-header: cc_version=2.1;\nx",
        "x-anthropic-billing-header: cch=xyz;\nx",
        f"`{LINE}`",
    ],
)
def test_other_text_is_not_touched(text: str) -> None:
    """The line counts only at the very start; any other text comes back as the same object."""
    kept, names = normalise(text)
    assert kept is text
    assert names == ()


def test_marks_move_along() -> None:
    """A mark stays behind the same letter; one inside or right behind the line stands at the start."""
    text = f"{LINE}\nYou are."
    start = len(LINE) + 1
    marks = (len(LINE), start, start + 3, len(text))
    assert normalise_with_breaks(text, marks) == ("You are.", (0, 0, 3, 8), (RULE,))


def test_marks_of_other_text_stay() -> None:
    """Where nothing is dropped, nothing moves."""
    assert normalise_with_breaks("You are.", (3, 8)) == ("You are.", (3, 8), ())


@given(st.lists(st.sampled_from([LINE, "\n", " ", "cch=1;", "x-anthropic-billing-header:", "Hi"]), max_size=8))
def test_a_second_time_changes_nothing(parts: list[str]) -> None:
    """What was normalised is normal."""
    once, _ = normalise("".join(parts))
    assert normalise(once) == (once, ())


def test_rules_are_told() -> None:
    """Each rule has a name of its own, and says where it applies and why."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.where and rule.why for rule in RULES)
