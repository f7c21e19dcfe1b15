"""The log of a coordinator's shard: it is replayed into the shard, and appended to.

Rules. Reads end at the high watermark, and each one continues where the last one ended: others append too, as
registry members do by Produce. A decision that depends on the whole log, including records above the high watermark,
is appended only if the log still ends where it was read to; else it is made again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from ...errors import BrokerError, ErrorCode
from ...log.partition_log import ReadIsolation
from ...records.decode import decode_columns
from ...records.header import iter_headers
from ...records.partition import TopicPartition
from .led_log import LedLog

FETCH_BYTES: Final = 4 * 1024 * 1024
MAX_GAP_S: Final = 3600.0
"""Well below `delete.retention.ms`: after a longer gap compaction may have removed tombstones that were not read."""
APPEND_TRIES: Final = 100


class Replayed(Protocol):
    """The state to which the records of a log are applied, on worker threads, by one thread at a time."""

    def clear(self) -> None:
        """Forgets all records: the log is read again from its start."""
        ...

    def apply(
        self, partition: TopicPartition, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Applies the record at `offset`. Each record is applied once, in the order of offsets."""
        ...


R = TypeVar("R", bound=Replayed)


class ShardLog:
    """Blocking and thread-safe; call `replay_into` first. Every method raises as `LedLog` does."""

    def __init__(self, led: LedLog, clock: Callable[[], float] = time.monotonic) -> None:
        self.partition = led.partition
        self._led = led
        self._clock = clock
        self._lock = threading.Lock()
        self._position = 0
        self._read_at = clock()
        self._into: Replayed | None = None

    def replay_into(self, into: Replayed) -> None:
        """Sets the state to which the records are applied."""
        self._into = into

    @contextmanager
    def caught_up(self) -> Iterator[int]:
        """Applies what was appended since the last call, up to the high watermark; yields the offset after it. Nothing
        is applied inside of the `with` block."""
        with self._lock:
            self._catch_up()
            yield self._position

    def append(self, batch: bytearray) -> int:
        """Appends one batch; see `LedLog.append`."""
        return self._led.append(batch)

    def append_decided(self, copy: Callable[[], R], decide: Callable[[R], bytearray | None], what: str) -> None:
        """Appends the batch that `decide` makes of the whole log; nothing if it returns None.

        `copy` returns a copy of the state applied so far; the records up to the log end are applied to it before
        `decide` gets it. Raises `BrokerError` REQUEST_TIMED_OUT, with `what` in its message, if other appends
        overtake it again and again.
        """
        for _ in range(APPEND_TRIES):
            with self.caught_up() as at:
                copied = copy()
            while data := self._led.read(at, FETCH_BYTES, ReadIsolation.LOG_END).data:
                at = self._apply(copied, data, at, None)
            batch = decide(copied)
            if batch is None or self._led.append_at(at, batch) is not None:
                return
        raise BrokerError(ErrorCode.request_timed_out, f"{self.partition}: {what} was overtaken {APPEND_TRIES} times")

    def _catch_up(self) -> None:
        assert self._into is not None, "replay_into was not called"
        now = self._clock()
        if now - self._read_at > MAX_GAP_S:
            self._start_over(self._into, 0)
        while True:
            found = self._led.read(self._position, FETCH_BYTES)
            if found.log_start_offset > self._position:
                self._start_over(self._into, found.log_start_offset)
                continue
            if self._position >= found.high_watermark:
                break
            at = self._apply(self._into, found.data, self._position, found.high_watermark)
            # Without a batch, all records up to the high watermark were removed by compaction.
            self._position = at if at != self._position else found.high_watermark
        self._read_at = now

    def _start_over(self, into: Replayed, position: int) -> None:
        into.clear()
        self._position = position

    def _apply(self, into: Replayed, data: bytes, position: int, end: int | None) -> int:
        """Applies the records from `position` on, in batches that begin before `end`; returns the offset after them."""
        for at, header in iter_headers(data):
            if end is not None and header.base_offset >= end:
                break
            if not header.is_control:
                columns = decode_columns(data, at, header, self._led.codecs, partition=self.partition)
                rows = zip(columns.offsets, columns.timestamps_ms, columns.keys, columns.values, strict=True)
                for offset, timestamp_ms, key, value in rows:
                    if offset >= position:
                        into.apply(self.partition, offset, timestamp_ms, key, value)
            position = header.next_offset
        return position
