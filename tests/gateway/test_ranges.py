"""Ranges and filters of the operators' queries."""

from __future__ import annotations

import pytest
from multidict import MultiDict

from gateway.admin.ranges import FILTERS, Filters, Range, check_fields, parse_filters, parse_range
from gateway.admin.shapes import AdminRefused
from tests.gateway.records import record

NOW = 1_790_000_000.25


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, Range(NOW - 3600, NOW)),
        ({"from": "-30d"}, Range(NOW - 30 * 86_400, NOW)),
        ({"from": "1789999000", "to": "1789999000.5"}, Range(1_789_999_000.0, 1_789_999_000.5)),
        ({"from": "2026-09-21T12:00:00Z"}, Range(1_789_992_000.0, NOW)),
        ({"from": "2026-09-21T12:00"}, Range(1_789_992_000.0, NOW)),
        ({"from": "2026-09-21T14:00 02:00"}, Range(1_789_992_000.0, NOW)),
        ({"from": "2026-09-21", "to": "-1m"}, Range(1_789_948_800.0, NOW - 60)),
        ({"to": "-2h"}, Range(NOW - 3 * 3600, NOW - 2 * 3600)),
    ],
)
def test_times_are_read_in_three_ways(query: dict[str, str], found: Range) -> None:
    """Seconds, ISO 8601 (in UTC unless it says otherwise) and spans back are times; absent ones have a default."""
    assert parse_range(query, NOW) == found


@pytest.mark.parametrize("text", ["", "yesterday", "nan", "inf", "-1", "-", "--1h", "1e300", "-0s", "2026-13-01", "1h"])
@pytest.mark.parametrize("name", ["from", "to"])
def test_what_is_no_time_is_refused(name: str, text: str) -> None:
    """Anything else is refused naming the field and what fits."""
    with pytest.raises(AdminRefused, match=f"^{name}: ") as refused:
        parse_range({name: text}, NOW)
    assert (refused.value.field, "seconds since the epoch" in refused.value.allowed) == (name, True)


def test_an_end_before_its_start_is_refused() -> None:
    """A range has a length."""
    with pytest.raises(AdminRefused, match="not before"):
        parse_range({"from": "-1h", "to": "-1h"}, NOW)


def test_filters_take_what_matches_them_all() -> None:
    """Each filter is one exact value; those that are absent take anything."""
    filters = parse_filters({"tenant": "default", "api": "chat", "bucket": "1h"})
    assert filters == Filters(tenant="default", api="chat")
    assert filters.given == {"tenant": "default", "api": "chat"}
    assert [filters.take(record(api=api)) for api in ("chat", "messages")] == [True, False]


def test_an_empty_filter_is_refused() -> None:
    """A filter that names nothing is a mistake."""
    with pytest.raises(AdminRefused, match=r"^model: is empty"):
        parse_filters({"model": ""})


def test_unknown_and_repeated_fields_are_refused() -> None:
    """A misspelt field is answered with the likely one, and no field may be given twice."""
    with pytest.raises(AdminRefused, match="did you mean 'tenant'") as refused:
        check_fields({"tennant": "a"}, FILTERS)
    assert refused.value.field == "tennant"
    with pytest.raises(AdminRefused, match="key: is given twice"):
        check_fields(MultiDict([("key", "a"), ("key", "b")]), FILTERS)
