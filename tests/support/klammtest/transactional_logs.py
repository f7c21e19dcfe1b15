"""Transactional batches, markers, and what a log with transactions must show, computed from all batches at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from klamm.core.log.partition_log import AppendResult, PartitionLog
from klamm.core.log.validation import AppendOrigin
from klamm.core.records.control import TransactionMarker, read_marker
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import CRC_FROM, TRANSACTIONAL, BatchHeader, crc_of, iter_headers, set_crc
from klamm.core.records.isolation import AbortedTransaction
from klamm.core.records.record import Record
from klammtest.logs import START_MS, batch, codec_table


def transactional(
    values: Sequence[bytes | None] = (b"value",),
    *,
    producer: tuple[int, int, int],
    key: bytes | None = b"key",
    timestamp_ms: int = START_MS,
) -> bytearray:
    """Makes one batch of a transaction; `producer` is id, epoch and first sequence."""
    made = batch(values, producer=producer, key=key, timestamp_ms=timestamp_ms)
    made[CRC_FROM + 1] |= TRANSACTIONAL
    set_crc(made, 0, crc_of(made, 0, len(made)))
    return made


def add(log: PartitionLog, data: bytearray, *, leader_epoch: int = 0, commit: bool = True) -> AppendResult:
    """Appends a batch of a transaction as the broker does for a coordinator."""
    return log.append_as_leader(data, leader_epoch, origin=AppendOrigin.INTERNAL, commit=commit)


def end(
    log: PartitionLog,
    producer_id: int,
    epoch: int = 0,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    shown: bool = True,
) -> AppendResult:
    """Appends a marker; the high watermark passes it if it is `shown`."""
    marker = TransactionMarker(commit, coordinator_epoch)
    return log.append_marker(producer_id, epoch, marker, leader_epoch, commit=shown)


@dataclass
class Ended:
    """A transaction: its first offset, its marker's (None while it is open), and whether it was aborted."""

    producer_id: int
    first: int
    marker: int | None = None
    aborted: bool = False


@dataclass
class Expected:
    """What readers must see of a log with these batches, by the definition of each term (docs/transactions.md)."""

    headers: list[BatchHeader] = field(default_factory=list)
    transactions: list[Ended] = field(default_factory=list)

    @classmethod
    def of(cls, data: bytes) -> Expected:
        """Reads the batches of a whole log."""
        found = cls()
        running: dict[int, Ended] = {}
        for position, header in iter_headers(data):
            found.headers.append(header)
            marker = read_marker(data, position, header)
            if marker is not None:
                ended = running.pop(header.producer_id, None)
                if ended is not None:
                    ended.marker, ended.aborted = header.base_offset, not marker.commit
            elif header.is_transactional and not header.is_control and header.producer_id not in running:
                running[header.producer_id] = Ended(header.producer_id, header.base_offset)
                found.transactions.append(running[header.producer_id])
        return found

    def last_stable(self, high_watermark: int, start: int) -> int:
        unstable = [one.first for one in self.transactions if one.marker is None or one.marker >= high_watermark]
        return max(start, min([high_watermark, *unstable]))

    def open(self) -> dict[int, int]:
        return {one.producer_id: one.first for one in self.transactions if one.marker is None}

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Returns the aborted list of a read of [first, end)."""
        found = [
            AbortedTransaction(one.producer_id, one.first)
            for one in self.transactions
            if one.aborted and one.marker is not None and one.marker >= first and one.first < end
        ]
        return sorted(found, key=lambda one: one.first_offset)

    def hidden(self, header: BatchHeader) -> bool:
        """True for a marker and for a batch of an aborted transaction."""
        mine = (one for one in self.transactions if one.aborted and one.producer_id == header.producer_id)
        in_aborted = any(one.first <= header.base_offset < (one.marker or 0) for one in mine)
        return header.is_control or (header.is_transactional and in_aborted)


def committed(data: bytes, aborted: Iterable[AbortedTransaction]) -> list[Record]:
    """Returns the records of the committed transactions in a Fetch's answer, by KIP-98's rule for consumers."""
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    dropping: set[int] = set()
    found: list[Record] = []
    for position, header in iter_headers(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropping.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(data, position, header)
            if marker is not None and not marker.commit:
                dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            found += decode_batch(data, position, header, codec_table())
    return found
