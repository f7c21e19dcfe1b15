"""The audit topic, read from its beginning to its end as of now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient
from klamm.core.errors import BrokerError, ErrorCode, KlammError, SchemaError
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.event import AuditEvent, decode_event


@dataclass(frozen=True)
class AuditLog:
    """`events` in the order of each partition. `unreadable` names records that are no audit events: what they would
    have said is unknown."""

    events: tuple[AuditEvent, ...]
    unreadable: tuple[str, ...]


def read_audit_log(client: ClusterClient, topic: str) -> AuditLog:
    """`KlammError` when the topic is not there or a partition cannot be read."""
    partitions = client.partitions(topic)
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
    events: list[AuditEvent] = []
    unreadable: list[str] = []
    for partition in partitions:
        for offset, stored_ms, value in _values(client, partition, starts[partition][0], ends[partition][0]):
            try:
                events.append(decode_event(value, stored_ms))
            except SchemaError as error:
                unreadable.append(f"{partition} offset {offset}: {error}")
    return AuditLog(tuple(events), tuple(unreadable))


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
