"""Reads old segments again at a bounded rate, so that damage is found while another copy still exists.

A pass checks every segment that is no longer written: the chain of its headers, the CRC of each batch, the epochs, and
its two indexes against the batches that they name. `scrub-offset-checkpoint` has the progress of the pass; the file is
empty between two passes, and its modification time is the end of the last one. Damage is logged in one line and
counted. Nothing is repaired: a read of a damaged batch fails (CORRUPT_MESSAGE), all others are served.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from ...errors import CorruptRecordError, KlammError, StorageError
from ...records.header import HEADER_SIZE, BatchHeader
from ...records.partition import TopicPartition
from ..errors import LogClosedError
from ..manager import LogManager
from ..partition_log import PartitionLog
from ..recovery.resync import find_whole
from ..segment.file_operations import OpenFile, storage
from ..segment.reading import BrokenChainError, Extent, read_extents
from ..segment.segment import Segment
from ..state.checkpoints import SCRUB_OFFSETS, OffsetCheckpoint
from ..state.clock import Clock, system_clock
from .throttle import ThreadShutdownError, Throttle

WINDOW: Final = 256 * 1024
_log = logging.getLogger(__name__)
_JOIN_S: Final = 30.0
_IDLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class ScrubConfig:
    """The settings `log.scrub.*`. `interval_ms`: the time from the end of a pass to the next one."""

    bytes_per_second: int = 4 * 1024 * 1024
    interval_ms: int = 604_800_000


class Scrubber:
    """Checks segments in a thread of its own (`start`, `stop`) or in the caller's (`run_once`). Construct it once the
    logs are loaded."""

    def __init__(self, logs: LogManager, config: ScrubConfig, clock: Clock = system_clock) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._counts = logs.scrubbed
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._throttle = Throttle(config.bytes_per_second, self._stopping.wait)
        self._checkpoint: OffsetCheckpoint = logs.shared_checkpoint(SCRUB_OFFSETS)
        self._done = self._read()
        self._limits: dict[TopicPartition, int] = {}
        self._in_pass = bool(self._done)
        self._found = 0

    def _read(self) -> dict[TopicPartition, int]:
        try:
            return self._checkpoint.read()
        except StorageError as error:
            _log.warning("%s; the pass begins at the first segment of each log", error)
            return {}

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="klamm-scrubber", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the check in progress and waits for the thread, at most 30 s."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                worked = self.run_once()
            except KlammError as error:
                _log.error("the scrubber: %s", error)
                worked = False
            except Exception as error:  # the broker continues to serve if the scrubber fails
                _log.error("the scrubber: unexpected %s: %s", type(error).__name__, error)
                worked = False
            if not worked:
                self._stopping.wait(_IDLE_S)

    def run_once(self) -> bool:
        """Checks one segment. Returns False if none is due; raises `StorageError` if the checkpoint cannot be
        written."""
        if not self._in_pass and not self._is_due():
            return False
        self._in_pass = True
        self._limits = self._limits or self._ends()
        following = self._next()
        if following is None:
            self._end_pass()
            return False
        log, segment, end = following
        try:
            self._check(log, segment)
        except ThreadShutdownError:
            return False
        except LogClosedError:
            return True  # the log was deleted or is offline: the next call skips it
        except StorageError as error:
            self._log_damage(log, f"{segment.path} cannot be checked: {error}")
        self._advance(log, end)
        return True

    def _ends(self) -> dict[TopicPartition, int]:
        """Returns the offset at which the pass ends in each log. Segments rolled later wait for the next pass, because
        a busy partition would otherwise delay the others."""
        found = {}
        for tp, log in self._logs.logs().items():
            try:
                found[tp] = log.sealed_end(log.sealed_segments())
            except LogClosedError:
                continue
        return found

    def _is_due(self) -> bool:
        with storage(f"cannot read {self._checkpoint.path}"):
            if not self._checkpoint.path.exists():
                return True
            ended_ms = self._checkpoint.path.stat().st_mtime_ns // 1_000_000
        return not 0 <= self._clock() - ended_ms < self._config.interval_ms

    def _next(self) -> tuple[PartitionLog, Segment, int] | None:
        """Returns the log and the next segment of this pass, and the base offset of the segment after it; None at the
        end of the pass."""
        for tp, log in sorted(self._logs.logs().items()):
            done = self._done.get(tp, -1)
            try:
                sealed = log.sealed_segments()
            except LogClosedError:
                continue
            for index, segment in enumerate(sealed):
                end = sealed[index + 1].base_offset if index + 1 < len(sealed) else log.sealed_end(sealed)
                if done <= segment.base_offset < self._limits.get(tp, -1) and segment.size:
                    return log, segment, end
        return None

    def _advance(self, log: PartitionLog, end: int) -> None:
        self._counts.segments += 1
        known = self._logs.logs()
        self._done[log.tp] = end
        self._done = {tp: at for tp, at in self._done.items() if tp in known}
        self._checkpoint.write(self._done)

    def _end_pass(self) -> None:
        if self._done:
            _log.info("a pass has checked all segments that are no longer written: %d damaged places", self._found)
            self._counts.passes += 1
        self._done, self._limits, self._in_pass, self._found = {}, {}, False, 0
        self._checkpoint.write({}, always=True)

    # -- one segment ---------------------------------------------------------------------------------------------

    def _check(self, log: PartitionLog, segment: Segment) -> None:
        file = log.file_of(segment)
        with storage(f"cannot read {segment.path}"):
            whole = self._check_batches(log, segment, file)
            self._check_indexes(log, segment, file, whole)

    def _check_batches(self, log: PartitionLog, segment: Segment, file: OpenFile) -> bool:
        """Checks the batches window by window; continues after a damaged place with the next whole batch. Returns True
        if all are whole."""
        whole = True
        rules = log.chain_rules(verify=True)
        position, expected, size = 0, segment.base_offset, segment.size
        while position < size:
            hints: dict[int, int] = {}
            cold = file.read_cached(min(WINDOW, size - position), position) is None
            extent = Extent(file, segment.path, position, size, expected, hints)
            data, broken = read_extents([extent], WINDOW, True, rules)
            if cold and data:
                file.forget_pages(position, len(data))
            self._counts.bytes += len(data or b"")
            self._throttle.passed(len(data or b""))
            if broken is not None:
                whole = False
                self._report_damaged_batch(log, segment, broken)
                found = find_whole(file, broken.position + 1, size, expected)
                if found is None:
                    return whole
                position = found
                expected = BatchHeader.parse(file.read(HEADER_SIZE, found)).base_offset
            elif hints:
                expected, position = hints.popitem()
            else:
                return whole
        return whole

    def _check_indexes(self, log: PartitionLog, segment: Segment, file: OpenFile, whole: bool) -> None:
        """Checks the indexes; a missing one counts as damaged. Checks the batches that the entries name only if all
        batches are `whole`."""
        try:
            entries = segment.stored_index()
            for last_offset, position in entries if whole else ():
                header = BatchHeader.parse(file.read(HEADER_SIZE, position))
                self._throttle.passed(HEADER_SIZE)
                if header.last_offset != last_offset:
                    raise CorruptRecordError(
                        f"its entry for offset {last_offset} points to offset {header.last_offset}"
                    )
        except (CorruptRecordError, StorageError) as error:
            if segment in log.sealed_segments():
                self._counts.corrupt_indexes += 1
                self._log_damage(log, f"an index of {segment.path} is damaged ({error}); its next use rebuilds it")

    def _report_damaged_batch(self, log: PartitionLog, segment: Segment, broken: BrokenChainError) -> None:
        if segment not in log.sealed_segments():
            return  # the segment was replaced or truncated during the scan
        self._counts.corrupt_batches += 1
        self._found += 1
        log.report(broken)

    def _log_damage(self, log: PartitionLog, what: str) -> None:
        self._found += 1
        _log.error("%s: %s", log.tp, what)
