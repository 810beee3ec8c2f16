"""What it means that an attempt failed: whose fault it is, and whether the next upstream is asked. Pure.

Rule: asking again is safe where the request did not arrive, where the upstream says that it has not begun, and for what
leaves nothing behind.
"""

from __future__ import annotations

from typing import Final

import aiohttp
import structlog

from gateway.errors import GatewayError, UpstreamError, UpstreamFailed, UpstreamSlow, UpstreamTold, UpstreamUnreached
from gateway.relay.call import Call

UNWILLING: Final = frozenset({401, 403, 429, 503, 529})  # it says that it has not begun, whatever was asked
RETRIED: Final = UNWILLING | {500, 502, 504}
NOT_AT_FAULT: Final = frozenset(range(400, 500)) - UNWILLING  # it answers as it should what the client did wrong
LONGEST_WAIT_S: Final = 86_400.0  # that an upstream can ask for

log = structlog.get_logger("gateway.relay")


def meant_by(error: BaseException, name: str) -> UpstreamError | None:
    """Say what an exception means; None: the client left."""
    match error:
        case UpstreamError():
            return error
        case TimeoutError() if not isinstance(error, aiohttp.ConnectionTimeoutError):
            return UpstreamSlow("The upstream did not answer in time.")
        case aiohttp.ClientError() | OSError():
            log.warning("upstream_unreachable", upstream=name, why=type(error).__name__)
            if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
                return UpstreamUnreached("The upstream could not be reached.")
            return UpstreamFailed("The upstream ended the connection.")
        case _:
            return None


def goes_on(call: Call, error: UpstreamError) -> bool:
    """Whether another upstream may be tried."""
    if isinstance(error, UpstreamTold):
        return error.status in (RETRIED if call.repeatable else UNWILLING)
    if isinstance(error, UpstreamSlow):
        return call.repeatable and call.streamed  # a whole answer may be late because it is long
    return isinstance(error, UpstreamFailed) and (call.repeatable or not error.reached)


def at_fault(error: GatewayError) -> bool:
    """Whether it is the upstream that has failed, not the client."""
    return isinstance(error, UpstreamError) and not (isinstance(error, UpstreamTold) and error.status in NOT_AT_FAULT)


def seconds_of(text: str | None) -> float | None:
    """Read a `retry-after` in seconds; what is none says nothing."""
    try:
        seconds = float(text or "nan")
    except ValueError:
        return None
    return max(1.0, seconds) if 0 <= seconds <= LONGEST_WAIT_S else None


def is_dead(error: BaseException) -> bool:
    """Whether nobody is there any more: what was in its memory is gone, even if it comes back."""
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError)
