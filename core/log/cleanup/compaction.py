"""Compacting a log: of each key only the last record stays, in its place and under its offset.

A pass reads the part that is not compacted yet into an `OffsetMap`, then writes every segment up to where the map
reaches again, small neighbours together. What stays is Kafka's choice (`LogCleaner`, KIP-534): a record that is its
key's last one, unless it is a tombstone whose batch's delete horizon has passed. The horizon is set,
`delete.retention.ms` ahead, when a pass first sees the tombstone. A batch that loses all records stays as a header
where it is its producer's last, so that sequences survive. The segment that is written to is never touched.

Reading and writing are done without the log's lock; `replace_segments` then puts the new segment in the
place of the old ones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...faults import fault_point
from ...records.codecs import CodecTable
from ...records.decode import RecordColumns, decode_columns
from ...records.editing.rewrite import keep_nothing, keep_records
from ...records.header import NO_TIMESTAMP, BatchHeader
from ..partition_log import PartitionLog
from ..segment.file_operations import OpenFile, remove, storage
from ..segment.naming import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from ..segment.offset_index import MAX_RELATIVE
from ..segment.scan import scan
from ..segment.segment import Segment
from ..state.clock import Clock
from .offset_map import OffsetMap
from .throttle import Throttle

_log = logging.getLogger(__name__)
_WRITE_BUFFER: Final = 1 << 20


class CompactionCancelledError(Exception):
    """The log changed under the pass (retention, truncation, deletion): nothing was done."""


@dataclass(frozen=True, slots=True)
class Compactor:
    """What a pass works with. `map_bytes` bounds the memory of the offset map."""

    codecs: CodecTable
    map_bytes: int
    throttle: Throttle
    clock: Clock


@dataclass(slots=True)
class Compacted:
    """What a pass did; `first_dirty` is where the next one begins."""

    first_dirty: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_dropped: int = 0
    keyless_dropped: int = 0


def compact(log: PartitionLog, first_dirty: int, end: int, tools: Compactor) -> Compacted:
    """One pass over the sealed segments below `end` (a segment's base), with what lies from `first_dirty` on as news.

    `CompactionCancelledError`; `ToldToStopError`; `CorruptRecordError` at a batch that cannot be read; `StorageError`.
    All leave the log as it was, or with some of its segments compacted, which is as good.
    """
    segments = [s for s in log.sealed_segments() if s.base_offset < end]
    offsets = _map_offsets(log, segments, first_dirty, end, tools)
    done = Compacted(offsets.end)
    reached = [s for s in segments if s.base_offset < offsets.end]
    for group in _groups(reached, log):
        _Group(log, group, offsets, tools, done).run()
    return done


def _map_offsets(
    log: PartitionLog, segments: Iterable[Segment], first_dirty: int, end: int, tools: Compactor
) -> OffsetMap:
    offsets = OffsetMap(tools.map_bytes, first_dirty)
    for segment in segments:
        if segment.next_offset <= first_dirty:
            continue
        for header, data in _batches(log, segment, tools):
            if header.last_offset < first_dirty or header.is_control or not header.record_count:
                continue
            columns = decode_columns(data, 0, header, tools.codecs, partition=log.tp)
            for key, offset in zip(columns.keys, columns.offsets, strict=True):
                if offset >= first_dirty and key is not None and not offsets.put(key, offset):
                    return offsets
    offsets.complete(end)
    return offsets


def _batches(log: PartitionLog, segment: Segment, tools: Compactor) -> Iterator[tuple[BatchHeader, bytes]]:
    file, size = log.file_of(segment), segment.size
    with storage(f"cannot read {segment.path}"):
        for position, header in scan(file, 0, size):
            tools.throttle.passed(header.size)
            yield header, file.read(header.size, position)


def _groups(segments: Sequence[Segment], log: PartitionLog) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together."""
    group: list[Segment] = []
    for segment in segments:
        too_large = sum(s.size for s in group) + segment.size > log.config.segment_bytes
        if group and (too_large or segment.next_offset - group[0].base_offset > MAX_RELATIVE):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


class _Group:
    """The segments that become one."""

    def __init__(
        self,
        log: PartitionLog,
        segments: Sequence[Segment],
        offsets: OffsetMap,
        tools: Compactor,
        done: Compacted,
    ) -> None:
        self._log = log
        self._segments = segments
        self._offsets = offsets
        self._tools = tools
        self._done = done
        self._now_ms = tools.clock()
        self._last_of_producers = log.last_offsets_of_producers()
        self._last = max((segment.next_offset for segment in segments if segment.size), default=-1)
        self._changed = len(segments) > 1

    def run(self) -> None:
        directory, base = self._log.directory, self._segments[0].base_offset
        try:
            self._replace(directory, base)
        except Exception:
            _discard(self._log, base)
            raise

    def _replace(self, directory: Path, base: int) -> None:
        path = segment_file(directory, base, LOG + CLEANED)
        size = self._write(path)
        before = sum(segment.size for segment in self._segments)
        self._done.bytes_before += before
        self._done.bytes_after += size if self._changed else before
        if not self._changed:
            _discard(self._log, base)
            return
        modified_ms = self._segments[-1].modified_ms()
        with storage(f"cannot set the time of {path}"):  # retention goes by it where records have no timestamps
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        log = self._log
        cleaned = Segment(log.tp, directory, base, log.config, self._now_ms, log.files, CLEANED)
        cleaned.rebuild()
        cleaned.seal()
        if not log.replace_segments(self._segments, cleaned):
            raise CompactionCancelledError("its segments have gone")

    def _write(self, path: Path) -> int:
        """The compacted batches, on disk when this returns; the file's size."""
        with storage(f"cannot write {path}"):
            remove(path)
        file = OpenFile(path)
        written, buffer = 0, bytearray()
        with storage(f"cannot write {path}"):
            for data in self._compacted():
                buffer += data
                if len(buffer) >= _WRITE_BUFFER:
                    written += self._put(file, buffer, written)
                    buffer = bytearray()
            written += self._put(file, buffer, written)
            fault_point("compaction.fsync")
            file.sync()
        return written

    def _put(self, file: OpenFile, data: bytearray, at: int) -> int:
        fault_point("compaction.write")
        file.write(data, at)
        self._tools.throttle.passed(len(data))
        return len(data)

    def _compacted(self) -> Iterator[bytes]:
        for segment in self._segments:
            for header, data in _batches(self._log, segment, self._tools):
                yield self._keep(header, data)

    def _keep(self, header: BatchHeader, data: bytes) -> bytes:
        """The batch as it stays; empty when nothing does."""
        if header.is_control or not self._offsets.covers(header.base_offset):
            return data
        columns = decode_columns(data, 0, header, self._tools.codecs, partition=self._log.tp)
        gone = header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms
        kept = [i for i in range(len(columns.offsets)) if self._stays(columns, i, gone)]
        self._done.records_dropped += len(columns.offsets) - len(kept)
        if not kept:
            return self._emptied(header, data)
        first_seen = header.delete_horizon_ms is None and any(columns.values[i] is None for i in kept)
        if len(kept) == len(columns.offsets) and not first_seen:
            return data
        self._changed = True
        horizon = self._now_ms + self._log.config.delete_retention_ms if first_seen else header.delete_horizon_ms
        return keep_records(header, columns, kept, self._tools.codecs, NO_TIMESTAMP if horizon is None else horizon)

    def _stays(self, columns: RecordColumns, index: int, tombstones_gone: bool) -> bool:
        key, offset = columns.keys[index], columns.offsets[index]
        if not self._offsets.covers(offset):
            return True
        if key is None:  # from before the topic was compacted; Kafka drops it too
            self._done.keyless_dropped += 1
            return False
        if self._offsets.superseded(key, offset):
            return False
        return columns.values[index] is not None or not tombstones_gone

    def _emptied(self, header: BatchHeader, data: bytes) -> bytes:
        """Only the header stays, or nothing. The group's last one stays always: so a reader gets past the end of what
        is gone, and the file says itself which segments it stands for."""
        kept = b""
        if self._last_of_producers.get(header.producer_id) == header.last_offset or header.next_offset == self._last:
            kept = data if not header.record_count else keep_nothing(header)
        self._changed = self._changed or kept != data
        return kept


def _discard(log: PartitionLog, base: int) -> None:
    """Removes the files of a compacted segment that does not become part of the log."""
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        path = segment_file(log.directory, base, suffix + CLEANED)
        try:
            remove(path)
        except OSError as error:  # the next start removes it
            _log.warning("%s: cannot remove %s: %s", log.tp, path, error.strerror)


def first_timestamp(log: PartitionLog, segment: Segment) -> int:
    """Largest timestamp of the segment's first batch; -1 where there is none."""
    for _, header in scan(log.file_of(segment), 0, segment.size):
        return header.max_timestamp
    return NO_TIMESTAMP
