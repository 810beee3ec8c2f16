"""Which headers cross: rebuilt on both ways, never copied whole. Pure.

Rules: hop-by-hop headers end here (RFC 9110, section 7.6.1), those that `Connection` names too; a client's credentials,
cookies and addresses never reach an upstream, an upstream's cookies and lengths never reach a client. What is not
listed does not cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

UP: Final = ("accept", "accept-language", "user-agent", "traceparent", "tracestate", "idempotency-key")
UP_PREFIXES: Final = ("anthropic-", "openai-", "x-stainless-")
UP_NEVER: Final = frozenset({"anthropic-dangerous-direct-browser-access", "openai-organization", "openai-project"})

DOWN: Final = ("content-type", "retry-after", "cache-control", "openai-processing-ms", "openai-version")
DOWN_PREFIXES: Final = ("x-ratelimit-", "anthropic-ratelimit-")


def upward(given: Mapping[str, str], *, request_id: str, credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that go to an upstream. `credentials` are the upstream's own."""
    named = _connection(given)
    return {
        **_joined(
            (name, value)
            for name, value in _lines(given)
            if name not in named and name not in UP_NEVER and _crosses(name, UP, UP_PREFIXES)
        ),
        "content-type": "application/json",
        "accept-encoding": "identity",  # events are read beside, and a first byte must not wait for a compressor
        "x-request-id": request_id,
        **credentials,
    }


def downward(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an upstream's answer that a client gets."""
    named = _connection(given)
    return _joined(
        (name, value) for name, value in _lines(given) if name not in named and _crosses(name, DOWN, DOWN_PREFIXES)
    )


def _crosses(name: str, listed: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    return name in listed or name.startswith(prefixes)


def _connection(given: Mapping[str, str]) -> set[str]:
    """Return the headers that the sender meant for its neighbour alone."""
    return {one.strip().lower() for name, value in _lines(given) if name == "connection" for one in value.split(",")}


def _lines(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every header line; a name may come more than once."""
    for name, value in given.items():
        yield name.lower(), value


def _joined(lines: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Make one line of those that share a name (RFC 9110, section 5.3)."""
    headers: dict[str, str] = {}
    for name, value in lines:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
