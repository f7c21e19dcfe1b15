"""Re-reads what is old, at a bounded rate, so that damage is found while there is still another copy somewhere.

A pass goes through every segment that is no longer written: the chain of its headers, each batch's CRC, the epochs, and
its two indexes against the batches that they name. How far the pass is stands in `scrub-offset-checkpoint`; the file is
empty between two passes, and its time is when the last one ended. What is damaged is said in one line and counted. It
stays where it is: a read of it fails (CORRUPT_MESSAGE), everything else is served.
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
from .throttle import Throttle, ToldToStopError

WINDOW: Final = 256 * 1024
_log = logging.getLogger(__name__)
_JOIN_S: Final = 30.0
_IDLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class ScrubConfig:
    """`log.scrub.*`. `interval_ms`: from the end of a pass to the next one."""

    bytes_per_second: int = 4 * 1024 * 1024
    interval_ms: int = 604_800_000


class Scrubber:
    """Made once the logs are loaded. `start` and `stop` its thread, or `run_once`."""

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
            _log.warning("%s; all segments are checked from the first on", error)
            return {}

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="klamm-scrubber", daemon=True)
        self._thread.start()

    def stop(self) -> None:
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
            except Exception as error:  # a broker goes on serving whatever happens to its housekeeping
                _log.error("the scrubber: unexpected %s: %s", type(error).__name__, error)
                worked = False
            if not worked:
                self._stopping.wait(_IDLE_S)

    def run_once(self) -> bool:
        """Checks one segment; False if none is due. `StorageError` if the checkpoint cannot be written."""
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
        except ToldToStopError:
            return False
        except LogClosedError:
            return True  # it is gone, or offline: the next look passes it over
        except StorageError as error:
            self._say(log, f"{segment.path} cannot be checked: {error}")
        self._note(log, end)
        return True

    def _ends(self) -> dict[TopicPartition, int]:
        """Returns where a pass ends. Segments rolled later wait for the next pass, or a busy partition would delay
        others."""
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
        """Returns the next segment of this pass, its log, and where the segment after it begins."""
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

    def _note(self, log: PartitionLog, end: int) -> None:
        self._counts.segments += 1
        known = self._logs.logs()
        self._done[log.tp] = end
        self._done = {tp: at for tp, at in self._done.items() if tp in known}
        self._checkpoint.write(self._done)

    def _end_pass(self) -> None:
        if self._done:
            _log.info("all cold segments were checked: %d damaged places found in this pass", self._found)
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
        """Checks window by window, each from the end of the one before; after a damaged place from the next whole
        batch. Returns whether all is whole."""
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
                self._found_broken(log, segment, broken)
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
        """Counts a missing index as damaged. The batches that entries name are checked only if the batches are
        `whole`."""
        try:
            entries = segment.stored_index()
            for last_offset, position in entries if whole else ():
                header = BatchHeader.parse(file.read(HEADER_SIZE, position))
                self._throttle.passed(HEADER_SIZE)
                if header.last_offset != last_offset:
                    raise CorruptRecordError(f"its entry for offset {last_offset} leads to offset {header.last_offset}")
        except (CorruptRecordError, StorageError) as error:
            if segment in log.sealed_segments():
                self._counts.corrupt_indexes += 1
                self._say(log, f"an index of {segment.path} is damaged ({error}): it is rebuilt when it is needed")

    def _found_broken(self, log: PartitionLog, segment: Segment, broken: BrokenChainError) -> None:
        if segment not in log.sealed_segments():
            return  # the segment was replaced or truncated during the scan
        self._counts.corrupt_batches += 1
        self._found += 1
        log.report(broken)

    def _say(self, log: PartitionLog, what: str) -> None:
        self._found += 1
        _log.error("%s: %s", log.tp, what)
