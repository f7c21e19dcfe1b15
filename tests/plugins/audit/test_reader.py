"""The audit topic, followed: each record is read once, and what was created again is read again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from klamm.core.client.errors import UnknownTopicError, unknown_topic
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.reader import AuditReader
from klammtest.audits import CODECS, event
from klammtest.stored_topic import StoredTopic


def audit_topic() -> Any:
    """An audit topic of two partitions."""
    return StoredTopic("counts", 2, CODECS)


def store(topic: Any, number: int, *events: AuditEvent) -> None:
    """One batch for each."""
    for one in events:
        topic.logs[number].append((0, *one.encode(), ()))


def told(number: int) -> AuditEvent:
    return event("producer", "p", number, number + 1, {0: 1})


def numbers(reader: AuditReader) -> list[int]:
    return [each.from_offset for each in reader.events]


def test_each_record_is_read_once() -> None:
    topic = audit_topic()
    reader = AuditReader(topic, "counts")
    store(topic, 0, told(0), told(1))
    reader.read()
    reader.read()
    store(topic, 0, told(2))
    store(topic, 1, told(3))
    reader.read()
    assert numbers(reader) == [0, 1, 2, 3]
    assert topic.fetched == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_what_was_read_before_a_failure_is_not_read_again() -> None:
    topic = audit_topic()
    reader = AuditReader(topic, "counts")
    store(topic, 0, told(0))
    store(topic, 1, told(1))
    topic.mishaps = [ErrorCode.none, KlammError("away")]
    with pytest.raises(KlammError, match="away"):
        reader.read()
    reader.read()
    assert numbers(reader) == [0, 1]


def test_a_topic_that_ends_before_what_was_read_is_read_again() -> None:
    topic = audit_topic()
    reader = AuditReader(topic, "counts")
    store(topic, 0, told(0), told(1))
    reader.read()
    topic.logs[0].cut(2)
    store(topic, 0, told(7))
    reader.read()
    assert numbers(reader) == [7]


def test_an_audit_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    topic = audit_topic()
    reader = AuditReader(topic, "counts", max_events=3)
    store(topic, 0, told(0), told(1))
    reader.read()
    topic.create_again()
    store(topic, 0, told(5), told(6), told(7))
    reader.read()
    assert numbers(reader) == [5, 6, 7]


def test_memory_is_bounded_by_the_number_of_events_kept() -> None:
    topic = audit_topic()
    reader = AuditReader(topic, "counts", lambda one: one.from_offset > 0, max_events=2)
    store(topic, 0, told(0), told(1), told(2))
    reader.read()
    store(topic, 1, told(3))
    with pytest.raises(KlammError, match="counts has more than 2 events; choose topics with --topic"):
        reader.read()
    assert numbers(reader) == [1, 2]


def test_the_first_event_that_is_left_is_known_where_older_ones_were_deleted() -> None:
    topic = audit_topic()
    for number, stamps in enumerate(((10, 20, 30), (15,))):
        for stamp in stamps:
            topic.logs[number].append((stamp, *told(0).encode(), ()))
    reader = AuditReader(topic, "counts")
    reader.read()
    assert reader.retained_ms(100, -1) == -math.inf
    topic.logs[0].start, topic.logs[0].batches = 2, topic.logs[0].batches[2:]
    reader = AuditReader(topic, "counts")
    reader.read()
    assert reader.retained_ms(100, -1) == 30
    topic.logs[1].start, topic.logs[1].batches = 1, []
    reader = AuditReader(topic, "counts")
    reader.read()
    assert reader.retained_ms(100, 40) == 60  # its events are older than the retention


def test_a_mirror_that_does_not_exist_yet_has_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = audit_topic()
    partitions = topic.partitions

    def of_own(name: str) -> list[TopicPartition]:
        if name != "counts":
            raise unknown_topic(name, ())
        found: list[TopicPartition] = partitions(name)
        return found

    monkeypatch.setattr(topic, "partitions", of_own)
    store(topic, 0, told(0))
    reader = AuditReader(topic, "counts", mirrored=["live.counts"])
    reader.read()
    assert (numbers(reader), reader.retained_ms(1000, 100)) == ([0], -math.inf)
    with pytest.raises(UnknownTopicError, match="there is no topic 'other'"):
        AuditReader(topic, "other", mirrored=["counts"]).read()
