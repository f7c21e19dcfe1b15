"""The log cleaner: threads that choose the next log to compact, compact it, and record how far it is compacted.

The log with the largest share of uncompacted bytes is next, if that share exceeds `min.cleanable.dirty.ratio`; a log
with an uncompacted record older than `max.compaction.lag.ms` comes before all others. `cleaner-offset-checkpoint` has
the first uncompacted offset of each log. A log with a batch that cannot be read is not compacted again until the next
start.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from ...config.section import LONG_MAX
from ...errors import CorruptRecordError, KlammError, StorageError
from ...faults import fault_point
from ...records.codecs import CodecTable, UnsupportedCodecError
from ...records.partition import TopicPartition
from ..errors import LogClosedError
from ..manager import LogManager
from ..partition_log import PartitionLog
from ..segment.segment import Segment
from ..state.checkpoints import CLEANER_OFFSETS
from ..state.clock import Clock, system_clock
from .compaction import CompactionCancelledError, Compactor, compact, first_timestamp
from .throttle import ThreadShutdownError, Throttle

_log = logging.getLogger(__name__)
_JOIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """The settings `log.cleaner.*`, in bytes, bytes per second and ms."""

    threads: int = 1
    dedupe_buffer_size: int = 128 * 1024 * 1024
    io_max_bytes_per_second: float = sys.float_info.max
    backoff_ms: int = 15_000


class CompactedTo(NamedTuple):
    """The first offset of a log that no pass has read. It is valid while the log has this topic id and this number of
    `truncations`."""

    topic_id: UUID
    truncations: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The part of a log to compact: offsets [first, end), if the log still has this number of `truncations`. `ratio`:
    its share of the bytes that may be compacted. `overdue`: it has a record older than `max.compaction.lag.ms`."""

    first: int
    end: int
    ratio: float
    overdue: bool
    truncations: int


def log_to_clean(log: PartitionLog, compacted_to: int, truncations: int, now_ms: int) -> LogToClean | None:
    """Returns the part of the log to compact; None if there is none. Everything below `compacted_to` is compacted."""
    config = log.config
    sealed = log.cleanable_segments()
    if not sealed:
        return None
    end = sealed[0].base_offset
    bases = [s.base_offset for s in sealed[1:]] + [log.sealed_end(sealed)]
    first = compacted_to if log.log_start_offset <= compacted_to <= bases[-1] else log.log_start_offset
    clean = dirty = 0
    dirty_segments: list[Segment] = []
    for segment, following in zip(sealed, bases, strict=True):
        if following <= first:
            clean += segment.size
        elif config.min_compaction_lag_ms and segment.largest.timestamp_ms > now_ms - config.min_compaction_lag_ms:
            break
        else:
            dirty += segment.size
            dirty_segments.append(segment)
        end = following
    if end <= first or not dirty_segments:
        return None
    overdue = _overdue(log, dirty_segments[0], now_ms)
    return LogToClean(first, end, dirty / (clean + dirty) if clean + dirty else 0.0, overdue, truncations)


def _overdue(log: PartitionLog, segment: Segment, now_ms: int) -> bool:
    limit = log.config.max_compaction_lag_ms
    return limit < LONG_MAX and 0 <= first_timestamp(log, segment) < now_ms - limit


class Cleaner:
    """Compacts logs in threads of its own (`start`, `stop`) or in the caller's (`run_once`). Construct it once the logs
    are loaded, before topics are created or deleted."""

    def __init__(
        self, logs: LogManager, codecs: CodecTable, config: CleanerConfig, clock: Clock = system_clock
    ) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._in_progress: set[TopicPartition] = set()
        self._uncleanable: set[tuple[UUID, int]] = set()
        """Topic ids and partitions of the logs with a batch that cannot be read."""
        self._checkpoint = logs.shared_checkpoint(CLEANER_OFFSETS)
        found = logs.logs()
        self._compacted = {
            tp: CompactedTo(found[tp].topic_id, found[tp].truncations, at)
            for tp, at in self._read_checkpoint()
            if tp in found and at <= found[tp].log_end_offset
        }
        self._codecs = codecs
        self._tools = self._make_tools(config)

    def _make_tools(self, config: CleanerConfig) -> Compactor:
        share = max(1, config.threads)
        throttle = Throttle(config.io_max_bytes_per_second / share, self._stopping.wait)
        return Compactor(self._codecs, config.dedupe_buffer_size // share, throttle, self._clock)

    def reconfigure(self, config: CleanerConfig) -> None:
        """Replaces the settings. Stops the threads, which cancels the passes in progress, and starts new ones.
        Blocks."""
        if config == self._config:
            return
        self.stop()
        self._stopping = threading.Event()
        self._threads = []
        self._config = config
        self._tools = self._make_tools(config)
        self.start()

    def _read_checkpoint(self) -> list[tuple[TopicPartition, int]]:
        try:
            return list(self._checkpoint.read().items())
        except StorageError as error:
            _log.warning("%s; compaction begins at the start of each log", error)
            return []

    def start(self) -> None:
        """Starts the threads."""
        for number in range(self._config.threads):
            thread = threading.Thread(target=self._run, name=f"klamm-cleaner-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Cancels the passes in progress, removes their files, and waits for the threads, each at most 30 s."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        stopping = self._stopping
        while not stopping.is_set():
            try:
                worked = self.run_once()
            except Exception as error:  # the broker continues to serve if the cleaner fails
                _log.error("the log cleaner: unexpected %s: %s", type(error).__name__, error)
                worked = False
            if not worked:
                stopping.wait(self._config.backoff_ms / 1000)

    def run_once(self) -> bool:
        """Compacts the log that needs it most. Returns False if no log does, or if the compaction failed."""
        grabbed = self._grab_dirtiest_log()
        if grabbed is None:
            return False
        log, to_clean = grabbed
        try:
            self._clean(log, to_clean)
        except (CompactionCancelledError, ThreadShutdownError) as cancelled:
            _log.debug("%s: compaction was cancelled: %s", log.tp, cancelled)
            return False
        except (CorruptRecordError, UnsupportedCodecError) as error:
            if log.truncations != to_clean.truncations:  # the pass has read what the truncation was removing
                _log.debug("%s: compaction was cancelled by a truncation: %s", log.tp, error)
                return False
            self._uncleanable.add((log.topic_id, log.tp.partition))
            _log.error("%s cannot be compacted, and will not be until the next start: %s", log.tp, error)
        except LogClosedError:
            return False
        except KlammError as error:
            _log.error("%s: compaction failed and will be tried again: %s", log.tp, error)
            return False
        finally:
            with self._lock:
                self._in_progress.discard(log.tp)
        return True

    def _grab_dirtiest_log(self) -> tuple[PartitionLog, LogToClean] | None:
        now_ms = self._clock()
        found: list[tuple[bool, float, PartitionLog, LogToClean]] = []
        with self._lock:
            for tp, log in self._logs.logs().items():
                usable = log.config.compacts and log.offline is None and tp not in self._in_progress
                if not usable or (log.topic_id, tp.partition) in self._uncleanable:
                    continue
                to_clean = self._log_to_clean(log, now_ms)
                if to_clean and (to_clean.overdue or to_clean.ratio > log.config.min_cleanable_dirty_ratio):
                    found.append((to_clean.overdue, to_clean.ratio, log, to_clean))
            if not found:
                return None
            _, _, log, to_clean = max(found, key=lambda row: row[:2])
            self._in_progress.add(log.tp)
        return log, to_clean

    def _log_to_clean(self, log: PartitionLog, now_ms: int) -> LogToClean | None:
        try:
            log.roll_when_older(log.config.max_compaction_lag_ms, now_ms)
            truncations = log.truncations  # read first: the result of a pass counts only if the log has no more by then
            return log_to_clean(log, self.compacted_to(log), truncations, now_ms)
        except LogClosedError:
            return None
        except KlammError as error:
            _log.error("%s: cannot find out whether the log needs compaction: %s", log.tp, error)
            return None

    def compacted_to(self, log: PartitionLog) -> int:
        """Returns the first offset of the log that no pass has read yet; 0 if none has."""
        found = self._compacted.get(log.tp)
        return found.offset if found is not None and _is_valid(found, log) else 0

    def _clean(self, log: PartitionLog, to_clean: LogToClean) -> None:
        first = to_clean.first
        while first < to_clean.end:
            done = compact(log, first, to_clean.end, self._tools)
            first = done.first_dirty
            self._write_checkpoint(log, CompactedTo(log.topic_id, to_clean.truncations, first))
            _log.info(
                "%s is compacted to offset %d: %d bytes became %d, %d records were removed",
                log.tp, first, done.bytes_before, done.bytes_after, done.records_dropped,
            )  # fmt: skip
            if done.keyless_dropped:
                _log.warning("%s: %d of the removed records had no key", log.tp, done.keyless_dropped)

    def _write_checkpoint(self, log: PartitionLog, compacted_to: CompactedTo) -> None:
        with self._lock:
            self._compacted[log.tp] = compacted_to
            logs = self._logs.logs()
            known = {
                tp: found.offset for tp, found in self._compacted.items() if tp in logs and _is_valid(found, logs[tp])
            }
            fault_point("compaction.checkpoint")
            self._checkpoint.write(known)


def _is_valid(found: CompactedTo, log: PartitionLog) -> bool:
    return (found.topic_id, found.truncations) == (log.topic_id, log.truncations)
