from __future__ import annotations

from array import array
from datetime import UTC, datetime

import pytest

from klamm.core.interfaces.audit import NO_WINDOW
from klamm.plugins.audit.windows import Span, iso, parse_instant, tally

NOON = int(datetime(2013, 1, 31, 12, 7, tzinfo=UTC).timestamp() * 1000)


def test_a_window_starts_at_a_multiple_of_its_length() -> None:
    stamps = array("q", [NOON, 0, 599_999, 600_000])
    found: dict[int, list[int]] = {}
    tally(stamps, array("q", [1, 1, 1, 1]), 600_000, found)
    assert found == {NOON - 7 * 60_000: [1, 1], 0: [2, 2], 600_000: [1, 1]}


def test_records_without_a_timestamp_have_a_window_of_their_own() -> None:
    stamps, sizes = array("q", [-1, 3, -5]), array("q", [1, 4, 2])
    found = {0: [1, 1]}
    tally(stamps, sizes, 600_000, found)
    assert found == {NO_WINDOW: [2, 3], 0: [2, 5]}


def test_labels_are_utc() -> None:
    assert [span.label(NOON) for span in Span] == ["2013-01", "2013-01-31", "2013-01-31 12:00", "2013-01-31 12:07"]
    assert Span.MONTH.label(NO_WINDOW) == "no timestamp"
    assert iso(NOON) == "2013-01-31T12:07Z"


def test_a_time_beyond_the_calendar_has_a_label() -> None:
    assert Span.MONTH.label(2**63 - 1) == "9999-12"
    assert iso(2**60) == "9999-12-31T23:59Z"
    assert iso(parse_instant("0001-01-01T00:00+05:00")) == "0001-01-01T00:00Z"
    assert iso(parse_instant("0987-06-05")) == "0987-06-05T00:00Z"


def test_instants_are_utc_unless_they_say_otherwise() -> None:
    assert parse_instant("2013-01-31T12:07") == NOON
    assert parse_instant("2013-01-31T13:07+01:00") == NOON
    with pytest.raises(ValueError, match="soon"):
        parse_instant("soon")
