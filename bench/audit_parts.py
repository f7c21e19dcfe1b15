"""What the audit adds to a batch, part by part, in µs: `python bench/audit_parts.py`.

A batch has 600 records with values of 100 bytes, without keys and compression, of one window. Each part is called many
times; the fastest call counts, so that other processes hardly matter. `make bench ONLY=audit` measures the whole.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, partial
from itertools import count
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from klamm.core.client.consumer.audit import counted_run, joined_runs  # noqa: E402
from klamm.core.client.producer.arrow import Making, Rows  # noqa: E402
from klamm.core.client.producer.batch import BatchAudit  # noqa: E402
from klamm.core.client.producer.partition_queue import PartitionQueue  # noqa: E402
from klamm.core.records.arrow import arrow_columns  # noqa: E402
from klamm.core.records.decode import RecordArea, decode_columns  # noqa: E402
from klamm.core.records.encode import encode_batch  # noqa: E402
from klamm.core.records.header import HEADER_SIZE, BatchHeader  # noqa: E402
from klamm.core.records.partition import TopicPartition  # noqa: E402
from klamm.core.records.record import Headers  # noqa: E402
from klamm.plugin import AuditIdentity  # noqa: E402
from klamm.plugins.audit.counting.appends import AppendCounts  # noqa: E402
from klamm.plugins.audit.counting.origins import mark  # noqa: E402
from klamm.plugins.audit.counting.producer import KlammProducerAudit  # noqa: E402
from klamm.plugins.audit.counting.ranges import KlammRangeAudit  # noqa: E402
from klammtest.audits import CODECS  # noqa: E402

_RECORDS = 600
_VALUE = b"x" * 100
_WINDOW_MS = 600_000
_FIRST_MS = 1_700_000_400_000
_ROOM = 200
_POLLED = 16
"""Batches of one table of `poll_arrow`: about 10,000 records."""
_WHERE = TopicPartition("trips", 3)
_COUNTED = ((_FIRST_MS, _RECORDS, _RECORDS * len(_VALUE)),)


def identity(tier: str) -> AuditIdentity:
    return AuditIdentity(tier, "klamm-abc-123", "host", "application")


def records(headers: Headers = ()) -> list[tuple[int, bytes | None, bytes | None, Headers]]:
    """Returns the records of a batch, the first of which has these headers."""
    return [(_FIRST_MS + n // 50, None, _VALUE, () if n else headers) for n in range(_RECORDS)]


def stored(_: bytes, __: bytes) -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def encode_parts(audit: BatchAudit | None) -> dict[str, Callable[[], object]]:
    """Returns functions that encode a batch of records, and of rows."""
    sent, rows = records(), Rows(None, pa.array([_VALUE] * _RECORDS, pa.binary()), None, b"")
    window_ms, room = (None, 0) if audit is None else (audit.window_ms, audit.room)

    def of_records() -> None:
        batch = PartitionQueue(_WHERE, 65_536, 5, None, audit).add_batch(0.0)
        batch.records = sent
        batch.encode(None)

    def of_rows() -> None:
        queue = PartitionQueue(_WHERE, 65_536, 5, None, audit)
        for encoded in Making(_FIRST_MS, window_ms, room).batches(rows, 1_000_000):
            queue.add_rows(0.0, encoded).encode(None)

    return {"encode, send": of_records, "encode, send_arrow": of_rows}


def producer_counts() -> Callable[[], object]:
    """Returns a function that counts a batch as attempted and as acknowledged."""
    audit = KlammProducerAudit(
        identity("producer"), stored, window_ms=_WINDOW_MS, interval_s=3600, clock_ms=lambda: _FIRST_MS
    )
    [(start, number, size)] = _COUNTED

    def counted() -> None:
        audit.attempted(_WHERE.topic, start, size, number)
        audit.acknowledged(_WHERE.topic, start, size, number)
        audit._count()

    counted()
    return counted


def append_counts(headers: Headers) -> Callable[[], object]:
    """Returns a function that counts a batch as the broker appends it."""
    counts, offsets = AppendCounts(_WINDOW_MS), count(step=_RECORDS)
    counts.follow([_WHERE])
    batch = memoryview(bytearray(encode_batch(records(headers))))
    return lambda: counts.appended(_WHERE, batch, next(offsets), 0, -1)


def consumer_counts(batches: int, arrow: bool) -> Callable[[], object]:
    """Returns a function that counts the batches of one call of `poll`, from its delivery to the event before a commit:
    lists of one batch, or Arrow's columns of all of them.
    """
    batch = encode_batch(records())
    areas = [
        RecordArea(memoryview(batch)[HEADER_SIZE:], _RECORDS, _RECORDS * n, _RECORDS - 1, _FIRST_MS, False)
        for n in range(batches)
    ]
    decoded = decode_columns(batch, 0, BatchHeader.parse(batch), CODECS, 1_000_000, _WHERE)
    columns = arrow_columns(areas, 0) if arrow else decoded

    def counted() -> None:
        ranges = KlammRangeAudit(identity("consumer"), stored, window_ms=_WINDOW_MS, clock_ms=lambda: _FIRST_MS)
        ranges.start(_WHERE, 0)
        ranges.count(_WHERE, *joined_runs([counted_run(_WHERE, columns)]))
        ranges._partitions[_WHERE].records.windows(_RECORDS * batches, _WINDOW_MS)

    return counted


def fastest_us(call: Callable[[], object], calls: int) -> float:
    best = float("inf")
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        best = min(best, time.perf_counter_ns() - begin)
    return best / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000, help="calls of each part")
    calls = parser.parse_args().calls
    marks = lru_cache(64)(lambda counted: mark(identity("producer"), _WHERE, counted, _WINDOW_MS))
    without, audited = encode_parts(None), encode_parts(BatchAudit(marks, _WINDOW_MS, _ROOM))
    for part, call in without.items():
        before, after = fastest_us(call, calls), fastest_us(audited[part], calls)
        print(f"producer  {part:<24} {after - before:6.2f} (of {before:.1f})")
    print(f"producer  {'mark of another size':<24} {fastest_us(partial(marks.__wrapped__, _COUNTED), calls):6.2f}")
    print(f"producer  {'counts':<24} {fastest_us(producer_counts(), calls):6.2f}")
    print(f"broker    {'a marked batch':<24} {fastest_us(append_counts(marks(_COUNTED)), calls):6.2f}")
    print(f"broker    {'a client without audit':<24} {fastest_us(append_counts(()), calls):6.2f}")
    print(f"consumer  {'poll':<24} {fastest_us(consumer_counts(1, arrow=False), calls):6.2f}")
    print(f"consumer  {'poll_arrow':<24} {fastest_us(consumer_counts(_POLLED, arrow=True), calls) / _POLLED:6.2f}")


if __name__ == "__main__":
    main()
