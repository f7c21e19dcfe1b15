"""Reads what attempts of a task stored in a topic: the rows of the task's producer, the tasks of the batch that have
some, and the records of batches that this attempt sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.one_record import RecordTuple
from klamm.core.records.partition import TopicPartition

from .attempt import Digest, FoundRows, SentBatch
from .claims import TaskProducer, raw_batches
from .cluster import edges


class StoredRows:
    """The rows that were stored in a topic since a claim's starts. `stamped`: the rows have timestamps of their own,
    which distinguish them too, unless the broker replaces them.
    """

    def __init__(self, client: ClusterClient, topic: str, starts: Mapping[int, int], producer: TaskProducer) -> None:
        self._client = client
        self._starts = {TopicPartition(topic, number): start for number, start in starts.items()}
        self._next = dict(self._starts)
        self._producer = producer
        self.stamped = True
        """Set it before a search; False afterwards if the broker replaces the timestamps."""

    def search(self) -> dict[int, FoundRows]:
        """Returns this producer's rows in the batches that were stored since the last search."""
        ends = edges(self._client, self._next, LATEST)
        found = {}
        for partition, end in ends.items():
            rows, next_sequence = self._read(partition, self._next[partition], end)
            found[partition.partition] = FoundRows(next_sequence, rows)
            self._next[partition] = max(self._next[partition], end)
        return found

    def _read(self, partition: TopicPartition, start: int, end: int) -> tuple[dict[int, Digest], int]:
        rows: dict[int, Digest] = {}
        next_sequence = 0
        for data, pos, header in raw_batches(self._client, partition, start, end):
            if (header.producer_id, header.producer_epoch) != (self._producer.producer_id, self._producer.epoch):
                continue
            self.stamped &= not header.log_append_time
            for offset, row in _records(data, pos, header, self._client, partition):
                rows[header.base_sequence + offset - header.base_offset] = digest(row, self.stamped)
            next_sequence = max(next_sequence, header.last_sequence + 1)
        return rows, next_sequence

    def tasks(self) -> set[int]:
        """Returns the tasks of the batch that have stored rows."""
        found: set[int | None] = set()
        for partition, end in edges(self._client, self._starts, LATEST).items():
            for _, _, header in raw_batches(self._client, partition, self._starts[partition], end):
                found.add(self._producer.task_of(header.producer_id, header.producer_epoch))
        return {task for task in found if task is not None}


def holds(client: ClusterClient, partition: TopicPartition, base_offset: int, sent: bytes, stamped: bool) -> bool:
    """Returns whether the log has the records of the batch `sent` at `base_offset`, which the broker reported (-1: it
    reported none). Records that compaction or retention has removed since are not compared.
    """
    if base_offset < 0:
        return False
    (sent_header,) = (header for _, header in iter_headers(sent))
    found: dict[int, RecordTuple] = {}
    end = base_offset + sent_header.last_offset_delta + 1
    for data, pos, header in raw_batches(client, partition, base_offset, end):
        if header.base_offset == base_offset and header.crc == sent_header.crc:
            return True
        found |= {offset - base_offset: row for offset, row in _records(data, pos, header, client, partition)}
        stamped &= not header.log_append_time
    sent_rows = {offset: digest(row, stamped) for offset, row in _records(sent, 0, sent_header, client, partition)}
    return all(sent_rows.get(place) == digest(row, stamped) for place, row in found.items())


def same_batches(client: ClusterClient, topic: str, batches: Iterable[SentBatch]) -> bool:
    """Returns whether the log has these batches, unchanged, at their offsets. Batches that compaction, retention or the
    broker (another codec, its own timestamps) has changed differ.
    """
    for sent in batches:
        partition, end = TopicPartition(topic, sent.partition), sent.base_offset + sent.count
        headers = [header for _, _, header in raw_batches(client, partition, sent.base_offset, end)]
        if not any(header.base_offset == sent.base_offset and header.crc == sent.crc for header in headers):
            return False
    return True


def _records(
    data: bytes, pos: int, header: BatchHeader, client: ClusterClient, partition: TopicPartition
) -> list[tuple[int, RecordTuple]]:
    """Returns each record with its offset."""
    columns = decode_columns(data, pos, header, client.codecs, partition=partition)
    rows = zip(columns.timestamps_ms, columns.keys, columns.values, columns.headers, strict=True)
    return list(zip(columns.offsets, rows, strict=True))


def digest(row: RecordTuple, stamped: bool) -> Digest:
    """Returns a hash of all fields of a row."""
    stamp, key, value, headers = row
    hashed = hashlib.blake2b(digest_size=16)
    parts = [key, value, *(part for name, item in headers for part in (name.encode(), item))]
    for part in parts:
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    if stamped:
        hashed.update(b"@%d" % stamp)
    return hashed.digest()
