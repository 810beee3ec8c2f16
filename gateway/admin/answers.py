"""What the operators' endpoints have in common: how a refusal is told, and who is acting.

Rule: whatever an operator can put right has a status and, by its name, the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

from engine.errors import EngineUnavailable
from gateway.admin.shapes import AdminRefused
from gateway.errors import GatewayError
from prefix_store.classes import NAME_LENGTH, is_name
from prefix_store.policy import PolicyRefused
from prefix_store.store import Json, StoreUnavailable, UnknownPolicy, VersionConflict

OPERATOR: Final = "admin"  # who, in the audit trail: whoever may reach the admin port
OPERATOR_HEADER: Final = "X-Operator"


class Unanswered(GatewayError):
    """Whoever was to do it did not answer."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NotRemembered(GatewayError):
    """What was asked for is not, or no longer, remembered; `field` names what it was asked by."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


def told(handler: Handler) -> Handler:
    """Turn what an operator can put right into a status and an error that names the field."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except PolicyRefused as error:
            where = f"{error.field}: " if error.field else ""
            return _error(400, f"{where}{error.problem}", field=error.field, allowed=error.allowed)
        except AdminRefused as error:
            return _error(400, str(error), field=error.field, allowed=error.allowed)
        except (UnknownPolicy, NotRemembered) as error:
            return _error(404, str(error), field="name" if isinstance(error, UnknownPolicy) else error.field)
        except VersionConflict as error:
            return _error(409, str(error), field="version", version=error.actual)
        except (StoreUnavailable, EngineUnavailable, Unanswered) as error:
            return _error(503, str(error), headers={"Retry-After": "1"})

    return answer


def operator_of(request: web.Request) -> str:
    """Return who is acting: the name in X-Operator, else `admin`. It is taken on trust. Raises AdminRefused."""
    name = request.headers.get(OPERATOR_HEADER)
    if name is None:
        return OPERATOR
    if not is_name(name):
        fits = f"1 to {NAME_LENGTH} letters, digits, '.', '_', '-'"
        raise AdminRefused(f"{OPERATOR_HEADER}: is no name", field=OPERATOR_HEADER, allowed=fits)
    return name


def json_answer(said: object) -> web.Response:
    """Answer with JSON; what is no number becomes null."""
    return web.Response(body=msgspec.json.encode(said), content_type="application/json")


def _error(
    status: int,
    message: str,
    *,
    field: str = "",
    allowed: str = "",
    version: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> web.Response:
    said: Json = {"message": message, "field": field or None, "allowed": allowed or None}
    if version is not None:
        said["version"] = version
    return web.json_response({"error": said}, status=status, headers=headers)
