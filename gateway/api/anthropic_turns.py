"""Anthropic's messages into turns, each mark at its place. Pure.

Rules: consecutive messages of one role are one; texts are joined with nothing between them, so that blocks and the
string they join to are the same prompt; a result is a turn of its own, and the text around it keeps its place; a
result marked as an error begins with `Error: `, since nothing else in a prompt could say so; redacted thinking holds no
text for the model here and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from gateway.api.anthropic_blocks import (
    Block,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
    check_depth,
)
from gateway.api.anthropic_errors import dotted
from gateway.api.anthropic_marks import Marks
from gateway.ask import Role, ToolCall, Turn
from gateway.errors import BadRequest
from gateway.retention import AskedMark

ERROR_PREFIX: Final = "Error: "

Placed = Sequence[tuple[str, Block]]


@dataclass(slots=True)
class _Words:
    """Texts of one turn as they are joined, and the marks behind them."""

    marks: Marks
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    breaks: list[int] = field(default_factory=list)
    asked: list[AskedMark] = field(default_factory=list)
    path: str = ""  # of the message that they begin in

    def add(self, text: str, path: str) -> None:
        self.path = self.path or _message_of(path)
        self.pieces.append(text)
        self.length += len(text)
        if path in self.marks:
            self.breaks.append(self.length)
            self.asked.append(self.marks[path])

    def turn(self, role: Role) -> Turn:
        return Turn(role=role, text="".join(self.pieces), breaks=tuple(self.breaks), path=self.path)


class Conversation:
    """Turns, and the marks in the order in which the turns show them."""

    def __init__(self, marks: Marks) -> None:
        """Begin without turns; `marks` are those of all blocks."""
        self.turns: list[Turn] = []
        self.asked: list[AskedMark] = []
        self._marks = marks
        self._names: dict[str, str] = {}  # of the calls so far, by id

    def add_system(self, content: str | list[TextBlock] | None) -> None:
        """Add the system prompt; an empty one is none."""
        blocks = list(blocks_of(content, "system"))
        if any(isinstance(block, TextBlock) and block.text for _, block in blocks):
            self._add_texts("system", blocks, "text")

    def add_messages(self, messages: Sequence[Message]) -> bool:
        """Add the messages. Return whether the last is one of the assistant's, which the answer goes on from."""
        runs = [
            (role, [placed for at, message in run for placed in blocks_of(message.content, f"messages[{at}].content")])
            for role, run in groupby(enumerate(messages), key=lambda one: one[1].role)
        ]
        for role, blocks in runs:
            if role == "assistant":
                self._add_assistant(blocks)
            elif role == "user":
                self._add_user(blocks)
            else:
                self._add_texts("system", blocks, "text")
        return self._settle_last(len(messages) - 1)

    def _settle_last(self, place: int) -> bool:
        last = self.turns[-1]
        if last.role != "assistant":
            return False
        if last.tool_calls:
            ids = ", ".join(call.id for call in last.tool_calls)
            message = f"`tool_use` ids were found without `tool_result` blocks immediately after: {ids}."
            raise BadRequest(message, param=f"messages[{place}]")
        if last.text or last.thinking:
            return True
        if len(self.turns) == 1:
            raise BadRequest("At least one message must have content.", param="messages")
        self.turns.pop()
        return False

    def _add_texts(self, role: Role, blocks: Placed, allowed: str) -> None:
        words = _Words(self._marks)
        for path, block in blocks:
            if not isinstance(block, TextBlock):
                raise _misplaced(block, path, allowed)
            words.add(block.text, path)
        self._add(words.turn(role), words.asked)

    def _add(self, turn: Turn, asked: list[AskedMark]) -> None:
        self.turns.append(turn)
        self.asked += asked

    def _add_user(self, blocks: Placed) -> None:
        for is_result, run in groupby(blocks, key=lambda placed: isinstance(placed[1], ToolResultBlock)):
            if not is_result:
                self._add_texts("user", list(run), "text and tool_result")
                continue
            for path, block in run:
                if isinstance(block, ToolResultBlock):
                    self._add_result(block, path)
        if not blocks:
            self._add(Turn(role="user", text=""), [])

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        inner = "".join(_texts(block.content))
        words = _Words(self._marks)
        words.add(ERROR_PREFIX + inner if block.is_error else inner, path)
        name = self._names.get(block.tool_use_id)
        self._add(replace(words.turn("tool"), tool_call_id=block.tool_use_id, name=name), words.asked)

    def _add_assistant(self, blocks: Placed) -> None:
        words = _Words(self._marks)
        thinking: list[str] = []
        calls: list[ToolCall] = []
        behind_calls: list[AskedMark] = []
        for path, block in blocks:
            words.path = words.path or _message_of(path)
            match block:
                case TextBlock(text=text):
                    words.add(text, path)
                case ThinkingBlock(thinking=text):
                    thinking.append(text)
                case RedactedThinkingBlock():
                    pass
                case ToolUseBlock():
                    check_depth(block.input, f"{path}.input")
                    marked = path in self._marks
                    calls.append(ToolCall(id=block.id, name=block.name, arguments=block.input, marked=marked))
                    behind_calls += [self._marks[path]] if marked else []
                    self._names[block.id] = block.name
                case ToolResultBlock():
                    raise _misplaced(block, path, "text, thinking and tool_use")
        turn = replace(words.turn("assistant"), thinking="".join(thinking), tool_calls=tuple(calls))
        self._add(turn, [*words.asked, *behind_calls])


def _message_of(path: str) -> str:
    """Return the path of the message, or of the system prompt, that a block is part of."""
    return "system" if path.startswith("system") else dotted(path).partition(".content")[0]


def _texts(content: str | list[TextBlock] | None) -> Iterator[str]:
    blocks: Iterable[tuple[str, Block]] = blocks_of(content, "")
    for _, block in blocks:
        if isinstance(block, TextBlock):
            yield block.text


def _misplaced(block: Block, path: str, allowed: str) -> BadRequest:
    return BadRequest(f"`{block.__struct_config__.tag}` blocks cannot stand here, only {allowed}.", param=path)
