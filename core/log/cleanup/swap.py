"""Replaces segments by a compacted one in steps, so that a crash at any step leaves either the old or the new ones.

1. `.log.cleaned` is complete and on disk. A start before the next step removes it.
2. It is renamed to `.log.swap`, and the directory is flushed: a later start finishes the swap.
3. The files of the old segments are renamed to `.deleted`.
4. The new indexes are renamed to lose `.cleaned`, then the segment to lose `.swap`; the directory is flushed.

Compaction ends a swap file at the end of the last old segment, so the file itself shows which segments it replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ...errors import CorruptRecordError
from ...faults import fault_point
from ...records.partition import TopicPartition
from ..segment.file_operations import OpenFile, remove, rename, storage, sync_directory
from ..segment.naming import CORRUPT, INDEXES, LOG, SWAP, parse_segment_file, segment_file
from ..segment.scan import scan
from ..segment.segment import Segment

_log = logging.getLogger(__name__)


def begin_swap(directory: Path, cleaned: Segment) -> None:
    """Renames the file, in step 2. The swap must then be finished, now or at the next start. After `StorageError`
    nothing has changed."""
    with storage(f"cannot rename {cleaned.path}"):
        fault_point("compaction.swap")
        rename(cleaned.path, _swap_file(directory, cleaned.base_offset))


def finish_swap(directory: Path, old: Iterable[Segment], cleaned: Segment) -> list[Path]:
    """Flushes the directory, in step 2, and does steps 3 and 4; returns the paths of the old files, to be removed after
    the delay.

    After any error the caller takes the log offline; the next start finishes the swap and removes the files.
    """
    with storage(f"cannot flush {directory}"):
        fault_point("compaction.swapped")
        sync_directory(directory)
    moved: list[Path] = []
    for segment in old:
        fault_point("compaction.remove_old")
        moved += segment.mark_removed()
    fault_point("compaction.finish")
    with storage(f"cannot rename the files of {cleaned.path}"):
        cleaned.take_names(directory, _swap_file(directory, cleaned.base_offset))
        fault_point("compaction.finished")
        sync_directory(directory)
    return moved


def recover_swaps(tp: TopicPartition, directory: Path) -> None:
    """Finishes every committed swap, at the start."""
    with storage(f"cannot finish the compaction of {directory}"):
        swaps = sorted(path for path in directory.iterdir() if path.name.endswith(LOG + SWAP))
        for path in swaps:
            _recover(tp, directory, path)
        if swaps:
            sync_directory(directory)


def _recover(tp: TopicPartition, directory: Path, path: Path) -> None:
    parsed = parse_segment_file(path.name.removesuffix(SWAP))
    if parsed is None:
        return
    base = parsed[0]
    try:
        end = _end(path, base)
    except CorruptRecordError as error:
        aside = path.with_name(f"{path.name}{CORRUPT}")
        _log.error("%s: %s, written by compaction, is damaged (%s): set aside as %s", tp, path, error, aside.name)
        rename(path, aside)
        return
    for other in list(directory.iterdir()):
        found = parse_segment_file(other.name)
        replaced = found is not None and (found[0] == base or base < found[0] < end)
        if found and replaced and found[1] in (LOG, *INDEXES):
            fault_point("compaction.recover")
            remove(other)
    fault_point("compaction.recover")
    rename(path, segment_file(directory, base, LOG))
    _log.info("%s: finished the swap of the compacted segment at offset %d, which the last stop interrupted", tp, base)


def _end(path: Path, base: int) -> int:
    file, end = OpenFile(path), base
    for _, header in scan(file, 0, file.size(), verify=True):
        end = header.next_offset
    return end


def _swap_file(directory: Path, base: int) -> Path:
    return segment_file(directory, base, LOG + SWAP)
