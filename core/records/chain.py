"""The chain of record batches in a stretch of a log: the checks of what a batch's CRC does not cover.

Base offset, length, leader epoch and magic lie outside the CRC, so that a broker can set them; a flipped bit there
is found by comparing neighbouring batches. One call checks a whole read, in the compiled module if it is available
(about 10 ns a batch, and 0.1 ns a byte with `verify`).
"""

from __future__ import annotations

from typing import NamedTuple

from . import native
from .header import Buffer


class Chain(NamedTuple):
    """The content of a stretch of whole batches. `epochs`: (leader epoch, base offset where it begins) at each change,
    for comparison with an epoch checkpoint.
    """

    batches: int
    end: int
    """The position after the last whole batch."""
    first_offset: int
    """-1 when there is no batch."""
    next_offset: int
    """The offset after the last batch's last record; `expected` if there is no batch."""
    max_timestamp: int
    last_at: int
    """The position of the last batch, -1 if there is none."""
    epochs: list[tuple[int, int]]


class Piece(NamedTuple):
    """Whole batches that follow one another: `data[start:end]`. `max_timestamp_last`: the last offset of the first
    batch with `max_timestamp`. `producers`: the positions of the batches with a producer id."""

    start: int
    end: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    max_timestamp_last: int
    first_size: int
    first_last_offset: int
    first_max_timestamp: int
    producers: list[int]


def split_chain(data: Buffer, room: int) -> list[Piece]:
    """Splits the batches, which `check_chain` has passed, into pieces of at most `room` bytes; a larger batch is a
    piece of its own."""
    return [Piece._make(piece) for piece in native.pieces(data, room)]


def check_chain(
    data: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    expected: int = -1,
    dense: bool = False,
    verify: bool = False,
) -> Chain:
    """Reads the batches in `data[start:end]`; a trailing partial one ends it.

    Each batch must begin at or after the one before it ends, the first at or after `expected` (-1: anywhere); with
    `dense`, as in a log that was never compacted, exactly there. Magic must be 2, the length possible, the count within
    the last offset delta; `verify` checks the CRCs too. `CorruptRecordError` names the byte and the offset.
    """
    return Chain(*native.chain(data, start, len(data) if end is None else end, expected, dense, verify))
