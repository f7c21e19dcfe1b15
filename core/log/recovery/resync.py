"""Finds the whole batches after a damaged place of a segment.

After a batch whose length is damaged, the start of the next one is not known. The search goes byte by byte for a
possible header with an offset not before the last good one's, a CRC that agrees, and a batch that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...errors import CorruptRecordError
from ...records.header import HEADER_SIZE, MAGIC, MAGIC_AT, BatchHeader
from ..segment.file_operations import OpenFile
from ..segment.scan import batch_is_whole, scan

_WINDOW: Final = 1 << 20
_MAGIC: Final = bytes([MAGIC])
_FAR: Final = 2**31


def find_whole(file: OpenFile, start: int, end: int, at_least: int) -> int | None:
    """Position of the first whole batch in [start, end) whose base offset is `at_least` or a little later."""
    at = start
    while end - at >= HEADER_SIZE:
        window = file.read(min(_WINDOW, end - at), at)
        if len(window) < HEADER_SIZE:
            return None
        last = len(window) - HEADER_SIZE
        found = window.find(_MAGIC, MAGIC_AT)
        while 0 <= found <= last + MAGIC_AT:
            position = found - MAGIC_AT
            header = _possible(window, position, at_least)
            if header and batch_is_whole(file, at + position, end) and _goes_on(file, at + position, end, header):
                return at + position
            found = window.find(_MAGIC, found + 1)
        at += last + 1
    return None


def _possible(window: bytes, position: int, at_least: int) -> BatchHeader | None:
    try:
        header = BatchHeader.parse(window, position)
    except CorruptRecordError:
        return None
    near = at_least <= header.base_offset < at_least + _FAR
    return header if near and 0 <= header.record_count <= header.last_offset_delta + 1 else None


def _goes_on(file: OpenFile, position: int, end: int, header: BatchHeader) -> bool:
    """Whether the next batch, or the end, follows. The check is needed because a record's value may hold whole
    batches."""
    following = position + header.size
    if following == end:
        return True
    return _possible(file.read(HEADER_SIZE, following), 0, header.next_offset) is not None


def scan_past_damage(file: OpenFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """As `scan`, but skips damaged places, to find whole batches after them."""
    at, expected = start, 0
    while at < end:
        try:
            for position, header in scan(file, at, end):
                yield position, header
                at, expected = position + header.size, header.next_offset
            return
        except CorruptRecordError:
            found = find_whole(file, at + 1, end, expected)
            if found is None:
                return
            at = found
