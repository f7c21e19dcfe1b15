"""One partition of `__consumer_offsets` at the broker that leads it: the coordinator's part of the store `topic`.

Rules: appends go to the local log under the leader epoch in which the store was made, so that those of a deposed leader
never become visible; an append has ended once it is below the high watermark. Reads take place up to the high
watermark. Each method reads what was appended since the last one, since registry members append by Produce. A deletion
of what was seen also reads what is not below the high watermark yet, and its tombstones are appended only if the log
ends where it has read to: else one could land behind a newer commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from klamm.core.records.decode import decode_columns
from klamm.core.records.header import iter_headers
from klamm.errors import BrokerError
from klamm.plugin import Check, CommittedOffset, Coordination, ErrorCode, LeaderLog, StoredGroup, TopicPartition

from .contents import OffsetsContents
from .records import Rows, batch_of, commit_rows, deletion_rows, state_rows

FETCH_BYTES: Final = 4 * 1024 * 1024
MAX_GAP_S: Final = 3600.0
"""Well below `delete.retention.ms`: after it compaction may have removed tombstones that the store has not read."""
DELETION_TRIES: Final = 100


class TopicPartitionStore:
    """Implements `klamm.core.interfaces.offsets.PartitionStore`."""

    needs_coordination = False

    def __init__(
        self,
        log: LeaderLog,
        coordination: Coordination,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._coordination = coordination
        self._now_ms = now_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._contents = OffsetsContents()
        self._position = 0
        self._read_at = clock()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        if not offsets:
            return
        rows = commit_rows(group, offsets)
        self._check(guards)
        self._append(rows)
        self._check(guards)

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        with self._lock:
            self._catch_up()
            stored = dict(self._contents.offsets.get(group, {}))
        return stored if partitions is None else {tp: stored[tp] for tp in partitions if tp in stored}

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        chosen = None if partitions is None else set(partitions)
        for _ in range(DELETION_TRIES):
            with self._lock:
                self._catch_up()
                at, contents = self._position, self._contents.of_group(group)
            if seen is not None:
                at = self._read_on(at, contents)
            stored, has_state = contents.offsets.get(group, {}), group in contents.states
            rows = deletion_rows(group, stored, chosen, seen, has_state=has_state)
            self._check(guards)
            if not rows:
                return
            if seen is None:
                self._append(rows)
                return
            if self._log.append_at(at, batch_of(rows, self._now_ms())) is not None:
                return
        raise BrokerError(
            ErrorCode.request_timed_out,
            f"{self._log.partition}: a deletion from group {group} was overtaken {DELETION_TRIES} times",
        )

    def _read_on(self, position: int, contents: OffsetsContents) -> int:
        """Applies what is in the log from `position` on, up to its end; returns the end."""
        while data := self._log.read_uncommitted(position, FETCH_BYTES):
            position = self._apply_to(contents, data, position, None)
        return position

    def groups(self) -> list[str]:
        with self._lock:
            self._catch_up()
            return sorted(self._contents.offsets)

    def save_group(self, group: str, state: StoredGroup) -> None:
        self._append(state_rows(group, state))

    def load_groups(self) -> dict[str, StoredGroup]:
        with self._lock:
            self._catch_up()
            return dict(self._contents.states)

    def close(self) -> None:
        """Does nothing: the log belongs to the broker."""

    def _append(self, rows: Rows) -> None:
        self._log.append(batch_of(rows, self._now_ms()))

    def _check(self, guards: Sequence[Check]) -> None:
        if guards:
            self._coordination.transaction(guards)

    def _catch_up(self) -> None:
        now = self._clock()
        if now - self._read_at > MAX_GAP_S:
            self._start_over(0)
        while True:
            found = self._log.read(self._position, FETCH_BYTES)
            if found.log_start_offset > self._position:
                self._start_over(found.log_start_offset)
                continue
            if self._position >= found.high_watermark:
                break
            self._apply(found.data, found.high_watermark)
        self._read_at = now

    def _start_over(self, position: int) -> None:
        self._contents.clear()
        self._position = position

    def _apply(self, data: bytes, high_watermark: int) -> None:
        """Applies the batches; without any, all records up to the high watermark were removed by compaction."""
        begun = self._position
        self._position = self._apply_to(self._contents, data, begun, high_watermark)
        if self._position == begun:
            self._position = high_watermark

    def _apply_to(self, contents: OffsetsContents, data: bytes, position: int, end: int | None) -> int:
        """Applies the records from `position` on, in batches that begin before `end`; returns the offset after them."""
        tp = self._log.partition
        for at, header in iter_headers(data):
            if end is not None and header.base_offset >= end:
                break
            if not header.is_control:
                columns = decode_columns(data, at, header, self._log.codecs, partition=tp)
                rows = zip(columns.offsets, columns.timestamps_ms, columns.keys, columns.values, strict=True)
                for offset, timestamp_ms, name, value in rows:
                    if offset >= position:
                        contents.apply(tp, offset, timestamp_ms, name, value)
            position = header.next_offset
        return position
