"""Keeps a copy of the batches that a mirror's log is about to lose (docs/mirror.md, M6), and reads it."""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from ..errors import KlammError
from ..records.aborted import hide
from ..records.chain import check_chain
from ..records.control import read_marker
from ..records.header import iter_headers
from .partition_log import PartitionLog, ReadIsolation
from .segment.file_operations import OpenFile, remove_tree, rename, storage, sync_directory
from .segment.naming import segment_file, suffixed

CUT: Final = "cut"
"""The last part of the name of a directory with such batches."""
_PIECE: Final = 8 * 1024 * 1024
_LOST: Final = "the source has lost records in an unclean election"
_log = logging.getLogger(__name__)


class AdoptedCut(NamedTuple):
    """What was cut when a log became that of another topic: offsets from `start` up to `end`, kept in `path`."""

    start: int
    end: int
    path: Path


def set_aside(log: PartitionLog, offset: int, why: str = _LOST) -> Path:
    """Writes the batches from the one that contains `offset` on to a segment file in a new directory beside the log's,
    named `TOPIC-PARTITION.ID-cut`, and returns its path. It is on the disk when this returns. Raises `StorageError`,
    and leaves nothing then: it is tried again, and each try would take space of a full disk."""
    target = _new_directory(log)
    _write(log, offset, target)
    return _noted(log, offset, target, why)


def set_aside_before_adoption(log: PartitionLog, offset: int, topic_id: UUID) -> None:
    """Does the same before the log gets `topic_id`; then `adopted_cut` finds it. A copy that exists already is kept:
    its directory gets this name only once it is complete, and the log may have been cut in part since."""
    target = _adopted_directory(log, topic_id)
    if target.exists():
        return
    written = _new_directory(log)
    _write(log, offset, written)
    with storage(f"cannot write {target}"):
        rename(written, target)
        sync_directory(target.parent)
    _noted(log, offset, target, "the topic mirrors its former mirror, which does not have them")


def adopted_cut(log: PartitionLog) -> AdoptedCut | None:
    """Returns what was cut from the log before it got its topic id; None if there is no file of it. Raises
    `StorageError`; `CorruptRecordError`."""
    found = sorted(_adopted_directory(log, log.topic_id).glob("*.log"))
    if not found:
        return None
    with storage(f"cannot read {found[0]}"), found[0].open("rb") as file:
        if not file.seek(0, 2):  # the cleaner had removed all its records
            return None
        *_, (_, last) = iter_headers(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    return AdoptedCut(int(found[0].stem), last.next_offset, found[0])


def _adopted_directory(log: PartitionLog, topic_id: UUID) -> Path:
    return log.directory.parent / suffixed(log.tp, topic_id, CUT)


def _new_directory(log: PartitionLog) -> Path:
    return log.directory.parent / suffixed(log.tp, uuid4(), CUT)


def _noted(log: PartitionLog, offset: int, directory: Path, why: str) -> Path:
    path = segment_file(directory, offset, ".log")
    _log.error(
        "%s: %s: the records from offset %d to %d are removed here, and were copied to %s",
        log.tp, why, offset, log.log_end_offset, path,
    )  # fmt: skip
    return path


def _write(log: PartitionLog, offset: int, target: Path) -> None:
    path = segment_file(target, offset, ".log")
    end = log.log_end_offset
    try:
        with storage(f"cannot write {path}"):
            target.mkdir()
            file, at, written = OpenFile(path, create=True), offset, 0
            while at < end:
                data = log.read(at, _PIECE, isolation=ReadIsolation.LOG_END).data
                if not data:
                    break
                file.write(data, written)
                written += len(data)
                at = check_chain(data).next_offset
            file.sync()
            sync_directory(target)
            sync_directory(log.directory.parent)
    except KlammError:
        with suppress(OSError):
            remove_tree(target)
        raise


def read_set_aside(path: Path, end: int, leader_epoch: int) -> memoryview | None:
    """Returns the batches that `set_aside` has written to `path`, those of aborted transactions marked as control
    batches (`hide_aborted`); None if the file is not there any more, or the last batch before offset `end` has another
    leader epoch: then they are those of another history. Raises `StorageError`; `CorruptRecordError`."""
    with storage(f"cannot read {path}"):
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if file.seek(0, 2) else b"")
        except FileNotFoundError:
            return None
    last = -1
    running: dict[int, list[int]] = {}
    for position, header in iter_headers(data):
        if header.base_offset < end:
            last = header.leader_epoch
        if not header.is_transactional:
            continue
        if not header.is_control:
            running.setdefault(header.producer_id, []).append(position)
        elif (marker := read_marker(data, position, header)) is not None:
            for hidden in running.pop(header.producer_id, ()) if not marker.commit else ():
                hide(data, hidden)
    return data if last == leader_epoch else None
