"""The audit topic, read from its beginning to its end as of now; and where the audited logs end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient
from klamm.core.errors import BrokerError, ErrorCode, KlammError, SchemaError
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition

from .event import AuditEvent, decode_event
from .range_coverage import LogEnd, Place


@dataclass(frozen=True)
class AuditLog:
    """`events` in the order of each partition. `unreadable` names records that are no audit events: what they would
    have said is unknown."""

    events: tuple[AuditEvent, ...]
    unreadable: tuple[str, ...]


class AuditReader:
    """Reads the audit topic, and later on what has come since. It keeps the events that `keep` says."""

    def __init__(
        self, client: ClusterClient, topic: str, keep: Callable[[AuditEvent], bool] = lambda _event: True
    ) -> None:
        self._client = client
        self._topic = topic
        self._keep = keep
        self._positions: dict[TopicPartition, int] = {}
        self.events: list[AuditEvent] = []
        self.unreadable: list[str] = []

    def read(self) -> None:
        """Up to the end as of now; `KlammError` when the topic is not there or a partition cannot be read: the next
        call goes on behind what was read. A topic that ends before that was cut or created again: it is read again."""
        client, positions = self._client, self._positions
        partitions = client.partitions(self._topic)
        new = [partition for partition in partitions if partition not in positions]
        if new:
            starts = client.list_offsets(dict.fromkeys(new, EARLIEST))
            positions.update({partition: offset for partition, (offset, _) in starts.items()})
        ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
        if any(ends[partition][0] < positions[partition] for partition in partitions):
            self.events.clear()
            self.unreadable.clear()
            starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
            positions.update({partition: offset for partition, (offset, _) in starts.items()})
        for partition in partitions:
            end = ends[partition][0]
            for offset, stored_ms, value in _values(client, partition, positions[partition], end):
                try:
                    event = decode_event(value, stored_ms)
                except SchemaError as error:
                    self.unreadable.append(f"{partition} offset {offset}: {error}")
                else:
                    if self._keep(event):
                        self.events.append(event)
                positions[partition] = offset + 1
            positions[partition] = max(positions[partition], end)

    def log(self) -> AuditLog:
        return AuditLog(tuple(self.events), tuple(self.unreadable))


def read_audit_log(client: ClusterClient, topic: str) -> AuditLog:
    """`KlammError` when the topic is not there or a partition cannot be read."""
    reader = AuditReader(client, topic)
    reader.read()
    return reader.log()


def read_log_ends(client: ClusterClient, audits: Callable[[str], bool]) -> dict[str, dict[Place, LogEnd]]:
    """Of every partition of the topics that are audited, by topic. One that no broker serves is there too: nobody knows
    what its log holds."""
    topics = [topic for topic in client.metadata().topics.values() if audits(topic.name)]
    wanted = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    starts, _ = client.list_served_offsets(dict.fromkeys(wanted, EARLIEST))
    ends, _ = client.list_served_offsets(dict.fromkeys(starts, LATEST))
    found: dict[str, dict[Place, LogEnd]] = {}
    for topic in topics:
        topic_id = "" if topic.topic_id is None else str(topic.topic_id)
        found[topic.name] = {}
        for number in topic.partitions:
            partition = TopicPartition(topic.name, number)
            log = LogEnd(starts.get(partition, -1), ends.get(partition, -1))
            found[topic.name][Place(topic_id, number)] = log
    return found


def _values(client: ClusterClient, partition: TopicPartition, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(offset, timestamp, value) of each record."""
    position = start
    while position < end:
        data = _fetch(client, partition, position)
        before = position
        for at, header in iter_headers(data):
            if header.next_offset <= position:
                continue
            if not header.is_control:
                columns = decode_columns(data, at, header, client.codecs, partition=partition)
                for offset, stamp, value in zip(columns.offsets, columns.timestamps_ms, columns.values, strict=True):
                    if position <= offset < end:
                        yield offset, stamp, value or b""
            position = header.next_offset
        if position == before:
            raise KlammError(f"{partition}: nothing can be read at offset {position}, the end is {end}")


def _fetch(client: ClusterClient, partition: TopicPartition, offset: int) -> bytes:
    [node_id] = client.by_leader([partition])
    fetched = client.fetch(node_id, {partition: offset}, max_wait_ms=0, partition_max_bytes=4 * 1024 * 1024)[partition]
    if fetched.error != ErrorCode.none:
        raise BrokerError(fetched.error, f"reading {partition} at offset {offset}")
    return fetched.records
