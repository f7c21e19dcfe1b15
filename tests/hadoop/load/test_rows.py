"""The directories that rows go to, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from klamm.hadoop.load.rows import RowDecoder, RowFormat

AUTUMN = datetime(2024, 10, 27, tzinfo=UTC)
HOUR_US = 3_600_000_000


def raw_format(timezone: str, *partition_by: str, min_us: int = 0) -> RowFormat:
    return RowFormat("t", partition_by, None, {}, "", (), min_us, 10**16, quarantine=False, timezone=timezone)


def directories(format_: RowFormat, instants_us: list[int | None]) -> list[tuple[str | None, ...]]:
    """Of records with these timestamps."""
    rows = len(instants_us)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(rows, pa.binary()),
            pa.array([b"v"] * rows, pa.binary()),
            pa.array([0] * rows, pa.int32()),
            pa.array(range(rows), pa.int64()),
            pa.array(instants_us, pa.timestamp("us", tz="UTC")),
        ],
        names=["key", "value", "partition", "offset", "timestamp"],
    )
    (made,) = RowDecoder(format_)(iter([batch]))
    columns = [made.column(name).to_pylist() for name in format_.partition_by]
    return list(zip(*columns, strict=True))


def test_the_hour_that_comes_twice_is_one_directory() -> None:
    begin = int(AUTUMN.timestamp() * 1_000_000)
    found = directories(raw_format("Europe/Berlin", "dt", "hr"), [begin + n * HOUR_US // 2 for n in range(-1, 5)])
    assert found == [("2024-10-27", hour) for hour in ("01", "02", "02", "02", "02", "03")]


@pytest.mark.parametrize(
    ("timezone", "wanted"),
    [("UTC", "1969-12-31"), ("Asia/Kathmandu", "1970-01-01"), ("America/New_York", "1969-12-31")],
)
def test_days_before_1970_and_zones_that_are_no_whole_hours(timezone: str, wanted: str) -> None:
    format_ = raw_format(timezone, "dt", min_us=-(10**15))
    assert directories(format_, [-1, -HOUR_US * 4]) == [(wanted,), (wanted,)]


def test_records_without_a_timestamp_or_outside_the_bounds_are_invalid() -> None:
    found = directories(raw_format("UTC", "dt", "hr"), [None, -5, 10**16 + 1, HOUR_US])
    assert found == [("__invalid__", None)] * 3 + [("1970-01-01", "01")]


def test_no_records() -> None:
    assert directories(raw_format("UTC", "dt", "hr"), []) == []
