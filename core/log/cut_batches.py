"""Keeps a copy of the batches that a mirror's log is about to lose (docs/mirror.md, M6), and reads it."""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from ..errors import KlammError
from ..records.aborted import hide
from ..records.chain import check_chain
from ..records.control import read_marker
from ..records.header import iter_headers
from .partition_log import PartitionLog, ReadIsolation
from .segment.file_operations import OpenFile, remove_tree, storage, sync_directory
from .segment.naming import segment_file, suffixed

__all__ = ["CUT", "read_set_aside", "set_aside"]

CUT: Final = "cut"
"""The last part of the name of a directory with such batches."""
_PIECE: Final = 8 * 1024 * 1024
_LOST: Final = "the source has lost records in an unclean election"
_log = logging.getLogger(__name__)


def set_aside(log: PartitionLog, offset: int, why: str = _LOST) -> Path:
    """Writes the batches from the one that contains `offset` on to a segment file in a new directory beside the log's,
    named `TOPIC-PARTITION.ID-cut`, and returns its path. It is on the disk when this returns. Raises `StorageError`,
    and leaves nothing then: it is tried again, and each try would take space of a full disk."""
    target = log.directory.parent / suffixed(log.tp, uuid4(), CUT)
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
    _log.error(
        "%s: %s: the records from offset %d to %d are removed here, and were copied to %s",
        log.tp, why, offset, end, path,
    )  # fmt: skip
    return path


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
