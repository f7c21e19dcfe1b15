"""Batches and logs for tests of the storage: small, with an injected clock."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.interfaces.codec import Codec
from klamm.core.log.partition_log import AppendResult, PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.segment.open_files import OpenFiles
from klamm.core.records.checked_batch import CheckedBatch
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Record
from klamm.plugins.codecs import klamm_codecs
from klammtest.native.produce_twin import read_fast_produce_request

TP = TopicPartition("events", 0)
TOPIC_ID = UUID(int=7)
START_MS = 1_700_000_000_000


def codec_table() -> CodecTable:
    """Returns all built-in codecs with their defaults."""
    return CodecTable([provider.create(provider.config()) for provider in klamm_codecs()])


class ManualClock:
    """A clock that only `advance` moves."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    timestamp_ms: int = START_MS,
    key: bytes | None = b"key",
    codec: Codec | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    step_ms: int = 0,
) -> bytearray:
    """Makes one batch; `producer` is id, epoch and first sequence; each record is `step_ms` later than the one
    before."""
    records = [(timestamp_ms + i * step_ms, key, value, ()) for i, value in enumerate(values)]
    pid, epoch, sequence = producer
    return bytearray(encode_batch(records, codec=codec, producer_id=pid, producer_epoch=epoch, base_sequence=sequence))


def open_log(
    directory: Path,
    clock: ManualClock | None = None,
    *,
    known: OpenFrom | None = None,
    codecs: CodecTable | None = None,
    files: OpenFiles | None = None,
    **config: object,
) -> PartitionLog:
    """Opens the log of `TP` in `directory/events-0`; `config` has Python names."""
    topic = TopicConfig.model_validate(config, by_name=True)
    clock, codecs = clock or ManualClock(), codecs or codec_table()
    return PartitionLog.open(directory / str(TP), TP, TOPIC_ID, topic, clock, codecs=codecs, known=known, files=files)


def clean_start(log: PartitionLog) -> OpenFrom:
    """Returns what the checkpoints hold after `log` was closed cleanly."""
    return OpenFrom(True, log.recovery_point, log.log_start_offset, log.high_watermark)


def append(log: PartitionLog, data: bytearray, *, leader_epoch: int = 0) -> tuple[int, int]:
    """Appends as a leader without followers does, advances the high watermark, and returns the first and the last
    offset."""
    result = log.append_as_leader(data, leader_epoch)
    log.advance_high_watermark(log.log_end_offset)
    return result.base_offset, result.last_offset


def from_request(data: bytes | bytearray) -> CheckedBatch:
    """Returns the batch as it is read from a Produce request, by the twin: the compiled module need not be there."""
    around = struct.pack(">hhihhhiih", 0, 7, 1, -1, -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, len(data))
    read = read_fast_produce_request(bytearray(around + data))
    assert read is not None
    return read[-1]


def append_checked(
    log: PartitionLog, checked: CheckedBatch, *, leader_epoch: int = 0, on_loop: bool = False
) -> AppendResult:
    """Appends the batch of a request as a leader without followers does."""
    return log.append_as_leader(checked, leader_epoch, on_loop=on_loop, commit=True)


def records_of(data: bytes) -> Iterator[Record]:
    codecs = codec_table()
    for pos, header in iter_headers(data):
        yield from decode_batch(data, pos, header, codecs)


def read_all(log: PartitionLog, offset: int | None = None, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Reads every record up to the log's end, fetch by fetch."""
    found: list[Record] = []
    at = log.log_start_offset if offset is None else offset
    while at < log.log_end_offset:
        data = log.read(at, max_bytes, isolation=ReadIsolation.LOG_END).data
        assert data, f"no data at {at}, the log ends at {log.log_end_offset}"
        records = [record for record in records_of(data) if record.offset >= at]
        found += records
        at = max(header.next_offset for _, header in iter_headers(data))
    return found


def fill(directory: Path, count: int = 40, *, segment_bytes: int = 1 << 30) -> PartitionLog:
    """Makes a log of `count` batches with one record each ("%04d" ten times over) of producer 1; the leader epoch
    grows."""
    log = open_log(directory, index_interval_bytes=200, segment_bytes=segment_bytes)
    for n in range(count):
        append(log, batch([b"%04d" % n * 10], timestamp_ms=START_MS + n, producer=(1, 0, n)), leader_epoch=n // 15)
    return log
