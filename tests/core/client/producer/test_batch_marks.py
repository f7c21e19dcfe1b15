"""The headers that the audit adds to the first record of a batch, by records and by rows of a table, whole and
split.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType

import pyarrow as pa
import pytest

from klamm.core.client.producer.arrow import Making, Rows
from klamm.core.client.producer.batch import BatchAudit, ProducerBatch
from klamm.core.client.producer.partition_queue import PartitionQueue
from klamm.core.interfaces.audit import Counted
from klamm.core.records import fallback, native
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch, encode_headers
from klamm.core.records.header import HEADER_SIZE, BatchHeader
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers, Record
from klammtest.audits import CODECS

OWN: Headers = (("own", b"1"), ("null", None))


def mark(counted: Counted) -> Headers:
    return (("batch", b"%d" % sum(records for _, records, _ in counted)),)


def read(batch: ProducerBatch, codec: str) -> list[Record]:
    encoded = bytes(batch.encode(CODECS.by_name(codec)))
    return decode_batch(encoded, 0, BatchHeader.parse(encoded), CODECS)


def of_records() -> ProducerBatch:
    queue = PartitionQueue(TopicPartition("t", 0), 1000, 5, None, BatchAudit(mark, 5))
    batch = queue.add_batch(0.0)
    batch.records = [(7, b"k", b"v" * 300, OWN), (3, None, None, ()), (9, None, b"w", OWN)]
    return batch


def of_rows() -> ProducerBatch:
    queue = PartitionQueue(TopicPartition("t", 0), 1000, 5, None, BatchAudit(mark, 5))
    rows = Rows(
        pa.array([b"k", None, None], pa.binary()), pa.array([b"v" * 300, None, b"w"], pa.binary()),
        pa.array([7, 3, 9], pa.int64()), b"",
    )  # fmt: skip
    (encoded,) = Making(0, 5).batches(rows, 10_000)
    batch = queue.add_rows(0.0, encoded)
    assert queue.waiting == deque([batch])
    return batch


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_first_record_of_a_batch_is_marked(codec: str) -> None:
    for batch, own in ((of_records(), OWN), (of_rows(), ())):
        first, second, third = read(batch, codec)
        assert first.headers == (*own, ("batch", b"3"))
        assert (second.headers, third.headers) == ((), own)
        assert [(r.timestamp_ms, r.key, r.value) for r in (first, second, third)] == [
            (7, b"k", b"v" * 300), (3, None, None), (9, None, b"w"),
        ]  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_is_counted_by_windows_without_its_mark(codec: str) -> None:
    """As keys' and values' bytes, whether it was encoded before or is given up unsent."""
    for make in (of_records, of_rows):
        sent, given_up = make(), make()
        read(sent, codec)
        assert set(sent.counted()) == set(given_up.counted()) == {(5, 2, 302), (0, 1, 0)}
        halves = sent.split()
        assert [set(half.counted()) for half in halves] == [{(5, 1, 301)}, {(0, 1, 0), (5, 1, 1)}]


def test_a_batch_is_marked_once_over_retries() -> None:
    for batch in (of_records(), of_rows()):
        before = read(batch, "none")
        batch.assign(batch.identity, None)
        assert read(batch, "none") == before


def test_each_half_of_a_split_batch_has_its_own_mark() -> None:
    for batch, own in ((of_records(), OWN), (of_rows(), ())):
        read(batch, "none")
        halves = [read(half, "none") for half in batch.split()]
        assert [[record.headers for record in half] for half in halves] == [
            [(*own, ("batch", b"1"))],
            [(("batch", b"2"),), own],
        ]


@pytest.mark.parametrize("implementation", [native, fallback])
@pytest.mark.parametrize("room", [0, 7, 8, 200])
@pytest.mark.parametrize("size", [0, 50, 63, 64, 8191, 100_000])
def test_headers_are_added_to_a_first_record_of_any_size(size: int, room: int, implementation: ModuleType) -> None:
    """With less room than they need, with as much, and with more."""
    more: Headers = (("more", b"2"),)
    records = [(5, b"k" * size, None, OWN), (1, None, b"v" * size, ())]
    batch, base, latest, counted = implementation.encode_records(records, room, 10)
    assert (base, latest, counted) == (5, 5, [(0, 2, 2 * size)])
    implementation.add_headers(batch, room, more)
    expected = encode_batch([(5, b"k" * size, None, (*OWN, *more)), records[1]])
    assert batch[HEADER_SIZE:] == expected[HEADER_SIZE:]
    assert not any(batch[:HEADER_SIZE])
    assert implementation.first_headers(expected[HEADER_SIZE:]) == encode_headers((*OWN, *more))[1:]


@pytest.mark.parametrize("implementation", [native, fallback])
def test_headers_of_a_first_record_that_is_cut_are_not_read(implementation: ModuleType) -> None:
    batch = encode_batch([(5, b"key", b"value", OWN)])[HEADER_SIZE:]
    for end in range(len(batch)):
        assert implementation.first_headers(batch[:end]) is None
        with pytest.raises(ValueError, match="whole record"):
            implementation.add_headers(bytearray(HEADER_SIZE) + batch[:end], 0, ())
