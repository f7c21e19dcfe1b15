"""All records of an offset range of one partition, as lists or as Arrow columns: what one Spark task reads.

Offsets have holes (compaction, transaction markers), so the range is done when a batch ends at or beyond its end, never
when enough records were seen. What should be there and does not come is an error, not the end.

A batch that cannot be opened (by its CRC it is as it was written, and holds no records) is an error too, or is passed
on unopened where that was asked for. One whose CRC does not match is always an error: another copy may be good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from uuid import UUID

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from ...errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from ...records.codecs import CodecTable
from ...records.decode import Columns, RecordArea, RecordColumns, decode_columns, read_area
from ...records.header import BatchHeader, crc_matches, iter_headers
from ...records.partition import TopicPartition
from ..cluster_client import FetchedPartition
from ..errors import ConnectionFailedError

FETCH_BYTES: Final = 8 * 1024 * 1024
JOINED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of records, uncompressed, from which on `arrow_batches` begins another table."""

_log = logging.getLogger(__name__)
Item = TypeVar("Item")


class DataLossError(KlammError):
    """Offsets that the plan says are there are not: deleted by retention, or the topic was made anew."""

    code = ErrorCode.offset_out_of_range


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of a partition. They may have holes: `size` is no number of records. `topic_id`: the
    topic that the offsets are of, None when it does not matter."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None = None

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


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
    """Records within the range, of one batch or of several, and whether the broker stamped them. With `unreadable` the
    columns are one row that stands for a batch: its first offset within the range, its base timestamp, and as value its
    bytes."""

    columns: Columns
    log_append_time: bool
    unreadable: Unreadable | None = None


class _Joined:
    """Batches that become one table."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._areas: list[RecordArea] = []
        self._size = 0
        self.sources: list[tuple[int, BatchHeader, int]] = []
        self.log_append_time = False

    def takes(self, header: BatchHeader) -> bool:
        return not self.sources or (self._size < JOINED_BYTES and header.log_append_time == self.log_append_time)

    def add(self, area: RecordArea, pos: int, header: BatchHeader, first: int) -> None:
        self._areas.append(area)
        self._size += len(area.data)
        self.sources.append((pos, header, first))
        self.log_append_time = header.log_append_time

    def columns(self) -> Columns:
        from ...records.arrow import arrow_columns  # pyarrow is an extra

        return arrow_columns(self._areas, self.sources[0][2], self._end)


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
        """One batch each, as lists, in offset order. `DataLossError` or what the broker says, naming partition and
        offset."""
        return self._all(self._read)

    def arrow_batches(self) -> Iterator[ReadBatch]:
        """As `batches`, with the columns of many batches as one `ArrowColumns` and without an object for each record.
        Needs pyarrow."""
        return self._all(self._read_joined)

    def raw_batches(self) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """Batches that overlap the range, unopened: the bytes that they came in, the place in them, and the header."""
        return self._all(lambda data: ((data, pos, header) for pos, header, _ in self._wanted(data)))

    def _all(self, read: Callable[[bytes], Iterator[Item]]) -> Iterator[Item]:
        while self._position < self._range.end:
            try:
                data = self._retrying(self._fetch)
            except DataLossError as error:
                if self._strict:
                    raise
                _log.warning("%s", error)
                continue
            before = self._position
            yield from read(data)
            if self._position <= before:
                raise CorruptRecordError(f"{self._partition}: asked for offset {before}, only earlier batches came")

    def _read(self, data: bytes) -> Iterator[ReadBatch]:
        for pos, header, first in self._wanted(data):
            yield self._open(data, pos, header, first)

    def _wanted(self, data: bytes) -> Iterator[tuple[int, BatchHeader, int]]:
        """Batches with records of the range: place, header, and the first offset that is wanted. The position moves
        past each."""
        for pos, header in iter_headers(data):
            if header.base_offset >= self._range.end:
                # The hole before this batch reaches over the end.
                self._position = header.base_offset
                return
            first, self._position = self._position, max(self._position, header.next_offset)
            if header.next_offset > first and not header.is_control:
                yield pos, header, first

    def _read_joined(self, data: bytes) -> Iterator[ReadBatch]:
        """Batches that are stamped alike go together, up to `JOINED_BYTES`; one that cannot be opened stands alone."""
        joined = _Joined(self._range.end)
        for pos, header, first in self._wanted(data):
            if not joined.takes(header):
                yield from self._joined(joined, data)
                joined = _Joined(self._range.end)
            try:
                area = read_area(data, pos, header, self._client.codecs, partition=self._partition)
            except CorruptRecordError:
                yield from self._joined(joined, data)
                joined = _Joined(self._range.end)
                yield self._open(data, pos, header, first)
            else:
                joined.add(area, pos, header, first)
        yield from self._joined(joined, data)

    def _joined(self, joined: _Joined, data: bytes) -> Iterator[ReadBatch]:
        if not joined.sources:
            return
        try:
            columns = joined.columns()
        except CorruptRecordError:  # one batch's records: by themselves it is named, or passed on
            yield from (self._open(data, pos, header, first) for pos, header, first in joined.sources)
        else:
            yield ReadBatch(columns, joined.log_append_time)

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
