"""Reading whole batches from stretches of segment files, without the log's lock."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from klamm.core.errors import CorruptRecordError
from klamm.core.log.files import OpenFile
from klamm.core.records.header import HEADER_SIZE, LENGTH_OVERHEAD
from klamm.core.records.partition import TopicPartition

MAX_HINTS: Final = 64
_FRONT: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta."""


class Extent(NamedTuple):
    """Bytes [start, end) of a segment's file: whole batches. `hints` maps offsets to positions for later reads; the
    segment takes a new one when it is cut, so that a late reader cannot leave a wrong hint."""

    file: OpenFile
    start: int
    end: int
    hints: dict[int, int]


def read_extents(
    extents: list[Extent], max_bytes: int, min_one: bool, tp: TopicPartition, *, cached_only: bool = False
) -> bytes | None:
    """Whole batches in order, up to `max_bytes`; the first one however large if `min_one`.

    None when `cached_only` and not all is in the page cache. `CorruptRecordError` where lengths make no sense.
    """
    parts: list[bytes] = []
    room = max_bytes
    for extent in extents:
        wanted = min(max(room, 0), extent.end - extent.start)
        data = _read(extent, wanted, cached_only)
        if data is None:
            return None
        if extent.start + len(data) < extent.end:  # cut off at the limit
            whole, first = _whole(data, extent, tp)
            if not whole and min_one and not parts:
                size = first or _first_size(extent, tp)
                data = _read(extent, size, cached_only)
                if data is None:
                    return None
            else:
                data = data[:whole]
            parts.append(data)
            break
        parts.append(data)
        room -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read(extent: Extent, size: int, cached_only: bool) -> bytes | None:
    if not size:
        return b""
    return extent.file.read_cached(size, extent.start) if cached_only else extent.file.read(size, extent.start)


def _first_size(extent: Extent, tp: TopicPartition) -> int:
    raw = extent.file.read(_FRONT.size, extent.start)
    if len(raw) < _FRONT.size:
        raise CorruptRecordError(f"{tp}: the log ends at byte {extent.start + len(raw)}, inside a batch")
    return _size(raw, 0, extent, tp)


def _size(data: bytes, pos: int, extent: Extent, tp: TopicPartition) -> int:
    base_offset, length, _ = _FRONT.unpack_from(data, pos)
    size: int = length + LENGTH_OVERHEAD
    if not HEADER_SIZE <= size <= extent.end - extent.start - pos:
        raise CorruptRecordError(
            f"{tp}: the batch at offset {base_offset}, byte {extent.start + pos}, has {size} bytes"
        )
    return size


def _whole(data: bytes, extent: Extent, tp: TopicPartition) -> tuple[int, int]:
    """Length of the whole batches in `data`, and the first one's size (0 when not known)."""
    pos = last = first = 0
    while len(data) - pos >= _FRONT.size:
        size = _size(data, pos, extent, tp)
        first = first or size
        if pos + size > len(data):
            break
        last = pos
        pos += size
    if pos:
        base_offset, _, last_delta = _FRONT.unpack_from(data, last)
        if len(extent.hints) >= MAX_HINTS:
            extent.hints.clear()
        extent.hints[base_offset + last_delta + 1] = extent.start + pos
    return pos, first
