"""The metrics pages of several workers as one page. Pure.

Owns what the workers that are gone have counted. Rules: counters and histograms are the sum over every life, those that
are over too, so they never fall; gauges are of the living alone, added up where the table does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Join = Callable[[float, float], float]
Place = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels

LASTING: Final = frozenset({"counter", "histogram"})
JOINED: Final[Mapping[str, Join]] = {  # gauges of which a sum would say nothing
    "keepwarm_build_info": max,
    "keepwarm_state_degraded": max,
    "keepwarm_draining": max,
    "keepwarm_upstream_health": min,  # one worker that finds it unwell is enough to be looked at
    "keepwarm_circuit_state": max,
    "keepwarm_upstream_resident_tokens": max,  # workers know parts of one cache that overlap
}
ONCE: Final = frozenset({"keepwarm_config_reload"})  # every worker does it, and it is told once, by the parent


@dataclass(slots=True)
class _Family:
    """One family's sums. `kind` and `text` are as the first page told them."""

    kind: str
    text: str
    sums: dict[Place, float] = field(default_factory=dict)


_Families = dict[str, _Family]


class Pages:
    """The newest page of every worker, and the counts of those that are gone."""

    def __init__(self) -> None:
        """Begin with no worker."""
        self._living: dict[int, str] = {}
        self._gone: _Families = {}

    def told(self, life: int, page: str) -> None:
        """Hear a worker's newest page."""
        self._living[life] = page

    def ended(self, life: int) -> None:
        """Hear that a worker is no more: what it counted stays, all else goes."""
        page = self._living.pop(life, None)
        if page is not None:
            _join(self._gone, page, only=LASTING, without=ONCE)

    def merged(self, own: str = "") -> bytes:
        """Return the page of all, with the parent's `own`."""
        families: _Families = {}
        _join(families, own)
        for page in self._living.values():
            _join(families, page, without=ONCE)
        for name, gone in self._gone.items():
            _add(families.setdefault(name, _Family(gone.kind, gone.text)), gone.sums, add)
        return generate_latest(_Read(families))


class _Read:
    """What can be written as a page, as a registry can."""

    def __init__(self, families: _Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Return every family."""
        for name, family in self._families.items():
            metric = Metric(name, family.text, family.kind)
            metric.samples = [Sample(place[0], dict(place[1]), value) for place, value in family.sums.items()]
            yield metric


def _join(
    families: _Families, page: str, *, only: frozenset[str] | None = None, without: frozenset[str] = frozenset()
) -> None:
    """Add a page's families of the kinds that are meant to what is known."""
    for metric in text_string_to_metric_families(page):
        if metric.name in without or (only is not None and metric.type not in only):
            continue
        family = families.setdefault(metric.name, _Family(metric.type, metric.documentation))
        join = add if metric.type in LASTING else JOINED.get(metric.name, add)
        _add(family, {(one.name, tuple(one.labels.items())): one.value for one in metric.samples}, join)


def _add(family: _Family, more: Mapping[Place, float], join: Join) -> None:
    for place, value in more.items():
        family.sums[place] = join(family.sums[place], value) if place in family.sums else value
