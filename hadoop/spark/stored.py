"""Finds the rows that an earlier attempt of a task stored in a partition, and those that are left to write.

The broker stores each sequence number of a producer's epoch once. A later attempt therefore looks for the batches of
its claim's producer, leaves out the rows that they hold, and continues with the sequence number after them: if another
attempt is still writing, one of the two is refused.

A batch of an earlier attempt may be stored after that look-up: it was in flight, or not yet on all replicas. The broker
then takes this attempt's batch with the same sequence numbers for a duplicate of it, whatever rows it has. So the
batches that a later attempt sends are read back and compared (`check_stored`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.one_record import RecordTuple
from klamm.core.records.partition import TopicPartition

from .claims import Claim, ClaimError
from .cluster import edges

SCAN_TIMEOUT_S: Final = 120.0
Digest = bytes


class StoredRows:
    """The stored rows of one partition. `stamped`: the rows have timestamps of their own, which distinguish them
    too.
    """

    def __init__(self, partition: TopicPartition, stamped: bool) -> None:
        self._partition = partition
        self._stamped = stamped
        self._by_sequence: dict[int, Digest] = {}
        self._left: Counter[Digest] = Counter()
        self._kept_stamps = stamped
        self._seen = 0
        self.next_sequence = 0

    def scan(self, client: ClusterClient, claim: Claim) -> None:
        """Reads the batches that were written since the claim was made."""
        partition = self._partition
        end = edges(client, [partition], LATEST)[partition]
        reader = RangeReader(
            client,
            OffsetRange(partition, claim.starts[partition], end),
            fail_on_data_loss=False,
            poll_timeout_s=SCAN_TIMEOUT_S,
        )
        for data, pos, header in reader.raw_batches():
            if (header.producer_id, header.producer_epoch) != (claim.producer_id, claim.epoch):
                continue
            # A topic whose broker sets the timestamps does not keep those of the rows.
            self._kept_stamps = self._stamped and not header.log_append_time
            for offset, row in _records(data, pos, header, client, partition):
                sequence = header.base_sequence + offset - header.base_offset
                self._by_sequence[sequence] = digest(row, self._kept_stamps)
            self.next_sequence = max(self.next_sequence, header.last_sequence + 1)
        self._left = Counter(self._by_sequence.values())

    @property
    def is_empty(self) -> bool:
        return not self.next_sequence

    def left_to_write(self, rows: Iterable[RecordTuple]) -> list[int]:
        """Returns the indexes, among these rows, of those that are not stored; the task's rows are passed in their
        order.
        """
        return [place for place, row in enumerate(rows) if not self._is_stored(row)]

    def _is_stored(self, row: RecordTuple) -> bool:
        found = digest(row, self._kept_stamps)
        if len(self._by_sequence) == self.next_sequence:
            if not self._left[found]:
                return False
            self._left[found] -= 1
            return True
        # Compaction has removed some rows since: stored rows are recognised by their sequence number.
        place, self._seen = self._seen, self._seen + 1
        if place >= self.next_sequence:
            return False
        if self._by_sequence.get(place, found) != found:
            raise ClaimError(
                f"{self._partition}: a batch that is written again has its rows in another order, and compaction has "
                "removed some of the stored ones; sort the rows within their partitions"
            )
        if place in self._by_sequence:
            self._left[found] -= 1
        return True

    def check_all_found(self, what: str) -> None:
        """Checks at the end of the task that it has produced every row that an earlier attempt stored."""
        if self._left.total() > 0:
            raise ClaimError(
                f"{self._partition}: an earlier attempt of {what} stored {self._left.total()} rows that this one does "
                "not have: the query's rows, or their distribution over tasks, are not the same each time"
            )


def check_stored(
    client: ClusterClient, partition: TopicPartition, base_offset: int, sent: bytes, stamped: bool, what: str
) -> None:
    """Raises `ClaimError` unless the log holds the records of the batch `sent` at `base_offset`, where the broker says
    they are (-1: it does not say).

    `stamped` as in `StoredRows`. Records that compaction or retention has removed since are not compared.
    """
    (sent_header,) = (header for _, header in iter_headers(sent))
    mine = _records(sent, 0, sent_header, client, partition)
    found: dict[int, RecordTuple] = {}
    if base_offset >= 0:
        reader = RangeReader(
            client,
            OffsetRange(partition, base_offset, base_offset + len(mine)),
            fail_on_data_loss=False,
            poll_timeout_s=SCAN_TIMEOUT_S,
        )
        for data, pos, header in reader.raw_batches():
            found |= {offset - base_offset: row for offset, row in _records(data, pos, header, client, partition)}
            stamped &= not header.log_append_time
    sent_rows = {offset: digest(row, stamped) for offset, row in mine}
    if base_offset < 0 or any(sent_rows.get(place) != digest(row, stamped) for place, row in found.items()):
        raise ClaimError(
            f"{partition}: records of an earlier attempt of {what} were stored only now, where this one has "
            "others; the next attempt finds them"
        )


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
