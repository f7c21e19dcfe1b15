"""The audit topic, followed: each record is read once, and what was created again is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.core.client.cluster_client import EARLIEST
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.reader import AuditReader
from klammtest.audits import CODECS, event


class StoredTopic:
    """As much of `ClusterClient` as the reader uses; two partitions of one batch for each event."""

    codecs = CODECS

    def __init__(self) -> None:
        self.batches: dict[int, list[AuditEvent]] = {0: [], 1: []}
        self.fetched: list[tuple[int, int]] = []
        self.away: set[int] = set()

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self.batches]

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        return {p: (0 if at == EARLIEST else len(self.batches[p.partition]), -1) for p, at in wanted.items()}

    def by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {0: list(partitions)}

    def fetch(self, node_id: int, offsets: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, Any]:
        [(partition, offset)] = offsets.items()
        if partition.partition in self.away:
            raise KlammError("away")
        self.fetched.append((partition.partition, offset))
        stored = self.batches[partition.partition][offset]
        batch = encode_batch([(0, *stored.encode(), ())], base_offset=offset)
        return {partition: SimpleNamespace(error=ErrorCode.none, records=bytes(batch))}


def told(number: int) -> AuditEvent:
    return event("producer", "p", number, number + 1, {0: 1})


def numbers(reader: AuditReader) -> list[int]:
    return [each.from_offset for each in reader.events]


def test_each_record_is_read_once() -> None:
    topic: Any = StoredTopic()
    reader = AuditReader(topic, "counts")
    topic.batches[0] = [told(0), told(1)]
    reader.read()
    reader.read()
    topic.batches[0].append(told(2))
    topic.batches[1] = [told(3)]
    reader.read()
    assert numbers(reader) == [0, 1, 2, 3]
    assert topic.fetched == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_what_was_read_before_a_failure_is_not_read_again() -> None:
    topic: Any = StoredTopic()
    reader = AuditReader(topic, "counts")
    topic.batches = {0: [told(0)], 1: [told(1)]}
    topic.away = {1}
    with pytest.raises(KlammError, match="away"):
        reader.read()
    topic.away = set()
    reader.read()
    assert numbers(reader) == [0, 1]


def test_a_topic_that_ends_before_what_was_read_is_read_again() -> None:
    topic: Any = StoredTopic()
    reader = AuditReader(topic, "counts")
    topic.batches[0] = [told(0), told(1)]
    reader.read()
    topic.batches[0] = [told(7)]
    reader.read()
    assert numbers(reader) == [7]
