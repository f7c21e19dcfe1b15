"""The `topic` offset store: commits are records of the compacted topic `__consumer_offsets`, in Kafka's format.

Rules. A commit is one batch, to the partition that the group's hash says, acknowledged by all in-sync replicas: whole
or not at all. The store speaks to the brokers as any client does, in a broker's process too; their addresses come from
the coordination. The first commit makes the topic. A fetch reads what was appended since the last one (`OffsetsTable`).
Who the members of classic groups are is kept in the same partitions, as in Kafka.

Guards are paths of the coordination, and no transaction spans it and a log. They are checked right before the append
and, once it is stored, again: a commit whose guard had gone meanwhile is refused to its caller though it was stored.
What a lost owner had processed by then is all it can store, so the next owner may read records twice, never miss one.
A deletion looks at its guards, and at what is stored now, right before it appends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.cluster.image_reader import read_image
from klamm.core.errors import CoordinationError, ErrorCode, KlammError
from klamm.core.interfaces.coordination import Check, Coordination, CoordinationUnavailableError
from klamm.core.interfaces.offsets import CommittedOffset, StoredGroup
from klamm.core.plugins import plugin_host
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

from .kafka_format import GroupKey, OffsetKey, encode_key, encode_value, partition_for
from .kafka_groups import encode_group
from .offsets_table import OffsetsTable
from .topic_config import TopicOffsetStoreConfig

OFFSETS_TOPIC: Final = "__consumer_offsets"
_PATIENCE: Final = {ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available}


class TopicOffsetStore:
    """See the seam, `klamm.core.interfaces.offsets.OffsetStore`, `GroupStore` and `PartitionedStore`."""

    needs_coordination = False  # but for the brokers' addresses, once
    topic = OFFSETS_TOPIC

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
        self._tables: dict[int, OffsetsTable] = {}
        self._appended: dict[int, int] = {}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        if not offsets:
            return
        for tp, value in offsets.items():
            if not -(2**63) <= value.offset < 2**63:
                raise CoordinationError(f"{tp}: offset {value.offset} is no offset: it should have 64 bits")
        with self._reaching():
            count = self._partitions() or self._create()
            self._check(guards)  # not before: one of them may be the version of all topics
            rows = [(encode_key(OffsetKey(group, tp)), encode_value(value)) for tp, value in offsets.items()]
            self._append(partition_for(group, count), rows)
        self._check(guards)

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        with self._reaching():
            count = self._partitions()
            if not count:
                return {}
            stored = self._table(partition_for(group, count)).offsets(group, self._end(group, count))
        return stored if partitions is None else {tp: stored[tp] for tp in partitions if tp in stored}

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        with self._reaching():
            count = self._partitions()
            if not count:
                return
            number = partition_for(group, count)
            table, end = self._table(number), self._appended.get(number, 0)
            stored = table.offsets(group, end)
            doomed = set(stored if partitions is None else partitions) & stored.keys()
            if seen is not None:
                doomed = {tp for tp in doomed if stored[tp] == seen.get(tp)}
            gone = [encode_key(OffsetKey(group, tp)) for tp in sorted(doomed)]
            if partitions is None and doomed == stored.keys() and group in table.states(end):
                gone.append(encode_key(GroupKey(group)))
            self._check(guards)
            if gone:
                self._append(number, [(key, None) for key in gone])

    def partition_of(self, group: str, partitions: int) -> int:
        return partition_for(group, partitions)

    def save_group(self, group: str, state: StoredGroup) -> None:
        with self._reaching():
            count = self._partitions() or self._create()
            self._append(partition_for(group, count), [(encode_key(GroupKey(group)), encode_group(state))])

    def load_groups(self) -> dict[str, StoredGroup]:
        found: dict[str, StoredGroup] = {}
        with self._reaching():
            for number in range(self._partitions()):
                found.update(self._table(number).states(self._appended.get(number, 0)))
        return found

    def groups(self) -> list[str]:
        with self._reaching():
            count = self._partitions()
            return sorted(name for p in range(count) for name in self._table(p).groups(self._appended.get(p, 0)))

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    # -- the log

    def _append(self, partition: int, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        now_ms = self._now_ms()
        batch = encode_batch([(now_ms, name, value, ()) for name, value in rows])
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        stored = self._connected().produce({tp: batch}, timeout_s=self._timeout_s)[tp]
        with self._lock:
            self._appended[partition] = max(self._appended.get(partition, 0), stored.base_offset + len(rows))

    def _end(self, group: str, count: int) -> int:
        """Where what this store appended for the group ended: a fetch sees that much at least."""
        return self._appended.get(partition_for(group, count), 0)

    def _table(self, partition: int) -> OffsetsTable:
        client = self._connected()
        with self._lock:
            table = self._tables.get(partition)
            if table is None:
                tp = TopicPartition(OFFSETS_TOPIC, partition)
                table = self._tables[partition] = OffsetsTable(client, tp, self._timeout_s)
            return table

    def _partitions(self) -> int:
        """0 while there is no topic."""
        client = self._connected()
        known = client.cluster.view.topics.get(OFFSETS_TOPIC)
        if known is None or known.error is not ErrorCode.none:
            known = client.metadata([OFFSETS_TOPIC], timeout_s=self._timeout_s).topics.get(OFFSETS_TOPIC)
        return len(known.partitions) if known is not None and known.error not in _PATIENCE else 0

    def _create(self) -> int:
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._config.offsets_topic_segment_bytes),
        }
        topic = NewTopic(self._config.offsets_topic_num_partitions, 1, configs)
        client = self._connected()
        client.create_topics({OFFSETS_TOPIC: topic}, exists_ok=True, timeout_s=self._timeout_s)
        return len(client.topic(OFFSETS_TOPIC, timeout_s=self._timeout_s).partitions)

    def _connected(self) -> ClusterClient:
        with self._lock:
            if self._client is None:
                brokers = read_image(self._coordination).brokers.values()
                addresses = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
                if not addresses:
                    raise CoordinationUnavailableError(
                        f"no broker is registered, and offsets are kept in {OFFSETS_TOPIC}"
                    )
                codecs = plugin_host().codec_table()
                self._client = ClusterClient(
                    addresses, codecs=codecs, client_id="klamm-offsets", request_timeout_s=self._timeout_s
                )
            return self._client

    def _check(self, guards: Sequence[Check]) -> None:
        if guards:
            self._coordination.transaction(guards)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """What is wrong with the brokers is, to the caller, a store that is away."""
        try:
            yield
        except CoordinationError:
            raise
        except KlammError as error:
            if error.code in (ErrorCode.message_too_large, ErrorCode.corrupt_message):
                raise
            raise CoordinationUnavailableError(f"{OFFSETS_TOPIC}: {error}") from error
