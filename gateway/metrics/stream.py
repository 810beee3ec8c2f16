"""Answer tokens as they come: how many, and how long after one another; of relayed answers how many, at their end.

Owns their counts. Rule: how far tokens of a relayed answer lay apart is not said, as servers send several at once. The
engine's are told most often of all, once for each token, so they are plain numbers, added up on the event loop alone
and without locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.shapes import TOKEN_GAP_BUCKETS_S


class Stream(Collector):
    """Counts answer tokens, one by one those of the bundled engine's model."""

    def __init__(self, model: str) -> None:
        """Count from 0."""
        self._model = model
        self.output = 0
        self._relayed: dict[str, int] = {}
        self._gaps = [0] * (len(TOKEN_GAP_BUCKETS_S) + 1)
        self._seconds = 0.0

    def tokens(self, count: int, waited_s: float, *, first: bool) -> None:
        """Count tokens and time them; those that came together shared the wait, and the first ones have no gap."""
        self.output += count
        if not first:
            self._gaps[bisect_left(TOKEN_GAP_BUCKETS_S, waited_s / count)] += count
            self._seconds += waited_s

    def relayed(self, model: str, count: int) -> None:
        """Count the tokens of an answer that an upstream gave; 0 makes the series."""
        self._relayed[model] = self._relayed.get(model, 0) + count

    def describe(self) -> Iterator[Metric]:
        """Return the families, so that nobody else takes their names."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Return both families."""
        tokens = CounterMetricFamily("keepwarm_output_tokens", "Answer tokens.", labels=["model"])
        for model, count in {self._model: 0, **self._relayed}.items():
            tokens.add_metric([model], count + self.output * (model == self._model))
        yield tokens
        yield self.gaps()

    def gaps(self) -> Metric:
        """Return the times between tokens."""
        family = HistogramMetricFamily(
            "keepwarm_inter_token_latency_seconds", "Between one answer token and the next.", labels=["model"]
        )
        edges = (*map(str, TOKEN_GAP_BUCKETS_S), "+Inf")
        buckets = [(edge, float(count)) for edge, count in zip(edges, accumulate(self._gaps), strict=True)]
        family.add_metric([self._model], buckets, self._seconds)
        return family
