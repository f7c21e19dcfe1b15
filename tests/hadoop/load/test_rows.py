"""The directories that rows go to, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from klamm.core.interfaces.envelope import SchemaKey
from klamm.hadoop.load.rows import RowFormat, RowMaker

AUTUMN = datetime(2024, 10, 27, tzinfo=UTC)
HOUR_US = 3_600_000_000


def raw_format(timezone: str, *partition_by: str, min_us: int = 0) -> RowFormat:
    return RowFormat("t", partition_by, None, {}, "", (), min_us, 10**16, quarantine=False, timezone=timezone)


def records(instants_us: list[int | None], values: list[bytes | None] | None = None) -> dict[str, pa.Array]:
    """With these timestamps."""
    rows = len(instants_us)
    return {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([b"v"] * rows if values is None else values, pa.binary()),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array(instants_us, pa.timestamp("us", tz="UTC")),
    }


def directories(format_: RowFormat, instants_us: list[int | None]) -> list[tuple[str | None, ...]]:
    batch = pa.RecordBatch.from_pydict(records(instants_us))
    made = RowMaker(format_).rows(batch)
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


@pytest.mark.parametrize("unopened", [(), (1,), (0, 3)])
def test_in_quarantine_each_bad_row_has_its_reason_and_its_bytes(unopened: tuple[int, ...]) -> None:
    """Rows that stand for batches that cannot be opened, one of an unknown schema, and those of two versions."""
    texts = [json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": "int"}]}) for n in ("a", "b")]
    aliased = json.loads(texts[0])
    aliased["fields"][0]["aliases"] = ["b"]
    format_ = replace(
        raw_format("UTC", "dt"),
        reader=json.dumps(aliased),
        writers={SchemaKey(schema_id=number): text for number, text in enumerate(texts, start=1)},
        envelope="confluent",
        quarantine=True,
    )

    def payload(schema_id: int, value: int) -> bytes:
        out = BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        out.seek(5)
        text = texts[schema_id - 1] if schema_id <= len(texts) else texts[0]
        schemaless_writer(out, parse_schema(json.loads(text)), {json.loads(text)["fields"][0]["name"]: value})
        return out.getvalue()

    values: list[bytes | None] = [payload(1, 10), payload(2, 11), payload(7, 12), payload(1, 13)]
    columns = records([HOUR_US] * 4, values)
    columns["error"] = pa.array(["no batch" if row in unopened else None for row in range(4)], pa.string())
    columns["endOffset"] = pa.array([row + 5 if row in unopened else None for row in range(4)], pa.int64())
    made = RowMaker(format_).rows(pa.RecordBatch.from_pydict(columns))
    errors, kept = made.column("_error").to_pylist(), made.column("_value").to_pylist()
    assert [row for row, error in enumerate(errors) if error is not None] == sorted({*unopened, 2})
    assert errors[2] == "no schema is registered as id 7"
    assert all(errors[row] == "no batch" for row in unopened)
    assert [kept[row] for row in (*unopened, 2)] == [values[row] for row in (*unopened, 2)]
    good = {0: 10, 1: 11, 3: 13}
    expected = [good.get(row) if row not in unopened else None for row in range(4)]
    assert made.column("a").to_pylist() == expected
