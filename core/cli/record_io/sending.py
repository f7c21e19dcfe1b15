"""Sends the records of parsed input, and counts those that are stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ...client.producer.columns import OversizedRecordError, RawRecords
from ...client.producer.table_future import TableFuture
from ...errors import KlammError
from ...records.record import Headers
from .line_input import BadInput, ParsedBlock

if TYPE_CHECKING:
    from ...client.producer.producer import Producer

_OUTSTANDING: Final = 10_000
"""The number of futures from which on the oldest is waited for."""


class RecordSending:
    """Sends to one topic. `key` and `headers` are added to records that have none of their own; `one_by_one`: the
    producer has interceptors, which see single records.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        one_by_one: bool,
    ) -> None:
        self.stored = 0
        self.error: KlammError | None = None
        """The first failure of a sent record."""
        self._producer = producer
        self._topic = topic
        self._key = key
        self._headers = headers
        self._partition = partition
        self._one_by_one = one_by_one
        self._futures: deque[Future[Any]] = deque()

    def send(self, block: ParsedBlock, skip: bool) -> Iterator[BadInput]:
        """Sends the block's records. Yields the lines whose records are too large; without `skip` nothing after the
        first of them is sent."""
        at = 0
        for run in self._runs(block):
            start, count = 0, len(run.values)
            while start < count:
                try:
                    self._send(run.part(start, count))
                    break
                except OversizedRecordError as error:
                    wrong = start + error.index
                    self._send(run.part(start, wrong))
                    yield BadInput(block.lines[at + wrong], str(error))
                    if not skip:
                        return
                    start = wrong + 1
            at += count
        self._settle(_OUTSTANDING)

    def finish(self) -> None:
        """Waits until every record is stored or has failed."""
        self._producer.flush()
        self._settle(0)

    def count_settled(self) -> None:
        """Counts the records that are stored by now."""
        while self._futures:
            self._count(self._futures.popleft())

    def _runs(self, block: ParsedBlock) -> Iterator[RawRecords]:
        """Yields consecutive records that `send_raw` takes together."""
        if block.values is not None:
            values = block.values
            yield RawRecords(values, None if self._key is None else [self._key] * len(values), None, self._headers)
            return
        for (headers, dated), run in groupby(block.records, lambda one: (one.headers, one.timestamp_ms is not None)):
            rows = list(run)
            keys = [self._key if row.key is None else row.key for row in rows]
            yield RawRecords(
                [row.value for row in rows],
                keys if any(key is not None for key in keys) else None,
                [row.timestamp_ms or 0 for row in rows] if dated else None,
                (*self._headers, *headers),
            )

    def _send(self, run: RawRecords) -> None:
        if self._one_by_one:
            self._singly(run)
        elif run.values:
            self._futures.append(
                self._producer.send_raw(
                    self._topic, run.values, keys=run.keys, timestamps_ms=run.timestamps_ms, headers=run.headers,
                    partition=self._partition,
                )
            )  # fmt: skip

    def _singly(self, run: RawRecords) -> None:
        for index, value in enumerate(run.values):
            try:
                future = self._producer.send(
                    self._topic,
                    value,
                    key=None if run.keys is None else run.keys[index],
                    headers=run.headers,
                    timestamp_ms=None if run.timestamps_ms is None else run.timestamps_ms[index],
                    partition=self._partition,
                )
            except OversizedRecordError as error:
                raise OversizedRecordError(index, str(error)) from error
            self._futures.append(future)

    def _settle(self, left: int) -> None:
        """Counts the futures that are done; waits for the oldest while there are more than `left`."""
        while self._futures and (len(self._futures) > left or self._futures[0].done()):
            self._futures[0].exception()
            self._count(self._futures.popleft())

    def _count(self, future: Future[Any]) -> None:
        if isinstance(future, TableFuture):
            self.stored += future.metadata.records
        elif future.done() and future.exception() is None:
            self.stored += 1
        if future.done() and self.error is None:
            error = future.exception()
            self.error = error if isinstance(error, KlammError) or error is None else KlammError(str(error))
