"""Reads the audit topic, and mirrors of those of other clusters, from the beginning to the present end, and the ends of
the audited logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from klamm import ClusterClient
from klamm.core.client.cluster_client import EARLIEST, LATEST
from klamm.core.client.reader.topic_table import TopicTable
from klamm.errors import UnknownTopicError
from klamm.plugin import KlammError, SchemaError, TopicPartition

from .comparison.tiers import LogEnd, Place
from .counting.broker_tier import GROUP as BROKER_GROUP
from .event import BROKER, AuditEvent, decode_event

TIMEOUT_S: Final = 30.0
"""Seconds that a partition of the audit topic may return nothing before `read` fails."""


class AuditReader:
    """Keeps the events of the audit topic; each `read` adds those stored since. `keep` returns True for events to be
    kept, and `max_events` is their maximum number in a topic (None: no limit). `mirrored`: mirrors of other clusters'
    audit topics, which are read too.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        keep: Callable[[AuditEvent], bool] = lambda _event: True,
        max_events: int | None = None,
        *,
        mirrored: Iterable[str] = (),
    ) -> None:
        self._client = client
        self._mirrored = frozenset(mirrored)
        self._kept = {each: _Events(each, keep, max_events) for each in (topic, *sorted(self._mirrored))}
        self._tables = {each: TopicTable(client, kept, timeout_s=TIMEOUT_S) for each, kept in self._kept.items()}

    @property
    def events(self) -> list[AuditEvent]:
        return list(chain.from_iterable(kept.events for kept in self._kept.values()))

    @property
    def unreadable(self) -> list[str]:
        return list(chain.from_iterable(kept.unreadable for kept in self._kept.values()))

    def read(self, deadline_s: float | None = None) -> None:
        """Reads up to the present end. Raises `KlammError` if the topic does not exist or a partition cannot be read
        by `deadline_s` (monotonic clock); the next call continues after what was read. A topic that was cut or
        created again is read from its beginning. A mirror that does not exist yet has no events: without those of the
        source's producers and broker, nothing that is mirrored is complete.
        """
        for topic, table in self._tables.items():
            table.catch_up(self._partitions(topic), deadline_s=deadline_s)

    def retained_ms(self, now_ms: int, retention_ms: int) -> float:
        """Returns when the audit topic stored its first remaining event, in ms since the epoch: earlier events were
        deleted; -inf if none was. Of a partition without a remaining event it is only known that its events are
        older than the retention."""
        first = {partition: stored for kept in self._kept.values() for partition, stored in kept.first.items()}
        others = [p for topic in self._kept for p in self._partitions(topic) if p not in first]
        starts = self._client.list_offsets(dict.fromkeys(others, EARLIEST)) if others else {}
        oldest = float(now_ms - max(retention_ms, 0))
        stored = [oldest for start, *_ in starts.values() if start > 0]
        return max([*stored, *(float(at_ms) for offset, at_ms in first.values() if offset > 0)], default=-math.inf)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        try:
            return self._client.partitions(topic)
        except UnknownTopicError:
            if topic in self._mirrored:
                return []
            raise


class _Events:
    """`klamm.core.client.reader.topic_table.TableContents`."""

    def __init__(self, topic: str, keep: Callable[[AuditEvent], bool], max_events: int | None) -> None:
        self._topic = topic
        self._keep = keep
        self._max_events = max_events
        self.events: list[AuditEvent] = []
        self.unreadable: list[str] = []
        self.first: dict[TopicPartition, tuple[int, int]] = {}
        """Offset and timestamp in ms of the first record read of each partition."""

    def clear(self) -> None:
        self.events, self.unreadable, self.first = [], [], {}

    def apply(
        self,
        partition: TopicPartition,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,  # noqa: ARG002 - the event says it too
        value: bytes | None,
    ) -> None:
        self.first.setdefault(partition, (offset, timestamp_ms))
        try:
            event = decode_event(value or b"", timestamp_ms)
        except SchemaError as error:
            self.unreadable.append(f"{partition} offset {offset}: {error}")
            return
        if not self._keep(event):
            return
        if self._max_events is not None and len(self.events) >= self._max_events:
            raise KlammError(
                f"{self._topic} has more than {self._max_events:,} events; choose topics with --topic, or raise "
                "--max-events (about 1 KB of memory each)"
            )
        self.events.append(event)


def with_counted(client: ClusterClient, logs: Mapping[str, Mapping[Place, LogEnd]]) -> dict[str, dict[Place, LogEnd]]:
    """Returns the same logs with the offsets that the broker tier has committed, for which it has published events."""
    counted = {
        (partition.topic, Place("" if stored.topic_id is None else str(stored.topic_id), partition.partition)): stored
        for partition, stored in client.fetch_offsets(BROKER_GROUP).items()
    }
    return {
        topic: {
            place: log._replace(counted=stored.offset) if (stored := counted.get((topic, place))) else log
            for place, log in ends.items()
        }
        for topic, ends in logs.items()
    }


def with_kept(
    client: ClusterClient, logs: Mapping[str, Mapping[Place, LogEnd]], events: Iterable[AuditEvent], timeout_s: float
) -> dict[str, dict[Place, LogEnd]]:
    """Returns the same logs with the part of the newest leader epoch counted by the broker tier that they still have
    (KIP-320). A partition whose leader does not answer does not change."""
    epochs: dict[tuple[str, Place], int] = {}
    for event in events:
        if event.tier == BROKER and event.partition is not None:
            key = (event.topic, Place(event.topic_id, event.partition))
            epochs[key] = max(epochs.get(key, -1), event.epoch)
    asked = {
        TopicPartition(topic, place.partition): epoch
        for (topic, place), epoch in epochs.items()
        if epoch >= 0 and (log := logs.get(topic, {}).get(place)) is not None and log.end >= 0
    }
    found, _ = client.try_leader_epoch_ends(asked, timeout_s=timeout_s) if asked else ({}, {})
    return {
        topic: {
            place: log._replace(kept=end.end_offset)
            if (topic, place) in epochs and (end := found.get(TopicPartition(topic, place.partition))) is not None
            else log
            for place, log in ends.items()
        }
        for topic, ends in logs.items()
    }


def read_log_ends(client: ClusterClient, audits: Callable[[str], bool]) -> dict[str, dict[Place, LogEnd]]:
    """Returns the beginning and end of every partition of the audited topics, by topic. A partition that no broker
    serves is included with unknown bounds.
    """
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
