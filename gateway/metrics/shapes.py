"""What all families of metrics share: edges of histograms, the engine's histograms as samples. Pure.

Rule: edges never depend on what is observed, so that histograms of several gateways can be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.samples import Sample

from engine.operator_messages import SPANS_S, Histo

OVERHEAD_BUCKETS_S: Final = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKEN_GAP_BUCKETS_S: Final = (50e-6, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
WAIT_BUCKETS_S: Final = (
    50e-6,
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.8,
    1.6,
    3.2,
    6.4,
    12.8,
    25.6,
    60.0,
    120.0,
)
LENGTH_BUCKETS_S: Final = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0, 300.0, 600.0)
TOKEN_BUCKETS: Final = tuple(4**power for power in range(14))  # 1, 4, 16 … 67108864


class Page(Protocol):
    """What can be read whole, as a registry can."""

    def collect(self) -> Iterable[Metric]:
        """Return every family."""


class Plain:
    """A registry without the times at which its series were made: half the page, and nobody here asks for them."""

    def __init__(self, registry: Page) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Return every family, made new for this reading."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def spans(name: str, text: str, histo: Histo, labels: Mapping[str, str] | None = None) -> HistogramMetricFamily:
    """Turn one of the engine's histograms into a family; nothing counted yet is all zeros."""
    given = dict(labels or {})
    family = HistogramMetricFamily(name, text, labels=list(given))
    counts = histo.counts or (0,) * (len(SPANS_S) + 1)
    family.add_metric(list(given.values()), buckets(SPANS_S, counts), histo.sum)
    return family


def buckets(edges: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Add up counts, one for each edge and one for what lies beyond the last, as a histogram's buckets."""
    names = (*(str(float(edge)) for edge in edges), "+Inf")
    return [(name, float(count)) for name, count in zip(names, accumulate(counts), strict=True)]


def renamed(source: Metric, name: str, labels: Mapping[str, str], *, keep: tuple[str, ...] = ("le",)) -> Metric:
    """Tell a family once more under another name and other labels, adding up what only other labels told apart."""
    family = Metric(name, source.documentation, source.type)
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in source.samples:
        kept = tuple((label, sample.labels[label]) for label in keep if label in sample.labels)
        suffix = sample.name.removeprefix(source.name)
        sums[suffix, kept] = sums.get((suffix, kept), 0.0) + sample.value
    family.samples = [Sample(name + suffix, {**labels, **dict(kept)}, value) for (suffix, kept), value in sums.items()]
    return family
