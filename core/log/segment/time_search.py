"""Finding offsets by record time (ListOffsets). The one batch that is found is opened for the exact record."""

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
    timestamp_ms: int
    offset: int
    leader_epoch: int


class FoundBatch(NamedTuple):
    """A batch to be opened; the file is held open."""

    segment: Segment
    file: OpenFile
    position: int
    header: BatchHeader


def batches_since(segments: Iterable[Segment], timestamp_ms: int, start: int, bound: int) -> Iterable[FoundBatch]:
    """The batches within [start, bound) that hold a record of `timestamp_ms` or later, first to last."""
    for segment in segments:
        if segment.largest.timestamp_ms < timestamp_ms or segment.next_offset <= start:
            continue
        for position, header in segment.batches_from_time(timestamp_ms):
            if header.base_offset >= bound:
                return
            if header.max_timestamp >= timestamp_ms and header.last_offset >= start and not header.is_control:
                yield FoundBatch(segment, segment.file, position, header)


def first_record_since(
    found: FoundBatch, timestamp_ms: int, start: int, bound: int, codecs: CodecTable, tp: TopicPartition
) -> TimestampedOffset | None:
    """The first record in [start, bound) of that time or later; None when the batch has none there."""
    data = found.file.read(found.header.size, found.position)
    columns = decode_columns(data, 0, found.header, codecs, partition=tp)
    for offset, stamp in zip(columns.offsets, columns.timestamps_ms, strict=True):
        if stamp >= timestamp_ms and start <= offset < bound:
            return TimestampedOffset(stamp, offset, found.header.leader_epoch)
    return None
