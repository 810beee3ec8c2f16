"""What to do about a broken prefix. Pure: words for reasons and looks."""

from __future__ import annotations

from typing import Final

_BY_LOOK: Final = {
    "time": "Move the time behind everything that stays: into the newest user message. If it must stand in front, "
    "cut it to the day.",
    "date": "Move the date into the newest user message, or expect a miss at each midnight.",
    "uuid": "Take the UUID out of the prompt, or move it into the newest user message; send it as metadata instead.",
    "counter": "Take the counter out of the prompt, or move it into the newest user message.",
    "hash": "Take the nonce or digest out of the prompt, or move it behind everything that stays.",
    "signed_url": "Sign the URL once and keep it, or send the content itself: a new signature is a new prompt.",
    "number": "Move the number that changes behind everything that stays.",
    "white_space": "Build the text in one way: the same line breaks, blanks and trimming in every request.",
    "shuffled_list": "Sort the tools by name before you send them; maps and sets have no order.",
    "rewritten_summary": "Compact seldom and by much: each new summary is a new prompt from there on.",
}
_BY_REASON: Final = {
    "model": "Another model shares nothing with the one before: keep one conversation on one model.",
    "tools": "Send the same tools in each request of a conversation and say with tool_choice which may be called.",
    "system": "Keep the system text as it is and put what changes into the newest user message.",
    "messages": "Only append to the history; put what stays before what changes.",
    "template": "The model's chat template writes this turn otherwise once it is history: use one that does not.",
    "retokenised": "Send the answer back as it was given; nothing else can be done on this side.",
}


def advise(reason: str, looks_like: str) -> str:
    """Say what to do about a change for `reason` of text that looks so."""
    if reason in {"model", "template", "retokenised"}:
        return _BY_REASON[reason]
    return _BY_LOOK.get(looks_like) or _BY_REASON.get(reason, "")
