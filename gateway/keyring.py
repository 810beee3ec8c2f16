"""Who a caller is: the keys that operators gave out, and the tenant behind each.

Owns the look-up of a key by its SHA-256. Knows no HTTP beyond the two header values it is given.
Rule: the tenant follows from the key alone, never from anything else a caller sends, and a key is hashed at once:
it is stored nowhere and logged nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.errors import Unauthorized
from prefix_store.classes import NAME_LENGTH, is_name

EVERYBODY: Final = "default"  # the tenant of all callers where no keys are configured
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a request acts for. `key_id` names the key without telling it; None where none is asked for."""

    key_id: str | None
    tenant: str


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[keys]]` entry. Several keys may share a tenant. Raises ValueError for what cannot be one."""

    id: str
    sha256: str  # of the key's bytes, 64 hexadecimal digits
    tenant: str

    def __post_init__(self) -> None:
        """Refuse names that logs and metrics cannot carry, and what is no digest."""
        for field in ("id", "tenant"):
            if not is_name(getattr(self, field)):
                problem = f"{getattr(self, field)!r} is not a name of 1 to {NAME_LENGTH} letters, digits, '.', '_', '-'"
                raise ValueError(f"{field}: {problem}")
        if _SHA256.fullmatch(self.sha256) is None:  # what stands there may be the key itself, so it is not repeated
            raise ValueError('sha256: is not 64 hexadecimal digits; make them with printf %s "$KEY" | sha256sum')

    def __repr__(self) -> str:
        """Show everything but the digest."""
        return f"Key(id={self.id!r}, tenant={self.tenant!r})"


@dataclass(frozen=True, slots=True)
class Keyring:
    """All keys that are accepted. An empty ring asks nobody for a key.

    `open_tenants` are for one developer's machine: on an empty ring a caller may name one of them in place of a key.
    """

    keys: tuple[Key, ...]
    open_tenants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two entries that could not be told apart, and names in place of keys where there are keys."""
        if self.keys and self.open_tenants:
            raise ValueError("open_tenants: names in place of keys go only where no keys are configured")
        for field, spelled in (("id", [key.id for key in self.keys]), ("sha256", [_digits(key) for key in self.keys])):
            counts = Counter(spelled)
            again = [key.id for key, text in zip(self.keys, spelled, strict=True) if counts[text] > 1]
            if again:
                raise ValueError(f"{field}: is the same for the keys {again[0]!r} and {again[1]!r}")

    def identify(self, authorization: str | None, x_api_key: str | None) -> Identity:
        """Tell whose key came in `Authorization: Bearer` or, where that header is absent, in `x-api-key`.

        Every key is compared, in constant time. Raises Unauthorized for a key that is missing or unknown.
        """
        offered = x_api_key if authorization is None else _bearer(authorization)
        if not self.keys:
            named = offered if offered in self.open_tenants else None
            return Identity(key_id=named, tenant=named or EVERYBODY)
        if not offered:
            raise Unauthorized
        digest = hashlib.sha256(offered.encode("utf-8", "surrogateescape")).hexdigest()
        matching = [key for key in self.keys if hmac.compare_digest(digest, _digits(key))]
        if not matching:
            raise Unauthorized
        return Identity(key_id=matching[0].id, tenant=matching[0].tenant)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Every tenant that a caller can be, each once, by name."""
        return tuple(sorted({key.tenant for key in self.keys} or {EVERYBODY, *self.open_tenants}))

    @property
    def ids(self) -> tuple[str, ...]:
        """Every `key_id` that an identity can have, in the order of the configuration."""
        return tuple(key.id for key in self.keys) or self.open_tenants


def _digits(key: Key) -> str:
    return key.sha256.lower()


def _bearer(authorization: str) -> str | None:
    """Return the token of a bearer header, or None for another scheme."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
