"""Holds all partition logs of a broker, in one log directory.

A partition never restarts at offset 0 silently (`missing`): the start fails if the log directory is empty but the
cluster has partitions on this broker, and a partition whose files are lost is not created again if a checkpoint has
its end offset. The operator may accept both at the start. A log that has lost its first segments since a clean stop
is not served either: it would look like a log whose first records retention has deleted, and a leader's log start
applies to all replicas.

A partition directory that the cluster does not know is renamed to `….<uuid>-stray` and never deleted. The directory
of a partition of a deleted topic is renamed to `….<uuid>-delete`, and its files are removed after
`file.delete.delay.ms`. Blocking and thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID, uuid4

from ..config.sections.topic import TopicConfig
from ..errors import KlammError, NoSpaceError, StorageError
from ..records.codecs import CodecTable
from ..records.decode import MAX_DECOMPRESSED
from ..records.partition import TopicPartition
from .cut_batches import set_aside_before_adoption
from .data_ids import (
    DataIdentity,
    identity_at_start,
    is_copy,
    kernel_boot_id,
    place_of,
    read_identity,
    write_identity,
)
from .disk_space import DiskSpace
from .log_directory import DirectoryLock, claim_meta, leave_clean_marker, rename_directory, take_clean_marker
from .partition_log import PartitionLog
from .recovery.loader import OpenFrom
from .recovery.missing_logs import KnownPast, MissingLogs
from .recovery.parallel_opening import Opening, open_all
from .segment.file_operations import remove_tree, rename, storage, sync_directory, sync_file_system
from .segment.naming import (
    LOG,
    is_deleted,
    is_stray,
    parse_directory,
    parse_segment_file,
    partition_directory,
    suffixed,
)
from .segment.open_files import DEFAULT_LIMIT, OpenFiles
from .state.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    SCRUB_OFFSETS,
    OffsetCheckpoint,
)
from .state.clock import Clock, system_clock
from .state.given_producer_ids import GivenProducerIds
from .state.last_start import LastStart, read_last_start, write_last_start
from .state.steady_clock import SteadyClock
from .state.topic_id import change_topic_id, read_topic_id, uuid_text

__all__ = ["ConfigFor", "LogManager", "LogTuning", "ScrubCounts"]

_log = logging.getLogger(__name__)
_DAY_MS: Final = 86_400_000
_MOST_PASSED_MS = 60_000
"""The most time, in ms, that one round of maintenance adds to the age of idle producers."""
_FLUSHING_S: Final = 1.0
_SYNC_AT_ONCE: Final = 16  # partitions
_MAX_RESCAN_BYTES: Final = 4 << 20  # read in about 4 ms; the three files of a snapshot cost 1 ms
ConfigFor = Callable[[str], TopicConfig]
"""Returns the configuration of a topic by its name, for the logs found at the start; the defaults for an unknown
topic."""


@dataclass(frozen=True, slots=True)
class LogTuning:
    """The settings of a broker for all its logs.

    - `recovery_threads`: number of threads that open the logs at the start.
    - `flush_interval_ms`: the longest time that appended records stay unflushed and the recovery point unchanged.
    - `verify_on_read`: every read checks the CRC of each batch.
    - `open_files`: upper bound of open segment files.
    - `max_rescan_bytes`: flushed bytes of a partition that crash recovery may read again. A higher value writes the
      indexes of the active segment less often.
    - `decompressed_max_bytes`: upper bound of one decompressed batch, for topics that require reading the records.
    """

    recovery_threads: int = 2
    flush_interval_ms: int = 60_000
    verify_on_read: bool = False
    open_files: int = DEFAULT_LIMIT
    max_rescan_bytes: int = _MAX_RESCAN_BYTES
    decompressed_max_bytes: int = MAX_DECOMPRESSED


@dataclass(slots=True)
class ScrubCounts:
    """The counts of the scrubber since the start of the broker."""

    bytes: int = 0
    segments: int = 0
    passes: int = 0
    corrupt_batches: int = 0
    corrupt_indexes: int = 0


class LogManager:
    """Opens, creates, maintains and closes the logs. Holds the lock of the directory from construction to `close`."""

    def __init__(
        self,
        log_dir: str | Path,
        *,
        broker_id: int,
        cluster_id: str,
        codecs: CodecTable,
        config_for: ConfigFor = lambda _: TopicConfig(),
        clock: Clock = system_clock,
        producer_id_expiration_ms: int = _DAY_MS,
        on_visible: Callable[[TopicPartition], None] | None = None,
        tuning: LogTuning = LogTuning(),
        elapsed: Clock | None = None,
        expected: Collection[TopicPartition] = (),
        accept_missing: bool = False,
        past: KnownPast | None = None,
        known_data: Collection[str] = (),
    ) -> None:
        """Locks the directory, checks `meta.properties` and opens every log; raises `StorageError` on failure.

        `expected`: the partitions that the cluster has on this broker. `accept_missing`: partitions whose logs are
        lost may restart at offset 0. `known_data`: the data ids by which the cluster knows this broker's replicas;
        of those that are ancestors none is forgotten, and if missing logs are accepted, or the directory was restored
        from a backup, all become ancestors of the new one. `past`: the coordination's knowledge of this directory.

        `elapsed`: a monotonic clock in ms; with it, setting `clock` deletes no records and makes no producer old.
        `on_visible` is called when more records of a partition become visible to consumers; it must not block.
        """
        self.directory = Path(log_dir).absolute()
        self._codecs = codecs
        self._clock = clock
        self._steady = SteadyClock(clock, elapsed) if elapsed else None
        self._elapsed = elapsed or clock
        self._expired_ms = self._elapsed()
        """The time, by `elapsed`, of the last expiry of idle producers."""
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._on_visible = on_visible
        self._tuning = tuning
        self._files = OpenFiles(tuning.open_files)
        self.space = DiskSpace(self.directory)
        self._lock = Lock()
        self._checkpoint_lock = Lock()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._deleted: list[tuple[int, Path]] = []
        self._recovery_points = OffsetCheckpoint(self.directory / RECOVERY_POINTS)
        self._log_starts = OffsetCheckpoint(self.directory / LOG_STARTS)
        self._high_watermarks = OffsetCheckpoint(self.directory / HIGH_WATERMARKS)
        self._shared = {name: OffsetCheckpoint(self.directory / name) for name in (CLEANER_OFFSETS, SCRUB_OFFSETS)}
        self.scrubbed = ScrubCounts()
        self._directory_lock = DirectoryLock(self.directory)
        try:
            past = past or KnownPast()
            self._missing = MissingLogs(self.directory, expected, accept_missing, past)
            self.meta = claim_meta(self.directory, cluster_id, broker_id)
            self.given_producer_ids = GivenProducerIds(self.directory)
            self._load(config_for, tuple(known_data), accept_missing=accept_missing)
            if self._missing.new_directory:
                self.write_checkpoints()  # from now on a directory without checkpoints counts as emptied
        except BaseException:
            self._directory_lock.release()
            raise

    def _load(self, config_for: ConfigFor, known_data: tuple[str, ...], *, accept_missing: bool) -> None:
        clean = take_clean_marker(self.directory)
        found = read_identity(self.directory, clean=clean)
        recovery, starts, watermarks = map(_read, (self._recovery_points, self._log_starts, self._high_watermarks))
        ends = {tp: max(recovery.get(tp, 0), watermarks.get(tp, 0)) for tp in {*recovery, *watermarks}}
        self._missing.find(ends)
        with storage(f"cannot read {self.directory}"):
            names = sorted(path.name for path in self.directory.iterdir() if path.is_dir())
        openings = []
        for name in names:
            tp = parse_directory(name)
            if is_deleted(name):
                self._deleted.append((self._clock(), self.directory / name))
            elif tp in self._missing.former and not is_stray(name):
                self._forget(tp)
                self._set_directory_aside(tp)
            elif tp is not None and not is_stray(name) and tp not in self._missing:
                topic_id = read_topic_id(self.directory / name)
                if topic_id is None:
                    _log.warning("%s: %s has no topic id", tp, self.directory / name)
                    self._set_directory_aside(tp)
                    self._missing.set_aside(tp, ends.get(tp, 0))
                    continue
                if clean and tp in starts and (first := _first_segment(self.directory / name)) > starts[tp]:
                    _log.error(
                        "%s: the log begins at offset %d, but by its checkpoint it began at %d: the records between "
                        "them are lost here, and would be deleted everywhere if this broker led",
                        tp, first, starts[tp],
                    )  # fmt: skip
                    self._set_directory_aside(tp)
                    self._missing.set_aside(tp, ends.get(tp, 0))
                    continue
                point, start, watermark = (offsets.get(tp, 0) for offsets in (recovery, starts, watermarks))
                if tp in self._missing.accepted:
                    point = watermark = 0
                known = OpenFrom(clean and tp in recovery, point, start, watermark)
                openings.append(Opening.of(self.directory / name, tp, topic_id, known))

        def open_one(opening: Opening) -> PartitionLog:
            log = self._open(opening.tp, opening.topic_id, config_for(opening.tp.topic), opening.known)
            if log.recovery_cut_more and found is not None:  # also if this start ends before it writes a new id
                with self._checkpoint_lock:
                    write_identity(self.directory, replace(found, flush_failed=True))
            return log

        self._logs = open_all(openings, open_one, self._tuning.recovery_threads)
        if found is None and known_data and accept_missing and self._logs:  # an empty disk is new: nothing descends
            found = DataIdentity(known_data, "")
        place = place_of(self.directory)
        copied = found is not None and is_copy(found, place)
        if copied:
            self.meta = rename_directory(self.directory, self.meta)
            place = place_of(self.directory)
        if found is not None and (copied or self._missing.is_older):  # a backup is the beginning of what is known
            own = (data_id for data_id in known_data if data_id not in found.strange_ids)
            found = replace(found, data_ids=tuple(dict.fromkeys((*found.data_ids, *own))))
        cut = sorted(str(tp) for tp, log in self._logs.items() if log.recovery_cut_more)
        self._identity = identity_at_start(
            found,
            kernel_boot_id(),
            lambda: uuid_text(uuid4()),
            recovery_cut=bool(cut) or self._missing.is_older or bool(self._missing.accepted),
            place=place,
            named=known_data,
        )
        if found is not None and self._identity.data_ids != found.data_ids:
            why = f" (cut: {', '.join(cut[:5])})" if cut else " (it is a copy, perhaps an older one)" if copied else ""
            _log.warning(
                "%s: acknowledged records may be missing since the last stop%s: the directory gets a new data id",
                self.directory, why,
            )  # fmt: skip
        write_identity(self.directory, self._identity)
        if cut:  # or the next start would find the same loss, and draw another id
            self.write_checkpoints()

    def _open(self, tp: TopicPartition, topic_id: UUID, config: TopicConfig, known: OpenFrom | None) -> PartitionLog:
        directory = self.directory / partition_directory(tp)
        log = PartitionLog.open(
            directory, tp, topic_id, config, self._clock, codecs=self._codecs, known=known,
            files=self._files, on_visible=self._on_visible, verify_on_read=self._tuning.verify_on_read,
            decompressed_max_bytes=self._tuning.decompressed_max_bytes,
        )  # fmt: skip
        log.on_truncating = self._truncating
        log.on_truncated = self._truncated
        log.on_flush_failed = self._flush_failed
        log.on_no_space = self.space.ran_out
        return log

    # -- partitions ----------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        return self._logs.get(tp)

    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """Returns a copy of the map of all logs."""
        with self._lock:
            return dict(self._logs)

    def highest_producer_id(self) -> int:
        """Returns the highest producer id that is in a log or that this broker has allocated; -1 if none. A new
        producer must get a higher one."""
        in_logs = max((log.highest_producer_id for log in self.logs().values()), default=-1)
        return max(in_logs, self.given_producer_ids.highest)

    def create(self, tp: TopicPartition, topic_id: UUID, config: TopicConfig, *, durable: bool = True) -> PartitionLog:
        """Returns the partition's log with this configuration; creates it if it does not exist. A log of another topic
        id (the topic was deleted and created again while this broker was down) is set aside. Without `durable` the
        caller calls `make_durable` before the log is used. Raises `InvalidTopicNameError` and `StorageError`."""
        partition_directory(tp)  # refuses an invalid name before anything changes
        with self._checkpoint_lock, self._lock:
            log = self._logs.get(tp)
            if log is not None and log.topic_id != topic_id:
                _log.warning(
                    "%s: %s has the topic id %s, but the cluster has %s", tp, log.directory, log.topic_id, topic_id
                )
                self._take_out(tp, "stray")
                log = None
            if log is None:
                self._missing.check(tp)
                own = (self._log_starts, self._recovery_points, self._high_watermarks)
                for checkpoint in (*own, *self._shared.values()):
                    checkpoint.forget(tp)
                log = self._logs[tp] = self._open(tp, topic_id, config, OpenFrom(clean=True, durable=durable))
            elif log.config != config:
                log.reconfigure(config)
            return log

    def take_over(
        self, tp: TopicPartition, former: UUID, topic_id: UUID, cut_at: Callable[[PartitionLog], int]
    ) -> None:
        """Makes the log of the topic `former`, which nothing uses any more, that of `topic_id`; `adopted_cut` finds
        what was cut. Does nothing if there is no log of `former`.

        It is cut at `cut_at` before it has the new id: a crash between the two repeats the cut. Raises `StorageError`.
        """
        log = self.get(tp)
        if log is None or log.topic_id != former:
            return
        if log.offline is not None:
            raise StorageError(f"{tp} is offline: {log.offline}")
        log.rest()
        cut = cut_at(log)
        first = max(cut, log.log_start_offset)
        if first < log.log_end_offset:
            set_aside_before_adoption(log, first, topic_id)
        if cut < log.log_start_offset:
            log.restart_at(cut)
        else:
            log.truncate_to(cut)
        with self._lock:
            change_topic_id(log.directory, topic_id)
            log.topic_id = topic_id

    def note_start(self, broker_epoch: int, *, complete: bool = True) -> None:
        """Records durably that this broker has opened its partitions under this registration; `complete`: every one of
        them. An older directory that lacks some stays one without a complete start. Raises `StorageError`."""
        last = LastStart() if self._missing.is_older else read_last_start(self.directory)
        write_last_start(self.directory, last.then(broker_epoch, complete=complete))

    def make_durable(self) -> dict[TopicPartition, StorageError]:
        """Makes new directories and the current leader epochs durable; returns the errors of the partitions that
        failed. For many partitions the file system is synced once: fsyncs of each of 2,000 would take 10 s or more."""
        waiting = {tp: (log, log.leader_epoch_changes) for tp, log in self.logs().items() if not log.is_durable}
        whole = len(waiting) >= _SYNC_AT_ONCE and sync_file_system(self.directory)
        failed: dict[TopicPartition, StorageError] = {}
        if not whole and not all(log.is_claimed for log, _ in waiting.values()):
            try:
                with storage(f"cannot write {self.directory}"):
                    sync_directory(self.directory)
            except StorageError as error:
                failed = {tp: error for tp, (log, _) in waiting.items() if not log.is_claimed}
        for tp, (log, changes) in waiting.items():
            if tp in failed:
                continue
            try:
                log.make_durable(written=changes if whole else -1)
            except StorageError as error:
                failed[tp] = error
        return failed

    @property
    def missing(self) -> MissingLogs:
        """The partitions whose logs are lost."""
        return self._missing

    def shared_checkpoint(self, name: str) -> OffsetCheckpoint:
        """Returns the checkpoint of the cleaner or of the scrubber. The manager owns both, because it removes the entry
        of a partition that is created again."""
        return self._shared[name]

    def forget_checkpoints(self, tps: Collection[TopicPartition]) -> None:
        """Removes the entries of logs that are about to be removed or set aside. Each of them does so by itself; for
        many of them this is one write. Raises `StorageError`."""
        with self._checkpoint_lock:
            self._forget(*tps)

    def _forget(self, *tps: TopicPartition) -> None:
        self._correct(lambda checkpoint: checkpoint.forget(*tps), self._recovery_points, self._high_watermarks)

    @staticmethod
    def _correct(change: Callable[[OffsetCheckpoint], None], *checkpoints: OffsetCheckpoint) -> None:
        """Changes checkpoints before a log is removed or truncated. A full disk does not prevent that, since it
        frees space: the entries stay until the next write, and a kill before it costs a new data id."""
        for checkpoint in checkpoints:
            try:
                change(checkpoint)
            except NoSpaceError as error:
                _log.warning("%s; written again with the next checkpoints", error)

    def remove(self, tp: TopicPartition) -> None:
        """Closes the log of a deleted partition; its files are removed after `file.delete.delay.ms`. Does nothing if
        there is no such log."""
        with self._checkpoint_lock, self._lock:
            log = self._logs.get(tp)
            if log is not None:
                target = self._take_out(tp, "delete")
                self._deleted.append((self._clock() + log.config.file_delete_delay_ms, target))

    def set_aside(self, tp: TopicPartition) -> Path | None:
        """Closes the log of a partition that the cluster does not know and renames its directory; returns the new
        path."""
        with self._checkpoint_lock, self._lock:
            return self._take_out(tp, "stray") if tp in self._logs else None

    def _take_out(self, tp: TopicPartition, kind: str) -> Path:
        """Closes the log and renames its directory, for a caller that holds both locks.

        The entries in the checkpoints are removed first: an entry always belongs to the log in the partition's own
        directory, so that an entry without a directory proves that a log is lost (`MissingLogs`).
        """
        log = self._logs[tp]
        self._forget(tp)
        log.close(clean=kind == "stray" and log.offline is None)
        del self._logs[tp]
        return self._rename(tp, kind)

    def _set_directory_aside(self, tp: TopicPartition) -> None:
        self._rename(tp, "stray")

    def _rename(self, tp: TopicPartition, kind: str) -> Path:
        source = self.directory / partition_directory(tp)
        target = self.directory / suffixed(tp, uuid4(), kind)
        with storage(f"cannot rename {source}"):
            rename(source, target)
            sync_directory(self.directory)
        if kind == "stray":
            _log.warning(
                "%s: %s was set aside as %s; remove it when its records are no longer needed", tp, source, target.name
            )
        return target

    def delete_records(self, log: PartitionLog, offset: int) -> int:
        """Advances the start offset of `log`, which is one of this manager's, to `offset` durably and returns it.
        Raises what `delete_records_before` raises, and `StorageError` if the log was closed or the checkpoint cannot
        be written.

        It takes the log, since a later topic's log may have the same name meanwhile.
        """
        start = log.delete_records_before(offset)
        with self._checkpoint_lock:
            self._log_starts.write({name: each.checkpointed.log_start_offset for name, each in self.logs().items()})
        log.apply_retention(self._for_deleting(self._clock()))
        return start

    @property
    def data_ids(self) -> tuple[str, ...]:
        """The ids of the directory's data, the newest first (`data_ids`)."""
        return self._identity.data_ids

    def _flush_failed(self) -> None:
        """Records on disk that a flush has failed, so that the next start draws a new data id."""
        self._identity = replace(self._identity, flush_failed=True)
        try:
            write_identity(self.directory, self._identity)
        except StorageError as error:
            _log.error("%s: the failed flush cannot be recorded: %s", self.directory, error)

    def _truncating(self, log: PartitionLog, end: int) -> None:
        """Lowers the checkpoints before a truncation of a follower's log.

        If a recovery point or a high watermark stayed above the new end, a start would conclude that the log has
        lost records. Once the log has grown again, recovery after a crash would treat batches appended since as
        flushed, and keep damaged ones where it must truncate the log; or show batches that are not committed, as
        after an unclean election. Raises `StorageError` if a checkpoint cannot be written.
        """
        own = (self._log_starts, self._recovery_points, self._high_watermarks)
        with self._checkpoint_lock:
            self._correct(lambda checkpoint: checkpoint.lower(log.tp, end), *own)

    def _truncated(self, log: PartitionLog, sealed: bool) -> None:
        """Corrects the cleaner's checkpoint: with an offset above the new end, compaction would treat batches appended
        since as compacted. Raises `StorageError` if it cannot be written."""
        if sealed:
            self._shared[CLEANER_OFFSETS].forget(log.tp)

    # -- maintenance ---------------------------------------------------------------------------------------------

    def run_maintenance(self, now_ms: int) -> None:
        """Flushes the logs that are due, expires idle producers, removes the files of deleted segments and topics,
        writes the checkpoints.

        Call it every few seconds from one worker thread. A failure of one partition is logged; the others continue.
        """
        deleting_ms = self._for_deleting(now_ms)
        elapsed_ms = self._elapsed()
        # Bounded: after a suspension a producer may have sent something before this call, at the time of the last one.
        passed_ms = min(max(0, elapsed_ms - self._expired_ms), _MOST_PASSED_MS)
        self._expired_ms = elapsed_ms
        self._for_each("maintenance", lambda log: self._maintain(log, now_ms, passed_ms))
        # On its own: on a full disk a flush may fail until these files are removed, and it must not wait for them.
        self._for_each("maintenance", lambda log: log.remove_expired_files(deleting_ms))
        self._move_recovery_points(now_ms)
        self._remove_deleted(now_ms)
        try:
            self.write_checkpoints()
        except NoSpaceError as error:
            known = self.space.is_full
            self.space.ran_out(None, error)
            if not known:
                raise

    def apply_retention(self, now_ms: int) -> None:
        """Applies `retention.ms` and `retention.bytes` to every log; `run_maintenance` removes the segments' files.

        Call it every `log.retention.check.interval.ms`. A failure of one partition is logged; the others continue.
        """
        deleting_ms = self._for_deleting(now_ms)
        self._for_each("retention", lambda log: log.apply_retention(deleting_ms))

    def _for_each(self, what: str, work: Callable[[PartitionLog], object]) -> None:
        for tp, log in self.logs().items():
            if log.offline is None:
                try:
                    work(log)
                except KlammError as error:
                    self._failed(tp, what, error)

    def _failed(self, tp: TopicPartition, what: str, error: KlammError) -> None:
        """Logs the error; while the disk is full, not once for each partition."""
        if not isinstance(error, NoSpaceError) or not self.space.is_full:
            _log.error("%s: %s failed: %s", tp, what, error)
        if isinstance(error, NoSpaceError):
            self.space.ran_out(tp, error)

    def _for_deleting(self, now_ms: int) -> int:
        with self._lock:
            return self._steady.for_deleting(now_ms) if self._steady else now_ms

    def _maintain(self, log: PartitionLog, now_ms: int, passed_ms: int) -> None:
        log.check_files()
        if log.offline is not None:
            return
        if log.flush_is_due(now_ms):
            log.flush()
        log.expire_producers(passed_ms, self._producer_id_expiration_ms)

    def _move_recovery_points(self, now_ms: int) -> None:
        """Flushes logs that were not flushed for `flush_interval_ms`, so that crash recovery reads no more than the
        bytes appended since, plus `max_rescan_bytes`. Stops after one second: with thousands of partitions the next
        round flushes the others."""
        due = [log for log in self.logs().values() if log.recovery_point_is_due(now_ms, self._tuning.flush_interval_ms)]
        until = time.monotonic() + _FLUSHING_S
        for log in sorted(due, key=lambda log: log.last_flush_ms):
            try:
                log.flush(snapshot=log.rescan_exceeds(self._tuning.max_rescan_bytes))
            except KlammError as error:
                self._failed(log.tp, "maintenance", error)
            if time.monotonic() > until:
                break

    def _remove_deleted(self, now_ms: int) -> None:
        with self._lock:
            due = [path for at, path in self._deleted if at <= now_ms]
            self._deleted = [(at, path) for at, path in self._deleted if at > now_ms]
        for path in due:
            try:
                with storage(f"cannot remove {path}"):
                    remove_tree(path)
            except StorageError as error:
                _log.error("%s; the next start tries again", error)

    def write_checkpoints(self) -> None:
        """Writes all checkpoints. The log start offsets come first: opening a log corrects a start offset below its
        first segment."""
        with self._checkpoint_lock:
            offsets = {tp: log.checkpointed for tp, log in self.logs().items()}
            self._log_starts.write({tp: each.log_start_offset for tp, each in offsets.items()})
            self._recovery_points.write({tp: each.recovery_point for tp, each in offsets.items()})
            watermarks = {tp: each.high_watermark for tp, each in offsets.items()}
            self._high_watermarks.write({**self._missing.ends(), **watermarks})

    def close(self, *, clean: bool = True) -> None:
        """Closes all logs and releases the directory. With `clean` it also writes the checkpoints, and the marker of a
        clean stop if every log was flushed."""
        failed = False
        for tp, log in self.logs().items():
            try:
                failed = failed or log.offline is not None
                log.close(clean=clean)
            except KlammError as error:
                failed = True
                _log.error("%s: closing failed: %s", tp, error)
        try:
            if clean:
                self.write_checkpoints()
            if clean and not failed:
                leave_clean_marker(self.directory)
        finally:
            self._directory_lock.release()


def _first_segment(directory: Path) -> int:
    """Returns the base offset of the first segment; 0 if there is none."""
    with storage(f"cannot read {directory}"):
        found = [parse_segment_file(path.name) for path in directory.iterdir()]
    return min((parsed[0] for parsed in found if parsed is not None and parsed[1] == LOG), default=0)


def _read(checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
    """Returns the offsets of a checkpoint; none if it is damaged, so that the start checks all segments."""
    try:
        return checkpoint.read()
    except StorageError as error:
        _log.warning("%s; the logs are checked from their start", error)
        return {}
