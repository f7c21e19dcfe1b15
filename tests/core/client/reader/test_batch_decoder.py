"""Batches as Arrow columns, against the record-by-record reader."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.client.reader.batch_decoder import NO_END, BatchDecoder, Cursor
from klamm.core.errors import CorruptRecordError
from klamm.core.records.arrow import SCHEMA, columns_to_arrow
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import crc_of, rewrite_base, set_crc
from klammtest.logs import START_MS, TP, batch, codec_table, records_of

CODECS = codec_table()


def columns(raw: bytes | bytearray, first: int = 0, last: int = NO_END) -> pa.Table:
    """The records with offsets in [first, last), as the decoder reads them for a Spark task."""
    found = BatchDecoder(TP, CODECS).arrow_batches(bytes(raw), Cursor(first), last)
    return pa.Table.from_batches([columns_to_arrow(read.columns) for read in found], SCHEMA)


def several() -> bytes:
    """Offsets 10 to 19 in batches of 4, 4 and 2."""
    out = b""
    for base, count in ((10, 4), (14, 4), (18, 2)):
        rows = [(START_MS + base + i, None if i == 1 else b"k", b"v%d" % i, (("h", None),) * i) for i in range(count)]
        out += encode_batch(rows, base_offset=base, codec=CODECS.by_name("lz4"))
    return out


def test_columns_are_the_records() -> None:
    raw = several()
    got = columns(raw)
    assert got.schema == SCHEMA
    wanted = list(records_of(raw))
    assert got["offset"].to_pylist() == [r.offset for r in wanted]
    assert got["key"].to_pylist() == [r.key for r in wanted]
    assert got["value"].to_pylist() == [r.value for r in wanted]
    assert [int(t.timestamp() * 1000) for t in got["timestamp"].to_pylist()] == [r.timestamp_ms for r in wanted]
    assert got["headers"].to_pylist() == [[{"key": n, "value": v} for n, v in r.headers] for r in wanted]


@given(st.integers(0, 25), st.none() | st.integers(0, 25))
def test_offset_ranges(first: int, last: int | None) -> None:
    got = columns(several(), first, NO_END if last is None else last)
    assert got["offset"].to_pylist() == [o for o in range(10, 20) if o >= first and (last is None or o < last)]


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    assert columns(b"").num_rows == 0
    assert columns(batch()[:-1]).num_rows == 0


def test_control_batches_are_left_out() -> None:
    raw = batch()
    raw[22] |= 0x20
    set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    assert columns(raw).num_rows == 0


def test_timestamps_that_microseconds_cannot_hold_are_null() -> None:
    rows = [(stamp, None, b"v", ()) for stamp in (0, 2**62, -1)]
    got = columns(encode_batch(rows))["timestamp"]
    assert got.cast(pa.int64()).to_pylist() == [0, None, -1000]
    assert got[0].as_py() == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_bad_batch_names_partition_and_offset() -> None:
    raw = batch()
    rewrite_base(raw, 0, 30, 0)
    raw[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="events-0 offset 30"):
        columns(raw)
