"""The `topic` offset store: commits are records of the compacted topic `__consumer_offsets`, in Kafka's format.

Rules: a commit is one batch, stored as a whole or not at all, in the partition that the hash of the group id gives,
acknowledged by all in-sync replicas. For registry members and for services beside a broker the store is a client of the
brokers, whose addresses come from the coordination. The brokers create the topic when they are asked for a group's
coordinator. A fetch reads the records appended since the last one (`_OffsetsTable`). A classic group's coordinator
appends and reads the same records in the log of the partition that its broker leads.

Guards are paths of the coordination, and no transaction spans the coordination and a log. They are checked right before
the append, and again once it is stored: a commit whose guard failed in between raises although it was stored. A former
owner can store only offsets of records that it had processed by then, so the next owner may read records twice but
never misses one. A deletion checks its guards and the stored offsets right before it appends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from klamm import ClusterClient
from klamm.core.client.factory import ClusterAccess, open_client
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.cluster.image_reader import read_image
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC, partition_for
from klamm.core.groups.records.batches import Rows, batch_of, commit_rows, deletion_rows
from klamm.core.groups.records.contents import OffsetsContents
from klamm.core.transport.address import Address
from klamm.plugin import (
    Check,
    CommittedOffset,
    Coordination,
    CoordinationError,
    CoordinationUnavailableError,
    ErrorCode,
    KlammError,
    OffsetsTopicSettings,
    TopicPartition,
    plugin_host,
)

from .topic_config import TopicOffsetStoreConfig

Read = TypeVar("Read")
MAX_GAP_S: Final = 3600.0
"""Well below `delete.retention.ms`: after a longer gap compaction may have removed tombstones that the table has not
read."""
_NOT_CREATED: Final = {ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available}


class TopicOffsetStore:
    """Implements `OffsetStore` and `OffsetsTopicStore` of `klamm.core.interfaces.offsets`."""

    needs_coordination = False  # except once, for the brokers' addresses
    in_offsets_topic = True

    def __init__(
        self,
        config: TopicOffsetStoreConfig,
        coordination: Coordination,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._coordination = coordination
        self._now_ms = now_ms
        self._timeout_s = config.offsets_commit_timeout_ms / 1000
        self._lock = threading.Lock()
        self._client: ClusterClient | None = None
        self._tables: dict[int, _OffsetsTable] = {}
        self._appended: dict[int, int] = {}  # partition → the end of this store's last append that it has not read

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        if not offsets:
            return
        rows = commit_rows(group, offsets)
        with self._translating_errors():
            count = self._partitions() or self._create(group)
            # Not earlier: creating the topic changes the version of all topics, which may be a guard.
            self._check(guards)
            self._append(partition_for(group, count), rows)
        self._check(guards)

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        with self._translating_errors():
            count = self._partitions()
            if not count:
                return {}
            stored = self._read(partition_for(group, count), lambda held: dict(held.offsets.get(group, {})))
        return stored if partitions is None else {tp: stored[tp] for tp in partitions if tp in stored}

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        with self._translating_errors():
            count = self._partitions()
            if not count:
                return
            number = partition_for(group, count)
            stored = self._read(number, lambda held: dict(held.offsets.get(group, {})))
            has_state = self._read(number, lambda held: group in held.states)
            chosen = None if partitions is None else set(partitions)
            rows = deletion_rows(group, stored, chosen, seen, has_state=has_state)
            self._check(guards)
            if rows:
                self._append(number, rows)

    @property
    def offsets_topic(self) -> OffsetsTopicSettings:
        return self._config.settings

    def groups(self) -> list[str]:
        with self._translating_errors():
            count = self._partitions()
            return sorted(name for number in range(count) for name in self._read(number, lambda held: [*held.offsets]))

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    # -- the log

    def _append(self, partition: int, rows: Rows) -> None:
        batch = bytes(batch_of(rows, self._now_ms()))
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        stored = self._connected().produce({tp: batch}, timeout_s=self._timeout_s)[tp]
        with self._lock:
            self._appended[partition] = max(self._appended.get(partition, 0), stored.base_offset + len(rows))

    def _read(self, partition: int, read: Callable[[OffsetsContents], Read]) -> Read:
        """Reads a partition's table, at least up to the end of this store's last append. An end that was read once
        is not awaited again: the topic may be created again or lose its end, and then has no such offset."""
        with self._lock:
            end = self._appended.get(partition, 0)
        found = self._table(partition).read(end, read)
        with self._lock:
            if self._appended.get(partition) == end:
                del self._appended[partition]
        return found

    def _table(self, partition: int) -> _OffsetsTable:
        client = self._connected()
        with self._lock:
            table = self._tables.get(partition)
            if table is None:
                tp = TopicPartition(OFFSETS_TOPIC, partition)
                table = self._tables[partition] = _OffsetsTable(client, tp, self._timeout_s)
            return table

    def _partitions(self) -> int:
        """Returns the number of partitions; 0 while the topic does not exist."""
        client = self._connected()
        known = client.cluster.view.topics.get(OFFSETS_TOPIC)
        if known is None or known.error is not ErrorCode.none:
            known = client.metadata([OFFSETS_TOPIC], timeout_s=self._timeout_s).topics.get(OFFSETS_TOPIC)
        return len(known.partitions) if known is not None and known.error not in _NOT_CREATED else 0

    def _create(self, group: str) -> int:
        """Asks the brokers for the group's coordinator, for which they create the topic; returns its number of
        partitions."""
        client = self._connected()
        client.coordinator(group, timeout_s=self._timeout_s)
        return len(client.topic(OFFSETS_TOPIC, timeout_s=self._timeout_s).partitions)

    def _connected(self) -> ClusterClient:
        with self._lock:
            if self._client is None:
                brokers = read_image(self._coordination).brokers.values()
                addresses = ",".join(str(Address(broker.host, broker.port)) for broker in brokers)
                if not addresses:
                    raise CoordinationUnavailableError(
                        f"no broker is registered, so the offsets in {OFFSETS_TOPIC} cannot be reached"
                    )
                access = ClusterAccess(addresses, plugin_host().codec_table())
                self._client = open_client(access, "offsets", request_timeout_s=self._timeout_s)
            return self._client

    def _check(self, guards: Sequence[Check]) -> None:
        if guards:
            self._coordination.transaction(guards)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Translates broker failures to `CoordinationUnavailableError`."""
        try:
            yield
        except CoordinationError:
            raise
        except KlammError as error:
            if error.code in (ErrorCode.message_too_large, ErrorCode.corrupt_message):
                raise
            raise CoordinationUnavailableError(f"{OFFSETS_TOPIC}: {error}") from error


class _OffsetsTable:
    """One partition of `__consumer_offsets` as a table in memory. Thread-safe; one at a time reads the partition."""

    def __init__(self, client: ClusterClient, tp: TopicPartition, timeout_s: float) -> None:
        self._tp = tp
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._contents = OffsetsContents()
        self._table = TopicTable(client, self._contents, timeout_s=timeout_s, max_gap_s=MAX_GAP_S)

    def read(self, at_least: int, read: Callable[[OffsetsContents], Read]) -> Read:
        """Returns what `read` takes from the offsets and groups of the partition, which has caught up with its leader:
        with every commit that was acknowledged before, whichever broker or client made it, and with those below
        `at_least`, the end of the caller's own last append.
        """
        with self._lock:
            deadline_s = time.monotonic() + self._timeout_s
            self._table.catch_up([self._tp], {self._tp: at_least}, deadline_s=deadline_s)
            return read(self._contents)
