"""A real `PartitionLog` that satisfies `CrashingLog`: batches in files on tmpfs, real recovery after each crash.

The checkpoints are those of `LogManager`, held here: written when the broker's process does, corrected by each
truncation. A power loss cuts each file of batches to a random length from what was last flushed on, in the middle of a
batch too, drops the files of later segments, and may leave a file empty that was written without waiting for the disk.
It undoes no truncation: the log waits until that is on the disk.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import StorageError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.segment.naming import LEADER_EPOCHS
from klamm.core.log.state.leader_epochs import LeaderEpochs
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.epoch_end import EpochRange
from klamm.core.records.header import iter_headers
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.plugins.codecs import klamm_codecs

from .crashing_log import OnCommitted
from .scene import TP

_TOPIC_ID: Final = UUID(int=7)
_NOW_MS: Final = 1_767_225_600_000
_SEGMENT_BYTES: Final = 1_000
"""About a dozen batches: most schedules roll segments, and truncate and restart over several."""
_MOST_READ: Final = 1 << 24
_TMPFS: Final = Path("/dev/shm")
_EIO: Final = OSError(errno.EIO, os.strerror(errno.EIO))


@cache
def _codecs() -> CodecTable:
    return CodecTable([provider.create(provider.config()) for provider in klamm_codecs()])


@cache
def _config() -> TopicConfig:
    return TopicConfig.model_validate({"segment_bytes": _SEGMENT_BYTES, "index_interval_bytes": 200}, by_name=True)


class DiskLog:
    """`on_committed(first, end)` is called when the high watermark moves, before consumers can read the records."""

    def __init__(self, directory: Path, on_committed: OnCommitted | None = None) -> None:
        """`directory` must not exist yet; `discard` removes it."""
        self.directory = directory
        self._on_committed = on_committed
        self._known = OpenFrom()
        self._durable: dict[str, int] = {}
        """The flushed bytes of each file of batches, by name."""
        self._read_values: list[int] = []
        self._read_epochs: list[int] = []
        self._read_start = self._read_end = 0
        self._offsets: dict[int, int] = {}
        self.log = self._open()

    def _open(self) -> PartitionLog:
        log = PartitionLog.open(
            self.directory, TP, _TOPIC_ID, _config(), lambda: _NOW_MS, codecs=_codecs(), known=self._known
        )
        log.on_truncated = self._truncated
        log.rest()
        return log

    def discard(self) -> None:
        """Closes the log and removes its directory."""
        self.log.close(clean=False)
        rmtree(self.directory)

    # -- bounds and epochs ---------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def reported_end_offset(self) -> int:
        return self.log.reported_end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def flushed_offset(self) -> int:
        return self.log.recovery_point

    @property
    def recovery_cut_more(self) -> bool:
        return self.log.recovery_cut_more

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def last_record_epoch(self) -> int:
        return self.log.last_record_epoch

    def epoch_entries(self) -> list[tuple[int, int]]:
        return LeaderEpochs.read(self.directory / LEADER_EPOCHS).entries()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)

    def epoch_ranges(self, *, exact: bool) -> tuple[EpochRange, ...]:
        return self.log.epoch_ranges(exact=exact)

    # -- records -------------------------------------------------------------------------------------------------

    @property
    def values(self) -> list[int]:
        self._read_new()
        return self._read_values

    def _read_new(self) -> None:
        """Reads the records that were appended since the last call from the files, and forgets deleted ones."""
        start = self.log.log_start_offset
        if start > self._read_start:
            drop = min(start - self._read_start, len(self._read_values))
            del self._read_values[:drop], self._read_epochs[:drop]
            self._read_start, self._read_end = start, max(self._read_end, start)
        elif start < self._read_start:  # recovery has found the start of an earlier checkpoint
            self._forget_read()
        while self._read_end < self.log.log_end_offset:
            data = self.log.read(self._read_end, _MOST_READ, isolation=ReadIsolation.LOG_END).data
            for position, header in iter_headers(data):
                (record,) = decode_batch(data, position, header, _codecs())
                assert record.offset == self._read_end
                assert record.value is not None
                self._offsets[int(record.value)] = record.offset
                self._read_values.append(int(record.value))
                self._read_epochs.append(header.leader_epoch)
                self._read_end += 1

    def _forget_read(self) -> None:
        self._read_values, self._read_epochs, self._offsets = [], [], {}
        self._read_start = self._read_end = self.log.log_start_offset

    def offset_of(self, value: int) -> int | None:
        self._read_new()
        return self._offsets.get(value)

    def value_at(self, offset: int) -> int | None:
        self._read_new()
        index = offset - self._read_start
        return self._read_values[index] if 0 <= index < len(self._read_values) else None

    def records_from(self, offset: int) -> list[tuple[int, int]]:
        self._forget_read()
        self._read_new()
        first = offset - self._read_start
        return list(zip(self._read_epochs[first:], self._read_values[first:], strict=True))

    # -- roles and appends ---------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> None:
        self.log.lead(leader_epoch)

    def mirror(self, leader_epoch: int) -> int:
        return self.log.mirror(leader_epoch)

    def follow(self, leader_epoch: int) -> int:
        return self.log.follow(leader_epoch)

    def rest(self) -> None:
        self.log.rest()

    def append(self, value: int, leader_epoch: int, after: OffsetAndEpoch | None = None) -> int:
        batch = bytearray(encode_batch([(_NOW_MS, None, b"%d" % value, ())]))
        return self.log.append_as_leader(batch, leader_epoch, after=after).base_offset

    def append_as_follower(self, records: bytes, leader_epoch: int, term: int | None = None) -> None:
        self.log.append_as_follower(records, leader_epoch, term)

    def read(self, offset: int, count: int) -> bytes:
        data = self.log.read(offset, _MOST_READ, isolation=ReadIsolation.LOG_END).data
        ends = [position + header.size for position, header in iter_headers(data)]
        return data[: ends[min(count, len(ends)) - 1]] if ends else b""

    # -- watermark, start, truncation ----------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        end = min(offset, self.log.log_end_offset)
        if end <= self.log.high_watermark:
            return False
        if self._on_committed is not None:
            self._on_committed(self.log.high_watermark, end)
        return self.log.advance_high_watermark(end)

    def advance_log_start(self, offset: int) -> None:
        self.log.advance_log_start(offset)

    def truncate_to(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self.log.truncate_to(offset, leader_epoch, term)

    def restart_at(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self.log.restart_at(offset, leader_epoch, term)

    def _truncated(self, log: PartitionLog, _: bool) -> None:
        """Corrects the checkpoints, as the manager does after a truncation, and what is known of the files."""
        known = self._known
        self._known = OpenFrom(
            recovery_point=min(known.recovery_point, log.recovery_point),
            log_start_offset=min(known.log_start_offset, log.log_start_offset),
            high_watermark=min(known.high_watermark, log.high_watermark),
        )
        sizes = self._sizes()
        self._durable = {name: min(size, sizes[name]) for name, size in self._durable.items() if name in sizes}
        self._forget_read()

    # -- disk ----------------------------------------------------------------------------------------------------

    def _sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in sorted(self.directory.glob("*.log"))}

    def flush(self, offset: int) -> None:
        if offset > self.log.recovery_point:
            self.log.flush()
            self._durable = self._sizes()

    def checkpoint(self) -> None:
        log = self.log
        self._known = OpenFrom(
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )

    def stop(self) -> None:
        self.log.close()
        self._durable = self._sizes()
        self.checkpoint()
        known = self._known
        self._known = OpenFrom(True, known.recovery_point, known.log_start_offset, known.high_watermark)
        self._reopen()
        self._known = known

    def crash(self, random: Random) -> None:
        self.log.close(clean=False)
        self._reopen()

    def lose_power(self, random: Random) -> int:
        end, epochs_durable = self.log.log_end_offset, self.log.is_durable
        self.log.close(clean=False)
        cut = False
        for name, size in self._sizes().items():
            path, durable = self.directory / name, self._durable.get(name)
            if cut and not durable:
                path.unlink()
                continue
            kept = random.randint(durable or 0, size)
            os.truncate(path, kept)
            cut = cut or kept < size
        if not epochs_durable and random.random() < 0.5:
            os.truncate(self.directory / LEADER_EPOCHS, 0)
        self._reopen()
        return end - self.log.log_end_offset

    def fail_flush(self, random: Random) -> int:
        def fail(point: str) -> None:
            if point == "log.flush":
                raise _EIO

        faults.install(fail)
        try:
            self.log.flush()
        except StorageError:
            assert self.log.offline is not None
        finally:
            faults.install(None)
        return self.lose_power(random)

    def _reopen(self) -> None:
        self.log = self._open()
        self._durable = {name: min(size, self._durable.get(name, 0)) for name, size in self._sizes().items()}
        self._forget_read()


@contextmanager
def disk_logs() -> Iterator[Callable[[str, OnCommitted], DiskLog]]:
    """Yields a maker of logs in a new directory on tmpfs, where there is one; removes them all at the end. A log with
    the same name replaces the one before it. What recovery reports is not logged: crashes are planned here.
    """
    made: dict[str, DiskLog] = {}
    logger = logging.getLogger("klamm.core.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with TemporaryDirectory(prefix="klammsim-", dir=_TMPFS if _TMPFS.is_dir() else None) as directory:

            def make(name: str, on_committed: OnCommitted) -> DiskLog:
                if name in made:
                    made[name].discard()
                made[name] = DiskLog(Path(directory) / name.replace(" ", "-"), on_committed)
                return made[name]

            try:
                yield make
            finally:
                for log in made.values():
                    log.log.close(clean=False)
    finally:
        logger.setLevel(level)
