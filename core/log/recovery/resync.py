"""Finds the whole batches after a damaged place of a segment.

If the length of a batch is damaged, the start of the next one is unknown. The search tries every byte for a possible
header whose offset is not before the end of the last whole batch, whose CRC matches, and which the end of the file or a
possible header follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...errors import CorruptRecordError
from ...records.header import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_AT, BatchHeader
from ..segment.file_operations import OpenFile, storage
from ..segment.scan import batch_is_whole, scan

LENGTH_AT: Final = 8
_WINDOW: Final = 1 << 20
_MAGIC: Final = bytes([MAGIC])
_FAR: Final = 2**31


def _read(file: OpenFile, size: int, pos: int) -> bytes:
    with storage(f"cannot read {file.path}"):
        return file.read(size, pos)


def find_whole(file: OpenFile, start: int, end: int, at_least: int) -> int | None:
    """Returns the position of the first whole batch in [start, end) whose base offset is `at_least` or less than 2^31
    above it; None if there is none. Raises `StorageError` if the file cannot be read."""
    at = start
    while end - at >= HEADER_SIZE:
        window = _read(file, min(_WINDOW, end - at), at)
        if len(window) < HEADER_SIZE:
            return None
        last = len(window) - HEADER_SIZE
        found = window.find(_MAGIC, MAGIC_AT)
        while 0 <= found <= last + MAGIC_AT:
            position = found - MAGIC_AT
            header = _possible_header(window, position, at_least)
            if header and batch_is_whole(file, at + position, end) and _is_followed(file, at + position, end, header):
                return at + position
            found = window.find(_MAGIC, found + 1)
        at += last + 1
    return None


def is_unfinished(file: OpenFile, start: int, end: int, at_least: int) -> bool:
    """True if [start, end) is the beginning of one batch whose write ended early, as a killed process leaves it; False
    if it is a whole batch that is damaged, or if whole batches follow."""
    if end - start >= HEADER_SIZE:
        size = int.from_bytes(_read(file, 4, start + LENGTH_AT)) + LENGTH_OVERHEAD
        if size <= end - start:
            return False
    return find_whole(file, start + 1, end, at_least) is None


def _possible_header(window: bytes, position: int, at_least: int) -> BatchHeader | None:
    try:
        header = BatchHeader.parse(window, position)
    except CorruptRecordError:
        return None
    near = at_least <= header.base_offset < at_least + _FAR
    return header if near and 0 <= header.record_count <= header.last_offset_delta + 1 else None


def _is_followed(file: OpenFile, position: int, end: int, header: BatchHeader) -> bool:
    """True if the end or a possible header follows the batch. The check is necessary because the value of a record may
    contain whole batches."""
    following = position + header.size
    if following == end:
        return True
    return _possible_header(_read(file, HEADER_SIZE, following), 0, header.next_offset) is not None


def scan_past_damage(file: OpenFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each whole batch as `scan` does, but continues after damaged places."""
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
