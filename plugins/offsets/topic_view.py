"""One partition of `__consumer_offsets` as a table in memory: read once, then only what was appended since.

Rules. A look begins with a Fetch from the partition's leader and ends at the high watermark that it told, so it sees
every commit that was acknowledged before, whichever broker or client made it and whoever leads the partition now. A
table that was not looked at for an hour is read anew: tombstones that it missed may have been compacted away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset, StoredGroup
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition

from .kafka_format import GroupKey, OffsetKey, decode_key, decode_value
from .kafka_groups import decode_group

EARLIEST: Final = -2
_FRESH_S: Final = 3600.0
_WAIT_MS: Final = 500
_RETRIABLE: Final = (ConnectionFailedError,)


class _MovedError(Exception):
    """The leader is another one now."""


class TopicView:
    """Thread-safe: one look at a time."""

    def __init__(
        self, client: ClusterClient, tp: TopicPartition, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._tp = tp
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._position = -1
        self._looked_at = 0.0
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._states: dict[str, StoredGroup] = {}

    def offsets(self, group: str, at_least: int = 0) -> dict[TopicPartition, CommittedOffset]:
        """As of now; `at_least` is where an append of one's own ended."""
        with self._lock:
            self._catch_up(at_least)
            return dict(self._groups.get(group, {}))

    def groups(self, at_least: int = 0) -> list[str]:
        with self._lock:
            self._catch_up(at_least)
            return list(self._groups)

    def states(self, at_least: int = 0) -> dict[str, StoredGroup]:
        """Of classic groups, by name."""
        with self._lock:
            self._catch_up(at_least)
            return dict(self._states)

    def _catch_up(self, at_least: int) -> None:
        if self._position >= 0 and self._clock() - self._looked_at > _FRESH_S:
            self._position = -1
        retrying = Retrying(
            retry=retry_if_exception_type((*_RETRIABLE, _MovedError)),
            wait=wait_exponential(multiplier=0.05, max=1.0),
            stop=stop_after_delay(self._timeout_s),
            reraise=True,
        )
        try:
            retrying(self._read_to_end, at_least)
        except _MovedError as error:
            raise BrokerError(ErrorCode.leader_not_available, f"{self._tp}: {error}") from error
        self._looked_at = self._clock()

    def _read_to_end(self, at_least: int) -> None:
        if self._position < 0:
            self._groups, self._states = {}, {}
            self._position = self._client.list_offsets({self._tp: EARLIEST}, timeout_s=self._timeout_s)[self._tp][0]
        deadline = self._clock() + self._timeout_s
        while not self._read_some(at_least):
            if self._clock() > deadline:
                raise BrokerError(ErrorCode.request_timed_out, f"{self._tp} was not read to its end in time")

    def _read_some(self, at_least: int) -> bool:
        """One Fetch; whether the end was reached."""
        leader = next(iter(self._client.by_leader([self._tp])))
        behind = self._position < at_least
        found = self._client.fetch(leader, {self._tp: self._position}, max_wait_ms=_WAIT_MS if behind else 0)[self._tp]
        if found.error is ErrorCode.offset_out_of_range:  # the topic was made anew, or its start moved
            self._position = -1
            raise _MovedError("its records begin elsewhere now")
        if found.error is not ErrorCode.none:
            self._client.cluster.forget([self._tp.topic])
            if not found.error.retriable:
                raise BrokerError(found.error, str(self._tp))
            raise _MovedError(found.error.name)
        self._take(found.records)
        return self._position >= max(found.high_watermark, at_least)

    def _take(self, records: bytes) -> None:
        for pos, header in iter_headers(records):
            if header.last_offset < self._position:
                continue
            if not header.is_control and header.record_count:
                columns = decode_columns(records, pos, header, self._client.codecs, partition=self._tp)
                for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                    if offset >= self._position:
                        self._apply(offset, key, value)
            self._position = header.next_offset

    def _apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            found = decode_key(key) if key is not None else None
            if isinstance(found, OffsetKey):
                self._apply_offset(found, value)
            elif isinstance(found, GroupKey) and value is not None:
                self._states[found.group] = decode_group(value)
            elif isinstance(found, GroupKey):
                self._states.pop(found.group, None)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{self._tp} offset {offset}: {error}") from error

    def _apply_offset(self, found: OffsetKey, value: bytes | None) -> None:
        if value is not None:
            self._groups.setdefault(found.group, {})[found.partition] = decode_value(value)
            return
        stored = self._groups.get(found.group)
        if stored is not None:
            stored.pop(found.partition, None)
            if not stored:
                del self._groups[found.group]
