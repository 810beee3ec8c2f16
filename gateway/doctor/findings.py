"""What the doctor found at one place of one request. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that keeps a prefix from being read, or may: an `error` is what CI should stop at."""

    level: Level
    kind: str  # `time`, `date`, …: what the text looks like; `order`, `tools`, `nonce`, `marks`
    where: str  # path in the body
    says: str
    advice: str
    character: int | None = None  # within the text at the path
    token: int | None = None  # from which on the prompt is another
    tokens: int = 0  # behind that place
    excerpt: str = ""
