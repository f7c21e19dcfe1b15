"""Finds offsets by timestamp (ListOffsets): first the batch, by the headers, then the exact record in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...records.codecs import CodecTable
from ...records.decode import decode_columns
from ...records.header import BatchHeader
from ...records.partition import TopicPartition
from .file_operations import OpenFile
from .segment import Segment


class TimestampedOffset(NamedTuple):
    """A record's timestamp, its offset, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class FoundBatch(NamedTuple):
    """A batch whose records must be read. `file` keeps the segment's file open."""

    segment: Segment
    file: OpenFile
    position: int
    header: BatchHeader


def batches_since(
    segments: Iterable[Segment], timestamp_ms: int, start: int, bound: int, *, markers: bool
) -> Iterable[FoundBatch]:
    """Yields, in offset order, the batches with records in [start, bound) and a max timestamp of at least
    `timestamp_ms`; control batches only with `markers`."""
    for segment in segments:
        if segment.largest.timestamp_ms < timestamp_ms or segment.next_offset <= start:
            continue
        for position, header in segment.batches_from_time(timestamp_ms):
            if header.base_offset >= bound:
                return
            if header.is_control and not markers:
                continue
            if header.max_timestamp >= timestamp_ms and header.last_offset >= start:
                yield FoundBatch(segment, segment.file, position, header)


def first_record_since(
    found: FoundBatch, timestamp_ms: int, start: int, bound: int, codecs: CodecTable, tp: TopicPartition
) -> TimestampedOffset | None:
    """Returns the first record of the batch in [start, bound) whose timestamp is at least `timestamp_ms`; None if there
    is none."""
    data = found.file.read(found.header.size, found.position)
    columns = decode_columns(data, 0, found.header, codecs, partition=tp)
    for offset, stamp in zip(columns.offsets, columns.timestamps_ms, strict=True):
        if stamp >= timestamp_ms and start <= offset < bound:
            return TimestampedOffset(stamp, offset, found.header.leader_epoch)
    return None
