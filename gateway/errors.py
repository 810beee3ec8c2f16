"""What can go wrong in the gateway, and the only place that turns any error into an HTTP status.

GatewayError
├── BadRequest          the caller's: `param` names the field
│   ├── UnknownModel    no such model here
│   ├── NotStored       what it refers to is not kept here
│   ├── Unauthorized    the key is missing or wrong
│   └── Forbidden       nobody may do this from where it came
├── ConfigError         the operator's: a setting cannot work
└── UpstreamError       nobody's here: something behind the gateway
    ├── UpstreamTold    it refused, in its own words: status, message, field and code stay what they were
    ├── UpstreamFailed  it failed: a status of 5xx, no connection, garbage, a stream that was cut
    ├── UpstreamSlow    it did not answer in time
    ├── NoUpstream      none that serves this is well now
    ├── NotSpoken       none that serves this model has this endpoint
    └── Stopping        this gateway is on its way out

Knows no aiohttp and no wire format: it makes a `Problem`, each API module writes it in its own shape.
Rule: an error that the table does not list is our bug, status 500, and its text stays in our log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.errors import EngineUnavailable, ModelRefused, Overloaded, PromptTooLong, QueueTimeout, RequestRefused

CLIENT_LEFT = 499  # for log, metrics and ledger only; nobody is there to read it


class GatewayError(Exception):
    """Root of every error that this package raises on purpose."""


class BadRequest(GatewayError):
    """The request cannot be served as written; `param` is the path of the field that is wrong."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """Say what is wrong, where, and in which word for programs."""
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModel(BadRequest):
    """The model named is not served here."""

    def __init__(self, model: str, served: Collection[str] = ()) -> None:
        """Name the model that was asked for, and those that are `served`, where they are known."""
        there = f" Served are: {', '.join(sorted(served))}." if served else ""
        super().__init__(f"The model {model!r} does not exist here.{there}", param="model", code="model_not_found")


class NotStored(BadRequest):
    """What the request refers to is not kept here, no longer, or not for this tenant."""


class Unauthorized(BadRequest):
    """The key is missing or wrong."""

    def __init__(self) -> None:
        """Say how to send it."""
        super().__init__("Send the right key as 'Authorization: Bearer <key>'.", code="invalid_api_key")


class Forbidden(BadRequest):
    """It came from where nobody may ask for it; `param` is the header that says so."""


class ConfigError(GatewayError):
    """A setting cannot work; the message names it and says what would."""


class UpstreamError(GatewayError):
    """Root of what goes wrong behind the gateway."""


class UpstreamTold(UpstreamError):
    """An upstream's own error."""

    def __init__(self, *, status: int, message: str, kind: str, code: str | None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param = status, kind, code, param
        self.retry_after_s: float | None = None


class UpstreamFailed(UpstreamError):
    """An upstream failed; the message says how, never what it sent."""

    reached = True  # whether it may have worked on the request


class UpstreamUnreached(UpstreamFailed):
    """No connection to it could be made."""

    reached = False


class UpstreamSlow(UpstreamError):
    """An upstream did not answer in time."""


class NoUpstream(UpstreamError):
    """Nobody can serve this now."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotSpoken(UpstreamError):
    """The model is served, but not by this endpoint."""


class Stopping(UpstreamError):
    """This gateway takes nothing new."""

    retry_after_s = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as a client sees it, before a wire format shapes it. `retry_after_s` is whole seconds, at least 1."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: int
    kind: str
    code: str | None = None


INVALID = "invalid_request_error"

VERDICTS: Mapping[type[Exception], _Verdict] = {
    BadRequest: _Verdict(400, INVALID),
    UnknownModel: _Verdict(404, INVALID),
    NotStored: _Verdict(404, INVALID),
    Unauthorized: _Verdict(401, INVALID),
    Forbidden: _Verdict(403, INVALID),
    PromptTooLong: _Verdict(400, INVALID, "context_length_exceeded"),
    RequestRefused: _Verdict(400, INVALID),
    Overloaded: _Verdict(429, "rate_limit_error", "engine_overloaded"),
    QueueTimeout: _Verdict(503, "server_error", "queue_timeout"),
    EngineUnavailable: _Verdict(503, "server_error", "engine_unavailable"),
    ModelRefused: _Verdict(503, "server_error", "model_refused"),
    UpstreamFailed: _Verdict(502, "server_error", "upstream_failed"),
    UpstreamSlow: _Verdict(504, "server_error", "upstream_timeout"),
    NoUpstream: _Verdict(503, "server_error", "no_upstream"),
    NotSpoken: _Verdict(404, INVALID, "endpoint_not_served"),
    Stopping: _Verdict(503, "server_error", "gateway_stopping"),
}

HTTP_CODES: Mapping[int, str | None] = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}

_BUG = _Verdict(500, "server_error", "internal_error")


def problem_of(error: Exception) -> Problem:
    """Translate an error by the nearest class of its ancestry that the table lists."""
    if isinstance(error, UpstreamTold):
        return _passed_on(error)
    verdict = next((VERDICTS[kind] for kind in type(error).__mro__ if kind in VERDICTS), None)
    if verdict is None:
        message = "The gateway failed while serving this request. The x-request-id header finds it in the log."
        return Problem(status=_BUG.status, kind=_BUG.kind, code=_BUG.code, message=message)
    retry_after_s = getattr(error, "retry_after_s", None)
    return Problem(
        status=verdict.status,
        kind=verdict.kind,
        code=verdict.code or getattr(error, "code", None),
        message=str(error),
        param=getattr(error, "param", None) or getattr(error, "field", None) or None,
        retry_after_s=None if retry_after_s is None else max(1, round(retry_after_s)),
    )


def _passed_on(error: UpstreamTold) -> Problem:
    """Tell an upstream's error as it told it. A key of the gateway's that it refuses is not the client's fault."""
    if error.status in {401, 403}:
        message = "The upstream refused the gateway's key."
        return Problem(status=502, kind="server_error", code="upstream_refused_key", message=message)
    kind = INVALID if error.status < 500 else "server_error"  # noqa: PLR2004 - the border between theirs and ours
    return Problem(
        status=error.status,
        kind=error.kind or ("rate_limit_error" if error.status == 429 else kind),  # noqa: PLR2004 - too many
        code=error.code,
        message=str(error),
        param=error.param,
        retry_after_s=None if error.retry_after_s is None else max(1, round(error.retry_after_s)),
    )


def problem_of_status(status: int, message: str) -> Problem:
    """Describe a refusal that the HTTP layer itself made, such as 404 or 413."""
    kind = INVALID if status < 500 else _BUG.kind  # noqa: PLR2004 - the border between theirs and ours
    return Problem(status=status, kind=kind, code=HTTP_CODES.get(status), message=message)
