"""PromQL over two scrapes: as much of it as boards and alert rules use.

Parses with the grammar of Prometheus (`promql-parser`) and evaluates as Prometheus does over a window that begins with
the first scrape and ends with the second, so that every range is that window and nothing is extrapolated. What is not
known here is refused, not guessed.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
NAME: Final = "__name__"

ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else math.copysign(math.inf, left) if left else math.nan,
}
COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
SETS: Final = {"and", "or", "unless"}
AGGREGATIONS: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
    "count": len,
}


def read(page: str, **target: str) -> Vector:
    """Read a metrics page, with the labels that Prometheus puts to each series of a target."""
    return {
        frozenset({NAME: sample.name, **sample.labels, **target}.items()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    } | {frozenset({NAME: "up", **target}.items()): 1.0}


def parsed(query: str) -> Any:
    """Parse a query of a board, with Grafana's variables filled in: every value, a window of a minute."""
    query = re.sub(r"\$__(rate_interval|range|interval)", "1m", query)
    return promql.parse(re.sub(r"\$\w+", ".*", query))


def selectors(expression: Any) -> list[Any]:
    """Return every selector of series, those with a range too."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(expression, visit)
    return found


def operands(expression: Any) -> Iterator[Any]:
    """Yield what a query compares or joins, so that each side can be looked at though the whole is silent."""
    while isinstance(expression, promql.ParenExpr):
        expression = expression.expr
    if isinstance(expression, promql.BinaryExpr) and str(expression.op) in {*COMPARISONS, *SETS}:
        yield from operands(expression.lhs)
        yield from operands(expression.rhs)
    else:
        yield expression


@dataclass(frozen=True, slots=True)
class Window:
    """Two scrapes, `seconds` apart."""

    first: Vector
    last: Vector
    seconds: float

    def matching(self, selector: Any) -> list[Labels]:
        """Return the series that are live in the last scrape and match."""
        if selector.matchers.or_matchers:
            raise NotImplementedError(str(selector))
        tests = [(matcher.name, str(matcher.op), matcher.value) for matcher in selector.matchers.matchers]
        if selector.name:
            tests.append((NAME, "MatchOp.Equal", selector.name))
        return [labels for labels in self.last if all(_matches(dict(labels), *test) for test in tests)]

    def value(self, expression: Any) -> Vector | float:
        """Evaluate."""
        match expression:
            case promql.ParenExpr():
                return self.value(expression.expr)
            case promql.NumberLiteral():
                return float(expression.val)
            case promql.VectorSelector():
                return {labels: self.last[labels] for labels in self.matching(expression)}
            case promql.AggregateExpr():
                return self._aggregated(expression)
            case promql.Call():
                return self._called(expression)
            case promql.BinaryExpr():
                return self._joined(expression)
        raise NotImplementedError(str(expression))

    def vector(self, expression: Any) -> Vector:
        """Evaluate; a number is a series without labels."""
        value = self.value(expression)
        return value if isinstance(value, dict) else {frozenset(): value}

    def _called(self, call: Any) -> Vector | float:
        name = call.func.name
        if name in {"rate", "increase"}:
            grown = {}
            for labels in self.matching(call.args[0].vector_selector):
                if labels in self.first:
                    first, last = self.first[labels], self.last[labels]
                    grown[_without(labels, {NAME})] = last - first if last >= first else last
            return grown if name == "increase" else {labels: count / self.seconds for labels, count in grown.items()}
        if name == "vector":
            return {frozenset(): float(call.args[0].val)}
        if name == "histogram_quantile":
            return _quantile(float(call.args[0].val), self.vector(call.args[1]))
        raise NotImplementedError(name)

    def _aggregated(self, expression: Any) -> Vector:
        groups: defaultdict[Labels, list[float]] = defaultdict(list)
        by: set[str] = set()
        if expression.modifier is not None:
            assert str(expression.modifier.type) == "AggModifierType.By", str(expression)
            by = set(expression.modifier.labels)
        for labels, value in self.vector(expression.expr).items():
            groups[_only(labels, by)].append(value)
        return {labels: float(AGGREGATIONS[str(expression.op)](values)) for labels, values in groups.items()}

    def _joined(self, expression: Any) -> Vector | float:
        left, right = self.value(expression.lhs), self.value(expression.rhs)
        op = str(expression.op).split()[0]
        if isinstance(left, float) and isinstance(right, float):
            return ARITHMETIC[op](left, right)
        on = None
        if expression.modifier is not None and expression.modifier.matching is not None:
            on = set(expression.modifier.matching.labels)
        joined: Vector = {}
        for labels, one, other in _pairs(left, right, on, op):
            if op in ARITHMETIC:
                joined[_without(labels, {NAME})] = ARITHMETIC[op](one, other)
            elif op == "and" or (op in COMPARISONS and COMPARISONS[op](one, other)):
                joined[labels] = one
        return joined


def _pairs(
    left: Vector | float, right: Vector | float, on: set[str] | None, op: str
) -> Iterator[tuple[Labels, float, float]]:
    """Match the two sides of an operator, series by series."""
    if op not in {*ARITHMETIC, *COMPARISONS, "and"}:
        raise NotImplementedError(op)
    if isinstance(left, float):
        assert isinstance(right, dict)
        yield from ((labels, left, value) for labels, value in right.items())
    elif isinstance(right, float):
        yield from ((labels, value, right) for labels, value in left.items())
    else:
        theirs = {_key(labels, on): value for labels, value in right.items()}
        for labels, value in left.items():
            if _key(labels, on) in theirs:
                yield labels, value, theirs[_key(labels, on)]


def _key(labels: Labels, on: set[str] | None) -> Labels:
    return _without(labels, {NAME}) if on is None else _only(labels, on)


def _quantile(share: float, buckets: Vector) -> Vector:
    """Find a quantile by linear interpolation, as Prometheus does; NaN where nothing was observed."""
    groups: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        groups[_without(labels, {NAME, "le"})].append((float(dict(labels)["le"]), count))
    return {labels: _within(share, sorted(edges)) for labels, edges in groups.items()}


def _within(share: float, edges: list[tuple[float, float]]) -> float:
    total = edges[-1][1]
    if not total or not math.isinf(edges[-1][0]):
        return math.nan
    wanted = share * total
    place = next(place for place, (_, count) in enumerate(edges) if count >= wanted)
    if place == len(edges) - 1:
        return edges[-2][0]
    below_edge, below = edges[place - 1] if place else (0.0, 0.0)
    edge, count = edges[place]
    return below_edge + (edge - below_edge) * (wanted - below) / (count - below) if count > below else edge


def _matches(labels: Mapping[str, str], name: str, op: str, value: str) -> bool:
    mine = labels.get(name, "")
    match op:
        case "MatchOp.Equal":
            return mine == value
        case "MatchOp.NotEqual":
            return mine != value
        case "MatchOp.Re":
            return re.fullmatch(value, mine) is not None
        case "MatchOp.NotRe":
            return re.fullmatch(value, mine) is None
    raise NotImplementedError(op)


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] in names)


def _without(labels: Labels, names: set[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] not in names)
