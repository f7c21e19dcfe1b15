"""Opens a partition's directory: uses the files of a clean stop as they are, and checks those of a crash.

After a crash it reads every segment from the one that contains the recovery point on and checks its CRCs; the log is
truncated at the first batch that is incomplete, out of order, or of another leader epoch than the epoch file has for
it. Segments after a truncated one are renamed `….<ms>.corrupt` and kept. Missing or wrong indexes and producer states
are rebuilt from batch headers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ...config.sections.topic import TopicConfig
from ...errors import CorruptRecordError, StorageError
from ...records.partition import TopicPartition
from ..cleanup.swap import recover_swaps
from ..segment.file_operations import remove, storage
from ..segment.index_builder import Checked
from ..segment.log_segments import LogSegments
from ..segment.naming import (
    CLEANED,
    CORRUPT,
    INDEXES,
    LEADER_EPOCHS,
    LOG,
    OFFSET_GAPS,
    REMOVED,
    TEMPORARY,
    parse_segment_file,
)
from ..segment.open_files import OpenFiles
from ..segment.segment import Segment
from ..state.leader_epochs import NO_EPOCH, LeaderEpochs
from ..state.producer_snapshots import Snapshots
from ..state.producer_state_manager import ProducerStateManager

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenFrom:
    """The state of a partition in the checkpoints of the log directory, before its files are read.

    `clean`: the last stop was clean. `checked` counts the bytes that recovery reads. The defaults are for a log without
    checkpoints, and everything is checked. Without `durable` the caller makes a new directory durable, before the log
    is used.
    """

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    checked: Checked = field(default_factory=Checked)
    durable: bool = True


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The loaded parts of a `PartitionLog`. Only the file of the active segment is open."""

    segments: LogSegments
    epochs: LeaderEpochs
    producers: ProducerStateManager
    epochs_start: int
    """The offset to which the log start offset was raised before a crash, by the leader epochs; 0 if it was not
    raised. The checkpoint of log start offsets is written after the epochs."""
    cut_more: bool
    """True if recovery has cut more than one unfinished write at the end of the log, or batches of another epoch."""


def load(
    tp: TopicPartition, directory: Path, config: TopicConfig, known: OpenFrom, now_ms: int, files: OpenFiles
) -> LoadedLog:
    """Returns the checked and repaired parts of the log in `directory`; creates its first segment if it has none."""
    recover_swaps(tp, directory)
    dense = not (directory / OFFSET_GAPS).exists()
    bases = _sweep(directory) or [known.log_start_offset]
    segments = [Segment(tp, directory, base, config, now_ms, files, dense=dense) for base in bases]
    found = len(segments)
    segments = _check(tp, segments, known, now_ms, dense=dense)
    cut_more = len(segments) < found or any(segment.cut_more for segment in segments)
    end = segments[-1].next_offset
    epochs, whole = _read_epochs(tp, directory / LEADER_EPOCHS, empty=end == segments[0].base_offset)
    epochs_start = _raised_start(epochs.first_start_offset, segments, known.log_start_offset)
    epochs.truncate_end(end)
    if whole and not known.clean:
        segments = _add_unflushed_epochs(tp, epochs, segments, known.recovery_point, now_ms)
        cut_more = cut_more or segments[-1].next_offset < end
        end = segments[-1].next_offset
        epochs.truncate_end(end)
    producers = ProducerStateManager(tp, Snapshots(tp, directory))
    producers.reload(end, segments, None if whole else epochs)
    for segment in segments[:-1]:
        segment.seal()
        segment.close_file()
    kept = LogSegments(tp, directory, segments, config, files, dense=dense)
    return LoadedLog(kept, epochs, producers, epochs_start, cut_more)


def _sweep(directory: Path) -> list[int]:
    """Removes files that a crash or an unfinished removal left; returns the base offsets of the segments, sorted."""
    bases: set[int] = set()
    indexes: list[tuple[int, Path]] = []
    with storage(f"cannot read {directory}"):
        for path in directory.iterdir():
            if path.name.endswith((REMOVED, TEMPORARY, CLEANED)):
                remove(path)
                continue
            parsed = parse_segment_file(path.name)
            if parsed and parsed[1] == LOG:
                bases.add(parsed[0])
            elif parsed and parsed[1] in INDEXES:
                indexes.append((parsed[0], path))
        for base, path in indexes:
            if base not in bases:
                remove(path)
    return sorted(bases)


def _check(tp: TopicPartition, segments: list[Segment], known: OpenFrom, now_ms: int, *, dense: bool) -> list[Segment]:
    """Loads or recovers each segment; returns the segments of the log, without those after a truncated one.

    A segment that is not flushed may have lost its last batches although the next segment has all of its own:
    without gaps (`dense`) the offsets show that, too.
    """
    for index, segment in enumerate(segments):
        later = segments[index + 1 :]
        unsafe = not known.clean and (not later or later[0].base_offset > known.recovery_point)
        if unsafe or not later:
            error = segment.recover(known.recovery_point, known.checked) if unsafe else _load_last(tp, segment, known)
        else:
            _load(tp, segment, later[0].base_offset)
            error = None
        gap = later[0].base_offset - segment.next_offset if later else 0
        if error is None and (gap < 0 or (gap > 0 and dense and unsafe)):
            error = CorruptRecordError(
                f"it ends at offset {segment.next_offset}, but the next segment begins at {later[0].base_offset}"
            )
        if error is not None:
            _end_log_at(tp, segment, later, known.recovery_point, error, now_ms)
            return segments[: index + 1]
    return segments


def _end_log_at(
    tp: TopicPartition,
    segment: Segment,
    later: list[Segment],
    recovery_point: int,
    error: CorruptRecordError,
    now_ms: int,
) -> None:
    """Reports that `segment` was truncated because of `error`, sets the later segments aside, and makes that durable
    before a leader epoch starts at the new end."""
    _report_truncation(tp, segment, recovery_point, error)
    _set_aside(tp, later, f".{now_ms}{CORRUPT}")
    segment.sync_cut()


def _load(tp: TopicPartition, segment: Segment, following: int) -> None:
    """Loads a flushed segment that no longer grows. If it is damaged, reads fail only at the damaged batches."""
    try:
        segment.load()
        if segment.next_offset <= following:
            return
    except CorruptRecordError as error:
        _log.warning("%s: %s is damaged although it was flushed: %s", tp, segment.path, error)
    segment.rebuild_around_damage()


def _load_last(tp: TopicPartition, segment: Segment, known: OpenFrom) -> CorruptRecordError | None:
    try:
        segment.load()
    except CorruptRecordError as error:
        _log.warning("%s: %s is damaged although the last stop was clean: %s", tp, segment.path, error)
        return segment.recover(known.recovery_point)
    return None


def _report_truncation(tp: TopicPartition, segment: Segment, recovery_point: int, error: CorruptRecordError) -> None:
    end = segment.next_offset
    if end < recovery_point:
        _log.error(
            "%s: recovery truncated %s to offset %d: %s; offsets up to %d had been flushed, and are lost",
            tp, segment.path, end, error, recovery_point - 1,
        )  # fmt: skip
    else:
        _log.warning("%s: recovery truncated %s to offset %d: %s", tp, segment.path, end, error)


def _set_aside(tp: TopicPartition, segments: list[Segment], suffix: str) -> None:
    for segment in segments:
        moved = segment.set_aside(suffix)
        names = ", ".join(str(path) for path in moved)
        _log.warning("%s: set aside a segment after a damaged one as %s", tp, names)


def _add_unflushed_epochs(
    tp: TopicPartition, epochs: LeaderEpochs, segments: list[Segment], recovery_point: int, now_ms: int
) -> list[Segment]:
    """Adds the epochs of unflushed batches that the file lacks: a follower writes its file without waiting for the
    disk, and each flush of the batches waits for the file.

    Truncates the log at the first unflushed batch for whose offset the file has another epoch, and returns the
    remaining segments. The file contains the epoch of every batch up to its last epoch, so such a batch was removed by
    a truncation, which a power loss has undone, or its epoch is damaged. If a batch has a lower epoch than an earlier
    one whose epoch the file lacks, either may be damaged, and the log is truncated at the earlier one: an epoch that
    nobody has led would win elections.
    """
    added: list[tuple[int, int]] = []
    for index, segment in enumerate(segments):
        if segment.next_offset <= recovery_point:
            continue
        for _, header in segment.batches_from(max(recovery_point, segment.base_offset)):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
                added.append((header.leader_epoch, header.base_offset))
                continue
            expected = epochs.epoch_at(header.last_offset)
            if expected in (header.leader_epoch, NO_EPOCH) or header.base_offset < recovery_point:
                continue
            cut, found, other = header.base_offset, header.leader_epoch, f"{LEADER_EPOCHS} has {expected}"
            above = ((epoch, start) for epoch, start in added if epoch > found and start >= recovery_point)
            if (earlier := next(above, None)) is not None:
                other = f"the one at offset {cut} has {found}"
                found, cut = earlier
            error = CorruptRecordError(
                f"the batch there has the leader epoch {found}, but {other}: it was removed before and a power loss "
                "has brought it back, or its epoch is damaged"
            )
            last = max(at for at in range(index + 1) if segments[at].base_offset <= cut)
            segments[last].truncate_to(cut, keep_below=recovery_point)
            _end_log_at(tp, segments[last], segments[last + 1 :], recovery_point, error, now_ms)
            return segments[: last + 1]
    return segments


def _raised_start(first_epoch: int, segments: list[Segment], log_start: int) -> int:
    """Returns `first_epoch`, the offset at which the leader epochs start, if the log has a batch from before it: the
    log start was raised to there.

    Returns 0 otherwise: a copy of a compacted log may have its first batch above its log start, where its epochs
    start.
    """
    if first_epoch > max(segments[0].base_offset, log_start):
        for segment in segments:
            for _, header in segment.batches_from(segment.base_offset):
                return first_epoch if header.base_offset < first_epoch else 0
    return 0


def _read_epochs(tp: TopicPartition, path: Path, *, empty: bool) -> tuple[LeaderEpochs, bool]:
    """Returns the epochs, and whether they could be read; if not, the caller restores them from the batches."""
    try:
        return LeaderEpochs.read(path), empty or path.exists()
    except StorageError as error:
        _log.warning("%s: %s; the leader epochs are restored from the batches", tp, error)
        return LeaderEpochs(path), False
