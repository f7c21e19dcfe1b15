"""Opens a partition's directory: uses the files of a clean stop as they are, and checks those of a crash.

After a crash every segment from the one that holds the recovery point on is read and its CRCs checked; the log is
truncated at the first batch that is not whole or not in order. Segments after a truncated one are renamed
`….<ms>.corrupt` and kept. Missing or wrong indexes and producer states are rebuilt from batch headers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ...config.sections.topic import TopicConfig
from ...errors import CorruptRecordError, StorageError
from ..cleanup.swap import recover_swaps
from ..segment.file_operations import remove, storage
from ..segment.index_builder import Checked
from ..segment.log_segments import LogSegments
from ..segment.naming import (
    CLEANED,
    CORRUPT,
    HOLES,
    LEADER_EPOCHS,
    LOG,
    OFFSET_INDEX,
    REMOVED,
    TEMPORARY,
    TIME_INDEX,
    parse_segment_file,
)
from ..segment.open_files import OpenFiles
from ..segment.segment import Segment
from ..state.leader_epochs import LeaderEpochs
from ..state.producer_snapshots import Snapshots
from ..state.producer_state_manager import ProducerStateManager

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenFrom:
    """What is known of a partition before its files are read, from the log directory's checkpoints.

    `clean`: the last stop was orderly. `checked` counts what recovery reads. The defaults, for a log of which nothing
    is known, check everything.
    """

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    checked: Checked = field(default_factory=Checked)


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The parts of a `PartitionLog`; only the active segment's file is open."""

    segments: LogSegments
    epochs: LeaderEpochs
    producers: ProducerStateManager


def load(directory: Path, config: TopicConfig, known: OpenFrom, now_ms: int, files: OpenFiles) -> LoadedLog:
    recover_swaps(directory)
    bases = _sweep(directory)
    segments = [Segment(directory, base, config, now_ms, files) for base in bases]
    if not segments:
        segments = [Segment(directory, known.log_start_offset, config, now_ms, files)]
    dense = not (directory / HOLES).exists()
    for segment in segments:
        segment.dense = dense
    segments = _check(directory, segments, known, now_ms)
    end = segments[-1].next_offset
    epochs, whole = _read_epochs(directory / LEADER_EPOCHS, empty=end == segments[0].base_offset)
    epochs.truncate_end(end)
    producers = ProducerStateManager(Snapshots(directory))
    producers.reload(end, segments, now_ms, None if whole else epochs)
    for segment in segments[:-1]:
        segment.seal()
        segment.close_file()
    return LoadedLog(LogSegments(directory, segments, config, files, dense=dense), epochs, producers)


def _sweep(directory: Path) -> list[int]:
    """Removes the files that a crash or an unfinished removal left; returns the segments' base offsets, sorted."""
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
            elif parsed and parsed[1] in (OFFSET_INDEX, TIME_INDEX):
                indexes.append((parsed[0], path))
        for base, path in indexes:
            if base not in bases:
                remove(path)
    return sorted(bases)


def _check(directory: Path, segments: list[Segment], known: OpenFrom, now_ms: int) -> list[Segment]:
    """Loads or recovers each segment; returns those that the log consists of."""
    for index, segment in enumerate(segments):
        later = segments[index + 1 :]
        unsafe = not known.clean and (not later or later[0].base_offset > known.recovery_point)
        if unsafe or not later:
            error = segment.recover(known.recovery_point, known.checked) if unsafe else _load_last(segment, known)
        else:
            _load(segment, later[0].base_offset)
            error = None
        if error is None and later and segment.next_offset > later[0].base_offset:
            error = CorruptRecordError(f"it reaches beyond the next segment's base offset {later[0].base_offset}")
        if error is not None:
            _say_cut(segment, known.recovery_point, error)
            _set_aside(directory, later, f".{now_ms}{CORRUPT}")
            return segments[: index + 1]
    return segments


def _load(segment: Segment, following: int) -> None:
    """Loads a flushed segment that no longer grows. Damage in it makes only the damaged batches unreadable."""
    try:
        segment.load()
        if segment.next_offset <= following:
            return
    except CorruptRecordError as error:
        _log.warning("%s is damaged though it was flushed: %s", segment.path, error)
    segment.rebuild_around_damage()


def _load_last(segment: Segment, known: OpenFrom) -> CorruptRecordError | None:
    try:
        segment.load()
    except CorruptRecordError as error:
        _log.warning("%s is damaged though it was closed in order: %s", segment.path, error)
        return segment.recover(known.recovery_point)
    return None


def _say_cut(segment: Segment, recovery_point: int, error: CorruptRecordError) -> None:
    end = segment.next_offset
    if end < recovery_point:
        _log.error(
            "%s was cut at offset %d: %s; offsets up to %d had been flushed, and are lost",
            segment.path, end, error, recovery_point - 1,
        )  # fmt: skip
    else:
        _log.warning("%s was cut at offset %d: %s", segment.path, end, error)


def _set_aside(directory: Path, segments: list[Segment], suffix: str) -> None:
    for segment in segments:
        moved = segment.set_aside(suffix)
        names = ", ".join(path.name for path in moved)
        _log.warning("%s: segment behind a damaged one set aside as %s", directory, names)


def _read_epochs(path: Path, *, empty: bool) -> tuple[LeaderEpochs, bool]:
    """Returns the epochs, and whether they could be read; if not, the caller restores them from the batches."""
    try:
        return LeaderEpochs.read(path), empty or path.exists()
    except StorageError as error:
        _log.warning("%s; it is rebuilt from the batches", error)
        return LeaderEpochs(path), False
