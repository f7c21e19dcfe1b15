"""All records of an offset range, batch by batch: what one Spark task reads.

Offsets have holes (compaction, transaction markers), so the range is done when a batch ends at or beyond its end, never
when enough records were seen. What should be there and does not come is an error, not the end.

A batch that cannot be opened (by its CRC it is as it was written, and holds no records) is an error too, or is passed
on unopened where that was asked for. One whose CRC does not match is always an error: another copy may be good.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from klamm.core.client.cluster_client import FetchedPartition
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import RecordColumns, decode_columns
from klamm.core.records.header import BatchHeader, crc_matches, iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.plan import OffsetRange

FETCH_BYTES: Final = 8 * 1024 * 1024
_WAIT_MS: Final = 500
_log = logging.getLogger(__name__)


class DataLossError(KlammError):
    """Offsets that the plan says are there are not: deleted by retention, or the topic was made anew."""

    code = ErrorCode.offset_out_of_range


class _NotYetError(KlammError):
    """Retriable: the leader is elsewhere, away, or has nothing to give yet."""


class FetchClient(Protocol):
    """What of `ClusterClient` a task needs."""

    codecs: CodecTable

    def leader_of(self, partition: TopicPartition) -> int: ...

    def forget(self, topic: str) -> None: ...

    def fetch_one(self, node_id: int, partition: TopicPartition, offset: int) -> FetchedPartition: ...


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a batch cannot be opened, and one past its last offset within the range."""

    reason: str
    end: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One batch's records within the range, and whether the broker stamped them. With `unreadable` the columns are one
    row that stands for the batch: its first offset within the range, its base timestamp, and as value its bytes."""

    columns: RecordColumns
    log_append_time: bool
    unreadable: Unreadable | None = None


class RangeReader:
    """Reads one range, once. `poll_timeout_s` bounds the wait for the next batch, retries included. `quarantine`: a
    batch that cannot be opened is passed on and not an error."""

    def __init__(
        self,
        client: FetchClient,
        range_: OffsetRange,
        *,
        fail_on_data_loss: bool,
        poll_timeout_s: float,
        quarantine: bool = False,
    ) -> None:
        self._client = client
        self._range = range_
        self._partition = range_.partition
        self._strict = fail_on_data_loss
        self._quarantine = quarantine
        self._position = range_.start
        self._retrying = Retrying(
            retry=retry_if_exception_type((_NotYetError, ConnectionFailedError)),
            stop=stop_after_delay(poll_timeout_s),
            wait=wait_exponential(0.05, max=2.0),
            reraise=True,
        )

    def batches(self) -> Iterator[ReadBatch]:
        """In offset order. `DataLossError` or what the broker says, naming partition and offset."""
        while self._position < self._range.end:
            try:
                data = self._retrying(self._fetch)
            except DataLossError as error:
                if self._strict:
                    raise
                _log.warning("%s", error)
                continue
            before = self._position
            yield from self._read(data)
            if self._position <= before:
                raise CorruptRecordError(f"{self._partition}: asked for offset {before}, only earlier batches came")

    def _read(self, data: bytes) -> Iterator[ReadBatch]:
        for pos, header in iter_headers(data):
            if header.base_offset >= self._range.end:
                # The hole before this batch reaches over the end.
                self._position = header.base_offset
                return
            first, self._position = self._position, max(self._position, header.next_offset)
            if header.next_offset > first and not header.is_control:
                yield self._open(data, pos, header, first)

    def _open(self, data: bytes, pos: int, header: BatchHeader, first: int) -> ReadBatch:
        try:
            return ReadBatch(self._within(data, pos, header, first), header.log_append_time)
        except CorruptRecordError as error:
            begin, end = max(first, header.base_offset), min(header.next_offset, self._range.end)
            if not crc_matches(data, pos, header):
                raise
            if not self._quarantine:
                raise type(error)(
                    f"{error}; the batch of the offsets {begin} to {end} cannot be opened "
                    "(on.bad.record: quarantine sets such batches aside)"
                ) from error
            row = ([begin], [header.base_timestamp], [None], [data[pos : pos + header.size]], [()])
            return ReadBatch(RecordColumns(*row), header.log_append_time, Unreadable(str(error), end))  # type: ignore[arg-type]

    def _within(self, data: bytes, pos: int, header: BatchHeader, first: int) -> RecordColumns:
        columns = decode_columns(data, pos, header, self._client.codecs, partition=self._partition)
        if header.base_offset >= first and header.next_offset <= self._range.end:
            return columns
        kept = [i for i, offset in enumerate(columns.offsets) if first <= offset < self._range.end]
        return RecordColumns(*([column[i] for i in kept] for column in columns))  # type: ignore[arg-type]

    def _fetch(self) -> bytes:
        """At least one whole batch at or after the position; or `_NotYetError`, which is tried again."""
        node = self._client.leader_of(self._partition)
        try:
            fetched = self._client.fetch_one(node, self._partition, self._position)
        except ConnectionFailedError:
            self._client.forget(self._partition.topic)
            raise
        if fetched.error == ErrorCode.offset_out_of_range:
            raise self._lost(fetched)
        if fetched.error != ErrorCode.none:
            if not fetched.error.retriable:
                raise BrokerError(fetched.error, f"fetch of {self._partition} at offset {self._position}")
            self._client.forget(self._partition.topic)
            raise _NotYetError(f"{self._partition} offset {self._position}: {fetched.error.name}")
        if next(iter_headers(fetched.records), None) is None:
            raise _NotYetError(
                f"{self._partition}: no records at offset {self._position}, though the range goes to {self._range.end} "
                f"(high watermark {fetched.high_watermark})"
            )
        return fetched.records

    def _lost(self, fetched: FetchedPartition) -> DataLossError:
        """Moves on to what is left, for those who want to go on without the rest."""
        lost, start = self._position, fetched.log_start_offset
        self._position = start if start > lost else self._range.end
        until = min(self._position, self._range.end)
        return DataLossError(
            f"{self._partition}: the offsets {lost} to {until} are gone (the log starts at {start}); "
            "failOnDataLoss=false reads what is left"
        )
