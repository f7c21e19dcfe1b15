"""The hadoop tier of the audit: `_audit.json` in each load, and its event, sent after publishing (design D10, D11).

A load whose event was not stored has no marker in `_audited`; the next run sends the event again. That is harmless:
for one (tier, owner, topic, topic id, partition, from) only one event counts. A marker names the sink, the lake and
the job that wrote the load: the number of a load that was removed by hand is used again for another load, and the
events of all loads are sent again for a directory that was moved, copied or given to another sink (rules R6 and R9
of docs/audit.md). A lake is announced before its first load is published, so that an older lake's counts are never
taken for its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import BaseModel, Field

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.event_publisher import EventPublisher
from klamm.core.interfaces.audit import Audit, AuditIdentity, LoadOrigin, RangeAudit, RangeCount, WindowCount
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.windows import clock_ms

from ..lake.config import LOCAL_SCHEMES, file_path
from ..lake.layout import AUDIT, TopicLayout
from ..lake.manifest import LakeOrigin, last_manifest, load_numbers, parse
from ..publishing.interface import LakeError, LakeReader, Publisher

TIER = "hadoop"
Connect = Callable[[], AbstractContextManager[ClusterClient]]


class _Counted(BaseModel, frozen=True, validate_by_name=True):
    """Offsets [from, to) of one partition, and `windows` of (start in ms, records, bytes). `lost`: deleted before they
    could be loaded, so that the load has none of their records."""

    partition: int
    start: int = Field(validation_alias="from", serialization_alias="from")
    end: int = Field(validation_alias="to", serialization_alias="to")
    windows: list[tuple[int, int, int]]
    lost: bool = False


class LoadAudit(BaseModel, frozen=True):
    """The content of `_audit.json`: counts of a load, made from its files. `owner` is the sink's name."""

    version: int = 1
    tier: str = TIER
    owner: str
    topic: str
    load: int
    job_id: str
    topic_id: UUID | None = None
    window_ms: int
    watermark_ms: int | None = None
    """The instant (ms since the epoch) up to which each tier of the audit was complete when the load was written, this
    load included; null where no window was complete, without an audit, or when it could not be computed.
    """
    ranges: list[_Counted]

    @classmethod
    def of(
        cls,
        owner: str,
        topic: tuple[str, UUID | None],
        load: int,
        job_id: str,
        window_ms: int,
        counts: Iterable[RangeCount],
        lost: Iterable[RangeCount] = (),
    ) -> LoadAudit:
        """Returns the counts of a load. `topic`: its name and id."""
        ranges = [
            _Counted(
                partition=c.partition.partition,
                start=c.from_offset,
                end=c.to_offset,
                windows=[(w.start_ms, w.count, w.bytes) for w in c.windows],
                lost=gone,
            )
            for gone, part in ((True, lost), (False, counts))
            for c in part
        ]
        name, topic_id = topic
        return cls(
            owner=owner, topic=name, topic_id=topic_id, load=load, job_id=job_id, window_ms=window_ms, ranges=ranges
        )

    def counts(self, lake: LakeOrigin) -> list[RangeCount]:
        """Returns the ranges with offsets, as of a load of this lake."""
        origin = load_origin(self.load, self.job_id, lake)
        return [
            RangeCount(
                TopicPartition(self.topic, r.partition),
                r.start,
                r.end,
                tuple(WindowCount(*w) for w in r.windows),
                self.topic_id,
                origin,
            )
            for r in self.ranges
            if r.start != r.end
        ]

    def to_bytes(self) -> bytes:
        return (self.model_dump_json(by_alias=True) + "\n").encode()


@runtime_checkable
class Watermarks(Protocol):
    """An audit system that computes completeness."""

    def watermark_ms(
        self, client: ClusterClient, topic: str, identity: AuditIdentity, ranges: Iterable[RangeCount]
    ) -> int | None:
        """Returns the instant (ms since the epoch) up to which each tier of a topic is complete, assuming that `ranges`
        are stored too as events of `identity`; None if no window is complete.
        """
        ...


class LoadAuditor:
    """Sends the events of published loads. `owner` names the job: ranges tile across its loads."""

    def __init__(
        self, audit: Audit, owner: str, connect: Connect, publisher: Publisher, *, watermarks: bool = True
    ) -> None:
        """`watermarks`: watermarks are computed, for which the whole audit topic is read."""
        self._audit = audit
        self._watermarks = watermarks
        self._connect = connect
        self._publisher = publisher
        self._identity = AuditIdentity(TIER, owner, socket.gethostname(), "klamm-load")

    def audits(self, topic: str) -> bool:
        return self._audit.audits(topic)

    def watermark_ms(self, load: LoadAudit, lake: LakeOrigin) -> int | None:
        """Returns the value of `LoadAudit.watermark_ms`; raises `KlammError` when the audit cannot be read."""
        if not self._watermarks or not self.audits(load.topic) or not isinstance(self._audit, Watermarks):
            return None
        with self._connect() as client:
            return self._audit.watermark_ms(client, load.topic, self._identity, load.counts(lake))

    def announce(self, topic: str, topic_id: UUID | None, partition: int, lake: LakeOrigin) -> None:
        """Publishes that the owner's next loads are of this lake, by an event without offsets."""
        if self.audits(topic):
            origin = load_origin(0, "", lake)
            with self._events() as events:
                events.publish_ranges([RangeCount(TopicPartition(topic, partition), 0, 0, (), topic_id, origin)])

    def send_missing(self, layout: TopicLayout) -> list[int]:
        """Sends the events of every load that has no marker of its own; returns the numbers of those loads. A directory
        that was moved or copied sends none before its next load, which gives it an id.
        """
        numbers = load_numbers(self._publisher, layout) if self.audits(layout.topic) else []
        last = last_manifest(self._publisher, layout) if numbers else None
        if last is None or last.lake.directory != layout.base:
            return []
        done = set(self._publisher.names(layout.audited_root))
        unmarked = {n for n in numbers if f"{n:06d}" not in done}
        marked = [n for n in numbers if n not in unmarked]
        missing = sorted(unmarked.union(self._of_others(layout, marked, last.lake)))
        if missing:
            self._send(layout, missing, last.lake)
        return missing

    def _marker(self, load: LoadAudit, lake: LakeOrigin) -> bytes:
        return f"{self._identity.owner} {lake.id} {load.job_id}".encode()

    def _of_others(self, layout: TopicLayout, numbers: list[int], lake: LakeOrigin) -> Iterator[int]:
        """Yields the loads whose marker is that of another load, lake or sink, from the last one down to the first
        correct marker.

        Numbers are allocated and reported in ascending order, so all markers below it are correct.
        """
        for number in reversed(numbers):
            marker = self._publisher.read(layout.audited(number))
            if marker == self._marker(read_audit(self._publisher, layout, number), lake):
                return
            yield number

    def _send(self, layout: TopicLayout, numbers: list[int], lake: LakeOrigin) -> None:
        with self._events() as events:
            for number in numbers:
                load = read_audit(self._publisher, layout, number)
                events.publish_ranges(load.counts(lake))
                self._publisher.make(layout.audited_root)
                self._publisher.write(layout.audited(number), self._marker(load, lake))

    @contextmanager
    def _events(self) -> Iterator[RangeAudit]:
        with self._connect() as client:
            ranges = self._audit.ranges(self._identity, EventPublisher(client, self._audit.topic, clock_ms))
            try:
                yield ranges
            finally:
                ranges.close()


def load_origin(number: int, job: str, lake: LakeOrigin) -> LoadOrigin:
    """Returns the origin of a load. A local directory is named with this host: the same path on another host is another
    directory, whose lake does not replace this one (R6)."""
    directory = lake.directory
    if urlsplit(directory).scheme in LOCAL_SCHEMES:
        directory = f"file://{socket.gethostname()}{file_path(directory)}"
    return LoadOrigin(number, job, lake.id, directory, lake.replaces)


def read_audit(reader: LakeReader, layout: TopicLayout, number: int) -> LoadAudit:
    """Returns a published load's counts; raises `LakeError` if they are missing or unreadable."""
    path = f"{layout.load(number)}/{AUDIT}"
    data = reader.read(path)
    if data is None:
        raise LakeError(f"{path} is missing")
    return parse(LoadAudit, data, f"{path} cannot be read")
