"""Reads whole batches from byte ranges of segment files, without the log's lock.

No CRC covers a batch's base offset, length, leader epoch and magic, so every read checks them against their context:
each batch begins where the one before it ended (in a log with gaps: not before), and its epoch is the one that
`leader-epoch-checkpoint` has for its offset. A read returns the batches before a damaged one, never that one itself,
and those before a place that cannot be read; a read that begins in a batch there fails.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from ...records.chain import Chain, check_chain
from ...records.header import CRC_FROM, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_AT, BatchHeader
from ...records.native import crc32c
from .file_operations import OpenFile

MAX_HINTS: Final = 64
_FRONT: Final = Struct(">qi")
"""The first fields of a batch: base offset, batch length."""


class Extent(NamedTuple):
    """Bytes [start, end) of a segment's file, which are whole batches. The first one begins at offset `expected` (in a
    log with gaps: there or later). `hints` maps offsets to positions for later reads; a segment that is truncated
    begins a new map, so that a late reader cannot leave a wrong position in it."""

    file: OpenFile
    path: Path
    start: int
    end: int
    expected: int
    hints: dict[int, int]


class BrokenChainError(CorruptRecordError):
    """A batch does not follow the one before it, or fails its CRC. `position` is its first byte in `path`."""

    def __init__(self, path: Path, position: int, what: str) -> None:
        super().__init__(f"{path}, byte {position}: {what}")
        self.path = path
        self.position = position


class ChainRules(NamedTuple):
    """The rules that the batches of one log must meet.

    - `dense`: offsets have no gaps.
    - `verify`: CRCs are checked too.
    - `epochs`, `starts`: the leader epochs of the checkpoint and the offsets where they begin; empty if unknown.
    """

    dense: bool
    verify: bool
    epochs: list[int]
    starts: list[int]

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch of an offset. An offset before the first known start has the first epoch, because the log
        start offset may lie within a batch."""
        return self.epochs[max(bisect_right(self.starts, offset) - 1, 0)]

    def _is_of_epoch(self, epoch: int, base: int, last: int) -> bool:
        """Returns True if a batch of these offsets may have this epoch. The epochs of records that were deleted, but
        are still in the file, are forgotten."""
        return last < self.starts[0] or self.epoch_at(base) == epoch

    def check(self, data: bytes, extent: Extent) -> Chain:
        """Checks the whole batches in `data`, which was read at the start of the extent. Raises `BrokenChainError` at
        the first damaged one."""
        try:
            chain = check_chain(data, expected=extent.expected, dense=self.dense, verify=self.verify)
            if self._epochs_agree(chain):
                return chain
        except CorruptRecordError:
            pass  # the check of each batch below decides whether one is damaged, and finds its position
        return self._check_each_batch(data, extent)

    def _epochs_agree(self, chain: Chain) -> bool:
        if not self.epochs or chain.last_at < 0:
            return True
        if len(chain.epochs) == 1 and chain.first_offset >= self.starts[-1]:
            return chain.epochs[0][0] == self.epochs[-1]
        ends = [*(base for _, base in chain.epochs[1:]), chain.next_offset]
        runs = [(epoch, base, end - 1) for (epoch, base), end in zip(chain.epochs, ends, strict=True)]
        if self.dense and any(not self._is_of_epoch(epoch, last, last) for epoch, _, last in runs):
            return False
        return all(self._is_of_epoch(epoch, base, last) for epoch, base, last in runs)

    def _check_each_batch(self, data: bytes, extent: Extent) -> Chain:
        """Does the same as `check` one batch at a time, so that it can name the damaged one."""
        pos, expected, count, last, first = 0, extent.expected, 0, -1, -1
        stamps = [-1]
        while len(data) - pos >= HEADER_SIZE:
            _possible_size(data, pos, extent)
            header = BatchHeader.parse(data, pos) if data[pos + MAGIC_AT] == MAGIC else None
            what = self._fault(data, pos, header, expected)
            if what or header is None:
                raise BrokenChainError(extent.path, extent.start + pos, what)
            if header.size > len(data) - pos:
                break
            first = header.base_offset if first < 0 else first
            stamps.append(header.max_timestamp)
            expected, count, last = header.next_offset, count + 1, pos
            pos += header.size
        return Chain(count, pos, first, expected, max(stamps), last, [])

    def _fault(self, data: bytes, pos: int, header: BatchHeader | None, expected: int) -> str:
        if header is None:
            return f"a batch has magic {data[pos + MAGIC_AT]}, not {MAGIC}"
        name = f"the batch at offset {header.base_offset}"
        if header.base_offset < expected or (self.dense and header.base_offset != expected):
            return f"{name} should begin at {'' if self.dense else 'or after '}{expected}"
        if header.last_offset_delta < 0 or header.record_count - 1 > header.last_offset_delta:
            return f"{name} has the record count {header.record_count} and the last offset {header.last_offset}"
        if self.epochs and not self._is_of_epoch(header.leader_epoch, header.base_offset, header.last_offset):
            return f"{name} has the leader epoch {header.leader_epoch}, not {self.epoch_at(header.base_offset)}"
        if not self.verify or header.size > len(data) - pos:
            return ""
        crc = crc32c(memoryview(data)[pos + CRC_FROM : pos + header.size])
        return "" if crc == header.crc else f"{name} fails its CRC"


def read_extents(
    extents: list[Extent], max_bytes: int, min_one: bool, rules: ChainRules, *, cached_only: bool = False
) -> tuple[bytes | None, BrokenChainError | None]:
    """Returns whole batches in order, up to `max_bytes`, and the error at the batch after them, if that is damaged.
    With `min_one` the first batch may be larger. The data is None if `cached_only` and not all bytes are in the page
    cache. Raises OSError if the first batch cannot be read."""
    parts: list[bytes] = []
    room = max_bytes
    for extent in extents:
        wanted = min(max(room, 0), extent.end - extent.start)
        data, failed = _read(extent, wanted, cached_only)
        if data is None:
            return None, None
        try:
            if wanted < extent.end - extent.start and min_one and not parts and _first_is_cut(data):
                data, failed = _read(extent, _first_size(extent), cached_only)
                if data is None:
                    return None, None
            chain = rules.check(data, extent)
            if failed is not None and not chain.end and not any(parts):
                raise failed
            if chain.end < len(data) or chain.end == 0:
                _check_cut(data, chain.end, extent)
        except BrokenChainError as error:
            if error.position > extent.start:
                parts.append((data or b"")[: error.position - extent.start])
            return b"".join(parts), error
        parts.append(data if chain.end == len(data) else data[: chain.end])
        if extent.start + chain.end < extent.end:  # the read ended at its size limit, or where it failed
            _leave_hint(extent, chain)
            break
        room -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts), None


def _read(extent: Extent, size: int, cached_only: bool) -> tuple[bytes | None, OSError | None]:
    if not size:
        return b"", None
    if cached_only:
        return extent.file.read_cached(size, extent.start), None
    return extent.file.read_readable(size, extent.start)


def _first_is_cut(data: bytes) -> bool:
    if len(data) < _FRONT.size:
        return True
    return int(_FRONT.unpack_from(data)[1]) + LENGTH_OVERHEAD > len(data)


def _first_size(extent: Extent) -> int:
    raw = extent.file.read(_FRONT.size, extent.start)
    if len(raw) < _FRONT.size:
        raise BrokenChainError(extent.path, extent.start, "the file ends inside a batch")
    return _possible_size(raw, 0, extent)


def _possible_size(data: bytes, pos: int, extent: Extent) -> int:
    base_offset, length = _FRONT.unpack_from(data, pos)
    size = int(length) + LENGTH_OVERHEAD
    if not HEADER_SIZE <= size <= extent.end - extent.start - pos:
        raise BrokenChainError(extent.path, extent.start + pos, f"the batch at offset {base_offset} has {size} bytes")
    return size


def _check_cut(data: bytes, pos: int, extent: Extent) -> None:
    """Checks that the bytes after the last whole batch begin a batch that the read limit cut, not one with a wrong
    length."""
    if extent.start + len(data) >= extent.end:
        raise BrokenChainError(extent.path, extent.start + pos, "a batch is longer than the rest of its segment")
    if len(data) - pos >= _FRONT.size:
        _possible_size(data, pos, extent)


def forget_older_hints(hints: dict[int, int]) -> None:
    """Removes the older half. A follower or consumer at the log's end reads from the middle of the newer one: without
    its hint, it would search a range of the index batch by batch. May be called on any thread."""
    for offset in list(hints)[: MAX_HINTS // 2]:
        hints.pop(offset, None)


def _leave_hint(extent: Extent, chain: Chain) -> None:
    if chain.last_at >= 0:
        if len(extent.hints) >= MAX_HINTS:
            forget_older_hints(extent.hints)
        extent.hints[chain.next_offset] = extent.start + chain.end
