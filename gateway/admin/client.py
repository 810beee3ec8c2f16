"""The operators' API seen from a shell: one call, one answer, or one line that says why not.

Knows HTTP and the error envelope; knows no command and no table. Goes straight to the address it is given: a proxy of
the environment must not see the admin key.
Rule: whatever goes wrong on the way is a `CallFailed` whose text a person can act on.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

TIMEOUT_S = 30.0  # a purge of a large tree is one step of the engine

Json = dict[str, Any]


class CallFailed(Exception):
    """The call did not do what it was for. `status` is the answer's, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AdminClient:
    """One gateway's admin listener. Opens a connection per call and keeps none."""

    def __init__(self, url: str, key: str | None) -> None:
        """Take an `http` or `https` address. Raises CallFailed for one that is neither."""
        self.url = url.rstrip("/")
        self._key = key
        try:
            parts = urlsplit(self.url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise CallFailed(f"{url} is no address: {error}") from error
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        if parts.scheme not in kinds or not self._host:
            raise CallFailed(f"{url} is no address such as http://127.0.0.1:8001")
        self._kind, self._base = kinds[parts.scheme], parts.path

    def call(self, method: str, *path: str, query: Mapping[str, object] | None = None, body: object = None) -> Json:
        """Do one call; `path` are the parts after `/admin/v1`. Raises CallFailed."""
        status, answer = self._ask(method, path, query, body)
        read = self._object(status, answer)
        if status != http.client.OK:
            raise CallFailed(_reason(status, read), status=status)
        return read

    def text(self, *path: str, query: Mapping[str, object]) -> str:
        """Get an answer that is no JSON. Raises CallFailed."""
        status, answer = self._ask("GET", path, query, None)
        if status != http.client.OK:
            raise CallFailed(_reason(status, self._object(status, answer)), status=status)
        return answer.decode("utf-8", "replace")

    def _object(self, status: int, answer: bytes) -> Json:
        try:
            read: object = msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            read = None
        if not isinstance(read, dict):
            raise CallFailed(f"{self.url} answers, but not as Keepwarm's admin port (HTTP {status})", status=status)
        return read

    def _ask(
        self, method: str, path: tuple[str, ...], query: Mapping[str, object] | None, body: object
    ) -> tuple[int, bytes]:
        given = {key: value for key, value in (query or {}).items() if value is not None}
        try:
            target = "/".join([f"{self._base}/admin/v1", *(quote(part, safe="") for part in path)])
            target += f"?{urlencode(given)}" if given else ""
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError as error:  # bytes of a command line that are no UTF-8
            raise CallFailed(f"{error.object!r} is not text") from error
        return self._send(method, target, content)

    def _send(self, method: str, target: str, content: bytes | None) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if content is not None:
            headers["Content-Type"] = "application/json"
        assert self._host is not None, "checked at the start"
        connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, body=content, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            hint = "is the gateway running? --admin-url names another"
            raise CallFailed(f"no answer from {self.url} ({str(error) or type(error).__name__}): {hint}") from error
        except ValueError as error:  # a key with a line break
            raise CallFailed("KEEPWARM_ADMIN_KEY cannot be sent: it holds characters no header may hold") from error
        finally:
            connection.close()


def _reason(status: int, answer: Json) -> str:
    if status == http.client.UNAUTHORIZED:
        return "the admin port asks for a key: set KEEPWARM_ADMIN_KEY to the gateway's"
    error = answer.get("error")
    if not isinstance(error, dict):
        return f"the gateway refused (HTTP {status})"
    message, allowed = str(error.get("message") or f"HTTP {status}"), error.get("allowed")
    return " ".join(f"{message}; allowed: {allowed}".split() if allowed else message.split())
