"""What operators decide: policies, their checks, and which one governs a request.

Owns: the meaning and the JSON form of a policy, and the choice of the most specific one. Knows no storage, no
clock and no HTTP.
Rule: a `Policy` that exists is valid on its own and a `PolicySet` that exists is valid as a whole; whatever is
wrong is refused before, naming the field and what it allows, and changes nothing.

PolicyRefused               the operator's: what was written cannot be a policy
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn

import msgspec

from prefix_store.classes import CLASSES, NAME_LENGTH, RetentionClasses, is_name, nearest
from prefix_store.retention import parse_duration

Selector = tuple[str | None, str | None]  # model, tenant; None means any

DEFAULT = "default"
ALLOWED: Mapping[str, str] = {
    "name": f"1 to {NAME_LENGTH} letters, digits, '.', '_' or '-'",
    "model": "a model's name, or null for any",
    "tenant": "a tenant's name, or null for any",
    "default_ttl": 'a duration such as "5m" up to max_ttl, or null to keep no unmarked prefix',
    "allowed_ttls": 'a list of durations such as ["5m", "1h"]',
    "max_ttl": 'a duration above zero such as "24h"',
    "mode": '"sliding" or "fixed"',
    "min_tokens": "a whole number from 0",
    "promise_budget": "a share of the pool from 0 to 1",
    "pool_share": "a share of the pool from 0 to 1",
    "priority": "a whole number from 0 to 100",
    "version": "the whole number that reading the policy gave, 0 for a new one",
}
_AT_FIELD = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<field>\w*).*`)?$", re.DOTALL)


class PolicyRefused(ValueError):
    """A policy that cannot be taken: `field` is the part that is wrong ("" for the whole), `allowed` what fits it."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem, self.allowed = field, problem, ALLOWED.get(field, "")
        where = f"{field}: " if field else ""
        super().__init__(f"{where}{problem}" + (f"; allowed: {self.allowed}" if self.allowed else ""))


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator's decision; its JSON form is exactly these fields, and what is read can be written back.

    Durations are text. `allowed_ttls` binds clients only: `default_ttl` may be a length no client may ask for, and
    an allowed length above `max_ttl` is out of reach until the ceiling rises. `version` counts this policy's
    changes; 0 has never been stored.
    """

    name: str
    model: str | None = None
    tenant: str | None = None
    default_ttl: str | None = "5m"
    allowed_ttls: tuple[str, ...] = CLASSES.durations()
    max_ttl: str = "24h"
    mode: Literal["sliding", "fixed"] = "sliding"
    min_tokens: int = 16  # tokens; one block of the usual size
    promise_budget: float = 0.5  # share of the pool that promises may hold
    pool_share: float = 1.0  # share of the pool beyond which this tenant's entries go first
    priority: int = 50  # 0 to 100, higher stays longer
    version: int = 0

    def __post_init__(self) -> None:
        """Refuse values that have the right type and no sense."""
        if not is_name(self.name):
            raise PolicyRefused("name", f"{self.name!r} is not a name")
        for field in ("model", "tenant"):
            if getattr(self, field) == "":
                raise PolicyRefused(field, "is empty")
        if self.name == DEFAULT and self.selector != (None, None):
            wrong = "model" if self.model is not None else "tenant"
            raise PolicyRefused(wrong, f"the policy {DEFAULT!r} governs every model and tenant; leave it null")
        _check_numbers(self)
        _check_durations(self)

    @property
    def selector(self) -> Selector:
        """What the policy applies to: (model, tenant), None for any."""
        return self.model, self.tenant

    @property
    def default_s(self) -> float | None:
        """Seconds an unmarked prefix is held, or None when it is not kept."""
        return None if self.default_ttl is None else parse_duration(self.default_ttl)

    @property
    def max_s(self) -> float:
        """Seconds nothing under this policy outlasts without being renewed."""
        return parse_duration(self.max_ttl)

    @property
    def allowed_s(self) -> tuple[float, ...]:
        """Seconds that clients may ask for, shortest first; those above the ceiling are left out."""
        return tuple(sorted(s for s in map(parse_duration, self.allowed_ttls) if s <= self.max_s))


def _check_numbers(policy: Policy) -> None:
    """Refuse a number outside its range; NaN is outside every range."""
    for field in ("promise_budget", "pool_share"):
        share: float = getattr(policy, field)
        if not 0.0 <= share <= 1.0:
            raise PolicyRefused(field, f"{share!r} is not a share")
    if not 0 <= policy.priority <= 100:  # noqa: PLR2004 - the range is the definition
        raise PolicyRefused("priority", f"{policy.priority} is out of range")
    for field in ("min_tokens", "version"):
        if getattr(policy, field) < 0:
            raise PolicyRefused(field, f"{getattr(policy, field)} is negative")


def _check_durations(policy: Policy) -> None:
    """Refuse a length that is no duration above zero, and a default above the ceiling."""
    texts = [("max_ttl", policy.max_ttl), *(("allowed_ttls", text) for text in policy.allowed_ttls)]
    if policy.default_ttl is not None:
        texts.append(("default_ttl", policy.default_ttl))
    for field, text in texts:
        try:
            parse_duration(text)
        except ValueError as error:
            raise PolicyRefused(field, str(error)) from error
    if policy.default_s is not None and policy.default_s > policy.max_s:
        raise PolicyRefused("default_ttl", f"{policy.default_ttl!r} is above max_ttl {policy.max_ttl!r}")


def default_policy(*, block_tokens: int = 16, classes: RetentionClasses = CLASSES, default_ttl: str = "5m") -> Policy:
    """Return the policy `default` as it stands before anyone changed it: version 0, one block as the minimum."""
    return Policy(
        name=DEFAULT, min_tokens=block_tokens, allowed_ttls=classes.durations(), default_ttl=classes.spell(default_ttl)
    )


def decode_policy(body: bytes, *, name: str | None = None, classes: RetentionClasses = CLASSES) -> Policy:
    """Return the policy that a JSON body spells; see `parse_policy`."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise PolicyRefused("", f"the policy is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise PolicyRefused("", "the policy is not a JSON object")
    return parse_policy(fields, name=name, classes=classes)


def parse_policy(
    fields: Mapping[str, object], *, name: str | None = None, classes: RetentionClasses = CLASSES
) -> Policy:
    """Return the policy that these fields (of JSON or of a configuration file) spell.

    `name` is the one in the address or the table's head: it completes the fields and must not contradict them. A
    class name stands for its duration. Absent fields take their defaults. Raises PolicyRefused.
    """
    known = Policy.__struct_fields__
    for key in fields:
        if key not in known:
            guess = nearest(key, known)
            hint = f"did you mean {guess!r}?" if guess else f"the fields are {', '.join(known)}"
            raise PolicyRefused(key, f"is not a field of a policy; {hint}")
    given = dict(fields)
    if name is not None and given.setdefault("name", name) != name:
        raise PolicyRefused("name", f"{given['name']!r} is not the {name!r} that is addressed")
    if "name" not in given:
        raise PolicyRefused("name", "is missing")
    try:
        return msgspec.convert(_spelled(given, classes), Policy)
    except msgspec.ValidationError as error:
        _refuse(error)


def _spelled(fields: dict[str, object], classes: RetentionClasses) -> dict[str, object]:
    """Return the fields with class names replaced by durations; what is not text is left for the type check."""

    def spell(value: object) -> object:
        return classes.spell(value) if isinstance(value, str) else value

    durations: dict[str, object] = {key: spell(fields[key]) for key in ("default_ttl", "max_ttl") if key in fields}
    allowed = fields.get("allowed_ttls")
    if isinstance(allowed, list | tuple):
        durations["allowed_ttls"] = [spell(value) for value in allowed]
    return fields | durations


def _refuse(error: msgspec.ValidationError) -> NoReturn:
    """Raise the refusal inside a conversion error: our own where a value was refused, else one about its type."""
    if isinstance(error.__cause__, PolicyRefused):
        raise error.__cause__
    match = _AT_FIELD.match(str(error))
    assert match is not None, "the pattern takes any text"
    raise PolicyRefused(match["field"] or "", match["problem"]) from error


class PolicySet:
    """All policies at one moment, immutable. The most specific wins: model and tenant, tenant, model, `default`."""

    __slots__ = ("_by_name", "_by_selector")

    def __init__(self, policies: Mapping[str, Policy] | tuple[Policy, ...], *, built_in: Policy | None = None) -> None:
        """Take the stored policies; `built_in` stands in for a `default` that was never stored."""
        stored = policies.values() if isinstance(policies, Mapping) else policies
        first = built_in or default_policy()
        self._by_name: dict[str, Policy] = {first.name: first}
        self._by_name.update((policy.name, policy) for policy in stored)
        self._by_selector: dict[Selector, Policy] = {}
        for policy in self:
            holder = self._by_selector.setdefault(policy.selector, policy)
            if holder is not policy:
                field = "model" if policy.tenant is None else "tenant"
                raise PolicyRefused(field, f"{policy.name!r} would govern the same requests as {holder.name!r}")

    def __iter__(self) -> Iterator[Policy]:
        """Go over the policies, `default` first, then by name."""
        return iter(sorted(self._by_name.values(), key=lambda policy: (policy.name != DEFAULT, policy.name)))

    def __len__(self) -> int:
        """Return how many policies there are, `default` included."""
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same policies at the same versions."""
        return isinstance(other, PolicySet) and self._by_name == other._by_name

    def __hash__(self) -> int:
        """Hash the policies in their order."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Show names and versions."""
        return f"PolicySet({', '.join(f'{policy.name}@{policy.version}' for policy in self)})"

    def get(self, name: str) -> Policy | None:
        """Return the policy of that name."""
        return self._by_name.get(name)

    def govern(self, *, model: str, tenant: str) -> Policy:
        """Return the policy of a tenant's request to a model. O(1)."""
        for selector in ((model, tenant), (None, tenant), (model, None)):
            policy = self._by_selector.get(selector)
            if policy is not None:
                return policy
        return self._by_name[DEFAULT]

    def adding(self, policy: Policy) -> PolicySet:
        """Return the set with this policy new or in place of its namesake; raise PolicyRefused if two would clash."""
        return PolicySet(self._by_name | {policy.name: policy})

    def removing(self, name: str) -> PolicySet:
        """Return the set without that policy; raise PolicyRefused for `default`, KeyError for an unknown one."""
        if name == DEFAULT:
            raise PolicyRefused("name", f"the policy {DEFAULT!r} always exists; change it instead")
        rest: dict[str, Any] = dict(self._by_name)
        del rest[name]
        return PolicySet(rest)
