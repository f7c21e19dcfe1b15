"""Iterates over the batches of a segment file by their headers, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...errors import CorruptRecordError
from ...records.header import CRC_FROM, HEADER_SIZE, BatchHeader, crc_matches
from ...records.native import crc32c
from .file_operations import OpenFile, storage_error

_HEADERS_WINDOW: Final = 16 * 1024
_VERIFY_WINDOW: Final = 512 * 1024


class NotCachedError(Exception):
    """The bytes are not in the page cache, and the caller must not wait for the disk."""


def scan(
    file: OpenFile, start: int, end: int, *, verify: bool = False, cached_only: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each batch from `start`, the position of a batch, to `end`.

    Raises `CorruptRecordError` at the first batch that is incomplete or impossible, or, with `verify`, fails its CRC;
    that batch begins where the last yielded one ends. Raises `StorageError` if the file cannot be read, and
    `NotCachedError` only if `cached_only`.
    """
    size = _VERIFY_WINDOW if verify else _HEADERS_WINDOW
    window, window_at = b"", start
    pos = start
    while pos < end:
        if pos + HEADER_SIZE > window_at + len(window):
            window, window_at = _window(file, min(size, end - pos), pos, cached_only=cached_only), pos
        header = BatchHeader.parse(window, pos - window_at)
        if header.size > end - pos:
            raise CorruptRecordError(
                f"batch at offset {header.base_offset} is incomplete: {end - pos} of {header.size} bytes"
            )
        if verify and not _whole(file, pos, header, window, window_at):
            raise CorruptRecordError(f"batch at offset {header.base_offset} fails its CRC")
        yield pos, header
        pos += header.size


def batch_is_whole(file: OpenFile, pos: int, end: int) -> bool:
    """True if a batch begins at `pos`, ends at or before `end` and matches its CRC."""
    window = _window(file, min(_VERIFY_WINDOW, end - pos), pos)
    try:
        header = BatchHeader.parse(window)
    except CorruptRecordError:
        return False
    return header.size <= end - pos and _whole(file, pos, header, window, pos)


def _window(file: OpenFile, size: int, pos: int, *, cached_only: bool = False) -> bytes:
    """Returns the bytes at `pos`, up to `size`, or up to a place that cannot be read if a header is before it."""
    if cached_only:
        cached = file.read_cached(size, pos)
        if cached is None:
            raise NotCachedError
        return cached
    found, failed = file.read_readable(size, pos)
    if failed is not None and len(found) < HEADER_SIZE:
        raise storage_error(f"cannot read {file.path}", failed) from failed
    return found


def _whole(file: OpenFile, pos: int, header: BatchHeader, window: bytes, window_at: int) -> bool:
    if pos + header.size <= window_at + len(window):
        return crc_matches(window, pos - window_at, header)
    crc, at, end = 0, pos + CRC_FROM, pos + header.size
    while at < end:
        chunk = _window(file, min(_VERIFY_WINDOW, end - at), at)
        if not chunk:
            return False
        crc = crc32c(chunk, crc)
        at += len(chunk)
    return crc == header.crc
