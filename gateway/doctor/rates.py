"""How often an application asks, such as `1000/h`. Pure."""

from __future__ import annotations

import re
from typing import Final

from gateway.doctor.errors import Unusable

_A_DAY: Final = {"s": 86_400, "m": 1440, "h": 24, "d": 1}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(?:s|m|h|d)")


def per_day(rate: str) -> float:
    """Return requests a day. Raises Unusable."""
    found = _RATE.fullmatch(rate.strip())
    if found is None:
        raise Unusable(f"--rate {rate}: write requests per second, minute, hour or day, such as 5/s, 40/m or 1000/h")
    return float(found[1]) * _A_DAY[rate.strip()[-1]]
