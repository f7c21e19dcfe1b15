"""Compacts a log: keeps only the last record of each key, in its place and with its offset.

A pass reads the uncompacted part of the log into an `OffsetMap`, then rewrites every segment up to the end of the map
and merges small neighbours. It keeps the same records as Kafka (`LogCleaner`, KIP-534): the last record of each key,
unless it is a tombstone and the delete horizon of its batch has passed. The first pass that reads a tombstone sets the
horizon, `delete.retention.ms` ahead. A batch without remaining records stays as a header if it is the last one of its
producer, so that the sequences are kept. The active segment is never compacted.

Of transactions (docs/transactions.md, T15): segments above the last stable offset are not compacted. Batches of aborted
transactions are removed, and their records supersede none. A marker is never judged by its key: it stays while a batch
of its transaction stays, and then until a delete horizon of its own has passed.

The pass reads and writes without the log's lock; `PartitionLog.replace_segments` then replaces the old segments by the
new one.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from ...faults import fault_point
from ...records.codecs import CodecTable
from ...records.decode import RecordColumns, decode_columns
from ...records.editing.rewrite import keep_nothing, keep_records
from ...records.header import NO_TIMESTAMP, BatchHeader
from ..partition_log import PartitionLog
from ..segment.file_operations import OpenFile, remove, storage
from ..segment.naming import CLEANED, INDEXES, LOG, segment_file
from ..segment.offset_index import MAX_RELATIVE
from ..segment.scan import scan
from ..segment.segment import Segment
from ..segment.transaction_index import AbortedEntry
from ..state.clock import Clock
from .offset_map import OffsetMap
from .throttle import Throttle

_log = logging.getLogger(__name__)
_WRITE_BUFFER: Final = 1 << 20


class CompactionCancelledError(Exception):
    """Retention, a truncation or a deletion changed the log during the pass, so nothing was replaced."""


@dataclass(frozen=True, slots=True)
class Compactor:
    """The tools of a pass. `map_bytes` bounds the memory of the offset map."""

    codecs: CodecTable
    map_bytes: int
    throttle: Throttle
    clock: Clock


@dataclass(slots=True)
class Compacted:
    """The result of a pass. `first_dirty`: the offset at which the next pass starts."""

    first_dirty: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_dropped: int = 0
    keyless_dropped: int = 0


def compact(log: PartitionLog, first_dirty: int, end: int, tools: Compactor) -> Compacted:
    """Runs one pass over the sealed segments below `end`, the base offset of a segment. The part from `first_dirty` on
    is not compacted yet.

    Raises `CompactionCancelledError`, `ThreadShutdownError`, `CorruptRecordError` at a batch that cannot be read, and
    `StorageError`. The log is then unchanged, or some of its segments are compacted; both are consistent.
    """
    truncations = log.truncations  # read first: a later truncation may change what the pass reads
    segments = [s for s in log.cleanable_segments() if s.base_offset < end]
    aborted = AbortedBatches(log.aborted_transactions(0, segments[-1].next_offset) if segments else [])
    offsets = _map_offsets(log, segments, first_dirty, end, aborted, tools)
    unfinished: set[int] = set()
    done = Compacted(offsets.end)
    reached = [s for s in segments if s.base_offset < offsets.end]
    for group in _groups(reached, log):
        _Group(log, group, truncations, offsets, aborted, unfinished, tools, done).run()
    return done


def _map_offsets(
    log: PartitionLog,
    segments: Iterable[Segment],
    first_dirty: int,
    end: int,
    aborted: AbortedBatches,
    tools: Compactor,
) -> OffsetMap:
    offsets = OffsetMap(tools.map_bytes, first_dirty)
    for segment in segments:
        if segment.next_offset <= first_dirty:
            continue
        for header, data in _batches(log, segment, tools):
            if header.last_offset < first_dirty or header.is_control or not header.record_count:
                continue
            if header in aborted:
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
    """Yields groups of neighbours that fit into one segment."""
    group: list[Segment] = []
    for segment in segments:
        too_large = sum(s.size for s in group) + segment.size > log.config.segment_bytes
        if group and (too_large or segment.next_offset - group[0].base_offset > MAX_RELATIVE):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


class AbortedBatches:
    """Contains the headers of the batches of aborted transactions."""

    def __init__(self, entries: Iterable[AbortedEntry]) -> None:
        self.entries = list(entries)
        self._ended: dict[int, list[tuple[int, int]]] = {}
        for entry in self.entries:
            self._ended.setdefault(entry.producer_id, []).append((entry.last_offset, entry.first_offset))
        for ended in self._ended.values():
            ended.sort()

    def __contains__(self, header: BatchHeader) -> bool:
        ended = self._ended.get(header.producer_id)
        if ended is None or not header.is_transactional or header.is_control:
            return False
        at = bisect_left(ended, (header.base_offset,))
        return at < len(ended) and ended[at][1] <= header.base_offset


class _Group:
    """Compacts a group of segments into one segment. `unfinished`: the producers of which a transactional batch stays
    that no marker has followed; it is carried from group to group, since a transaction may begin in one and end in
    another."""

    def __init__(
        self,
        log: PartitionLog,
        segments: Sequence[Segment],
        truncations: int,
        offsets: OffsetMap,
        aborted: AbortedBatches,
        unfinished: set[int],
        tools: Compactor,
        done: Compacted,
    ) -> None:
        self._log = log
        self._segments = segments
        self._truncations = truncations
        self._offsets = offsets
        self._aborted = aborted
        self._unfinished = unfinished
        self._markers: set[int] = set()
        self._tools = tools
        self._done = done
        self._now_ms = tools.clock()
        self._last_of_producers = log.last_batches_of_producers()
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
        with storage(f"cannot set the time of {path}"):  # retention uses it if no record has a timestamp
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        log = self._log
        cleaned = Segment(log.tp, directory, base, log.config, self._now_ms, log.files, CLEANED)
        cleaned.rebuild()
        kept = (entry for entry in self._aborted.entries if entry.last_offset in self._markers)
        cleaned.set_aborted(sorted(kept, key=attrgetter("last_offset")))
        cleaned.seal()
        if not log.replace_segments(self._segments, cleaned, self._truncations):
            raise CompactionCancelledError("the log was truncated, or some of its segments are no longer in it")

    def _write(self, path: Path) -> int:
        """Writes the compacted batches to `path` and flushes the file; returns its size."""
        with storage(f"cannot write {path}"):
            remove(path)
        file = OpenFile(path, create=True)
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
                kept = self._keep_marker(header, data) if header.is_marker else self._keep(header, data)
                if kept and header.is_transactional and not header.is_control:
                    self._unfinished.add(header.producer_id)
                yield kept

    def _keep_marker(self, header: BatchHeader, data: bytes) -> bytes:
        """Returns the marker of a transaction; empty if it is removed."""
        needed = header.producer_id in self._unfinished
        self._unfinished.discard(header.producer_id)
        if not header.record_count:
            return self._empty_batch(header, data)
        horizon = header.delete_horizon_ms
        if not needed and self._offsets.covers(header.base_offset):
            if horizon is not None and horizon <= self._now_ms:
                return self._empty_batch(header, data)
            if horizon is None:
                self._changed = True
                columns = decode_columns(data, 0, header, self._tools.codecs, partition=self._log.tp)
                data = keep_records(
                    header, columns, [0], self._tools.codecs, self._now_ms + self._log.config.delete_retention_ms
                )
        self._markers.add(header.base_offset)
        return data

    def _keep(self, header: BatchHeader, data: bytes) -> bytes:
        """Returns the compacted batch; empty if nothing of it remains."""
        if header in self._aborted:
            self._done.records_dropped += header.record_count
            return self._empty_batch(header, data)
        if header.is_control or not self._offsets.covers(header.base_offset):
            return data
        columns = decode_columns(data, 0, header, self._tools.codecs, partition=self._log.tp)
        gone = header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms
        kept = [i for i in range(len(columns.offsets)) if self._is_retained(columns, i, gone)]
        self._done.records_dropped += len(columns.offsets) - len(kept)
        if not kept:
            return self._empty_batch(header, data)
        first_seen = header.delete_horizon_ms is None and any(columns.values[i] is None for i in kept)
        if len(kept) == len(columns.offsets) and not first_seen:
            return data
        self._changed = True
        horizon = self._now_ms + self._log.config.delete_retention_ms if first_seen else header.delete_horizon_ms
        return keep_records(header, columns, kept, self._tools.codecs, NO_TIMESTAMP if horizon is None else horizon)

    def _is_retained(self, columns: RecordColumns, index: int, tombstones_gone: bool) -> bool:
        key, offset = columns.keys[index], columns.offsets[index]
        if not self._offsets.covers(offset):
            return True
        if key is None:  # written before the topic was compacted; Kafka removes it too
            self._done.keyless_dropped += 1
            return False
        if self._offsets.superseded(key, offset):
            return False
        return columns.values[index] is not None or not tombstones_gone

    def _empty_batch(self, header: BatchHeader, data: bytes) -> bytes:
        """Returns the header of a batch without remaining records, or nothing. The last batch of the group always keeps
        its header: so a reader gets past the removed records, and the end of the file shows which segments it
        replaces."""
        kept = b""
        last = self._last_of_producers.get(header.producer_id)
        if (last is not None and last.is_of(header)) or header.next_offset == self._last:
            kept = data if not header.record_count else keep_nothing(header)
        self._changed = self._changed or kept != data
        return kept


def _discard(log: PartitionLog, base: int) -> None:
    """Removes the files of a compacted segment that does not become part of the log."""
    for suffix in (LOG, *INDEXES):
        path = segment_file(log.directory, base, suffix + CLEANED)
        try:
            remove(path)
        except OSError as error:  # the next start removes it
            _log.warning("%s: cannot remove %s: %s", log.tp, path, error.strerror)


def first_timestamp(log: PartitionLog, segment: Segment) -> int:
    """Returns the max timestamp of the first batch of the segment; -1 if there is none."""
    for _, header in scan(log.file_of(segment), 0, segment.size):
        return header.max_timestamp
    return NO_TIMESTAMP
