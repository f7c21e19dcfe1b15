"""A log directory with known content, to be copied and damaged; and a consumer that reports what the log serves.

The consumer does what Kafka's clients do: it fetches whole batches, checks each CRC, and accepts a batch that passes.
Each accepted batch is compared, byte by byte, with the written one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from harness import Result
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.log.errors import OffsetOutOfRangeError
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.segment.naming import parse_directory
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader, crc_matches, rewrite_base
from klamm.core.records.partition import TopicPartition
from klammtest.logs import START_MS, ManualClock, codec_table

CLUSTER = "faults"
PLAIN, IDEMPOTENT = TopicPartition("plain", 0), TopicPartition("idempotent", 1)
TOPIC_IDS = {PLAIN.topic: UUID(int=11), IDEMPOTENT.topic: UUID(int=12)}
CONFIG = TopicConfig.model_validate(
    {"segment_bytes": 6_000, "index_interval_bytes": 400, "retention_ms": -1, "max_message_bytes": 5_000}, by_name=True
)
PRODUCERS = 3


def scratch() -> Path | None:
    """Returns a folder where small files are cheap: in memory, if this machine has such a folder. A killed process
    loses nothing there that it would not lose on a disk.
    """
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


@dataclass(frozen=True)
class Written:
    """One batch as it was stored."""

    base: int
    last: int
    data: bytes
    stamps: tuple[int, ...]

    @property
    def records(self) -> int:
        return self.last - self.base + 1


Content = dict[TopicPartition, list[Written]]


@dataclass
class Sequences:
    """The next sequence of each producer of one partition."""

    next: list[int] = field(default_factory=lambda: [0] * PRODUCERS)
    first_id: int = 0


def make_batch(
    chance: random.Random, codecs: CodecTable, sequences: Sequences | None, label: str, now_ms: int, most: int = 12
) -> tuple[bytearray, tuple[int, ...]]:
    """Makes a batch of up to `most` records; returns it with their timestamps. Every value is unique by its label."""
    count = chance.randint(1, most)
    stamps = tuple(now_ms + chance.randint(-500, 500) for _ in range(count))
    rows = [
        (stamp, b"k%d" % chance.randrange(20), f"{label}.{i} ".encode() + chance.randbytes(chance.randint(0, 90)), ())
        for i, stamp in enumerate(stamps)
    ]
    name = chance.choice(["", "", "gzip", "snappy", "lz4", "zstd"])
    who, sequence = -1, -1
    if sequences is not None:
        index = chance.randrange(PRODUCERS)
        who = sequences.first_id + index
        sequence, sequences.next[index] = sequences.next[index], sequences.next[index] + count
    batch = encode_batch(
        rows, codec=codecs.by_name(name) if name else None,
        producer_id=who, producer_epoch=0 if who >= 0 else -1, base_sequence=sequence,
    )  # fmt: skip
    return bytearray(batch), stamps


def open_manager(
    folder: Path, clock: ManualClock | None = None, config: TopicConfig = CONFIG, elapsed: ManualClock | None = None
) -> LogManager:
    return LogManager(
        folder,
        broker_id=0,
        cluster_id=CLUSTER,
        codecs=CODECS,
        config_for=lambda _: config,
        clock=clock or ManualClock(),
        elapsed=elapsed,
    )


CODECS = codec_table()


class Template:
    """Two partitions of some ten segments, five leader epochs and all codecs, in `folder`; stopped cleanly (`clean`) or
    left as a killed process leaves it, with checkpoints somewhere before the end.
    """

    def __init__(self, folder: Path, chance: random.Random, *, clean: bool, batches: int = 60) -> None:
        self.folder, self.clean = folder, clean
        self.content: Content = {PLAIN: [], IDEMPOTENT: []}
        self.flushed: dict[TopicPartition, int] = {}
        clock = ManualClock()
        manager = open_manager(folder, clock)
        for tp in self.content:
            log = manager.create(tp, TOPIC_IDS[tp.topic], CONFIG)
            checkpoint_at = chance.randrange(batches)
            sequences = Sequences() if tp == IDEMPOTENT else None
            for i in range(batches):
                batch, stamps = make_batch(chance, CODECS, sequences, f"{tp}/{i}", clock())
                clock.advance(chance.randint(0, 2_000))
                epoch = i * 5 // batches
                result = log.append_as_leader(batch, epoch)
                log.advance_high_watermark(log.log_end_offset)
                rewrite_base(batch, 0, result.base_offset, epoch)
                self.content[tp].append(Written(result.base_offset, result.last_offset, bytes(batch), stamps))
                if i == checkpoint_at:
                    log.flush()
            self.flushed[tp] = log.recovery_point
        manager.write_checkpoints()
        manager.close(clean=clean)

    @property
    def records(self) -> int:
        return sum(w.records for written in self.content.values() for w in written)

    @contextmanager
    def copy(self, target: Path) -> Iterator[Path]:
        shutil.copytree(self.folder, target)
        try:
            yield target
        finally:
            shutil.rmtree(target)

    def files(self, *endings: str) -> list[Path]:
        """Returns the relative paths of non-empty files with these endings, sorted."""
        found = (p for p in self.folder.rglob("*") if p.is_file() and p.name.endswith(endings) and p.stat().st_size)
        return sorted(p.relative_to(self.folder) for p in found)


@dataclass
class Served:
    """The batches that a consumer received from one partition. `seen`: complete and correct batches, by base offset."""

    seen: set[int] = field(default_factory=set)
    detected: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)


def consume(log: PartitionLog, written: list[Written], *, max_bytes: int = 3_000) -> Served:
    """Reads all of `written` as a consumer. After damage it continues with the next batch that was written."""
    served = Served()
    by_base = {w.base: w for w in written}
    starts = [w.base for w in written]
    at = starts[0]
    while at <= written[-1].last:
        step = _fetch(log, at, max_bytes, by_base, served)
        later = [base for base in starts if base > at]
        at = step if step > at else (later[0] if later else written[-1].last + 1)
    return served


def fetch_once(log: PartitionLog, at: int, written: list[Written], *, max_bytes: int = 3_000) -> Served:
    """Does one fetch at any offset."""
    served = Served()
    _fetch(log, at, max_bytes, {w.base: w for w in written}, served)
    return served


def _fetch(log: PartitionLog, at: int, max_bytes: int, by_base: dict[int, Written], served: Served) -> int:
    """Does one fetch; returns the offset to continue with, which is `at` if nothing was returned."""
    try:
        data = log.read(at, max_bytes, isolation=ReadIsolation.LOG_END).data
    except OffsetOutOfRangeError as error:
        served.detected.append(str(error))  # correct only if opening the log reported a truncation
        return at
    except KlammError as error:
        served.detected.append(str(error))
        return at
    pos = 0
    reached = at
    while pos < len(data):
        try:
            header = BatchHeader.parse(data, pos)
            whole = crc_matches(data, pos, header)
        except CorruptRecordError as error:
            served.detected.append(f"consumer: {error}")
            return reached
        if not whole:
            served.detected.append(f"consumer: the batch at {header.base_offset} fails its CRC")
            return reached
        expected = by_base.get(header.base_offset)
        if expected is None or expected.data != data[pos : pos + header.size]:
            served.corrupt.append(
                f"fetch at {at} served a batch at {header.base_offset} that differs from the written one"
            )
        elif header.last_offset >= at:
            served.seen.add(header.base_offset)
        pos += header.size
        reached = max(reached, header.next_offset)
    return reached


def truth_by_time(written: list[Written], timestamp_ms: int) -> tuple[int, int] | None:
    """Returns timestamp and offset of the first record of that time or later."""
    for w in written:
        for i, stamp in enumerate(w.stamps):
            if stamp >= timestamp_ms:
                return stamp, w.base + i
    return None


@contextmanager
def closing(manager: LogManager) -> Iterator[LogManager]:
    """Yields the manager, and closes it uncleanly at the end, as a crash would."""
    try:
        yield manager
    finally:
        with suppress(KlammError):
            manager.close(clean=False)


def partition_of(path: Path) -> TopicPartition:
    """Returns the partition of a file in its directory."""
    tp = parse_directory(path.parent.name)
    assert tp is not None, path
    return tp


def check_appends(injection: object, log: PartitionLog, result: Result) -> None:
    """Checks that the log accepts a new batch at its end and serves it."""
    batch, stamps = make_batch(random.Random(0), CODECS, None, "new", START_MS)
    try:
        at = log.append_as_leader(batch, 99)
    except KlammError as error:
        result.wrong(injection, f"{log.tp} does not accept a new batch: {error}")
        return
    rewrite_base(batch, 0, at.base_offset, 99)
    served = consume(log, [Written(at.base_offset, at.last_offset, bytes(batch), stamps)])
    if served.seen != {at.base_offset}:
        result.wrong(injection, f"{log.tp} does not serve a new batch: {served}")
