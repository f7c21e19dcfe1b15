"""The contract of `klamm.plugin.Audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from klamm.core.interfaces.audit import Audit, AuditIdentity, RangeCount, WindowCount
from klamm.core.records.partition import TopicPartition

__all__ = ["WINDOW_MS", "AuditContract", "AuditedWindow", "PublishedEvents"]

WINDOW_MS: Final = 600_000
"""The length of an audit window, unless configured."""
_FLIGHTS: Final = TopicPartition("flights", 0)


class AuditedWindow(NamedTuple):
    """The counts of one tier's events in one window of record time: counts of records, and bytes of the counted
    ones."""

    start_ms: int
    attempted: int
    records: int
    size: int


class PublishedEvents:
    """A `klamm.plugin.Publish` that keeps what is published, key and value, and acknowledges it at once."""

    def __init__(self) -> None:
        self.events: list[tuple[bytes, bytes]] = []

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        self.events.append((key, value))
        future: Future[None] = Future()
        future.set_result(None)
        return future


class AuditContract:
    """The suite of an audit. Define `make_audit` and `windows`."""

    def make_audit(self, **config: Any) -> Audit:
        """Returns an audit with these keys of its section: `topic`, `topics`, `window.minutes`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `make_audit(**config)` that returns an audit")

    def windows(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> Sequence[AuditedWindow]:
        """Returns the counts of these events of `topic`, in the order of the windows; repeated counts count once."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method `windows(topic, events)` that reads its events"
        )

    def identity(self, tier: str, owner: str) -> AuditIdentity:
        return AuditIdentity(tier, owner, "host", "application")

    def test_the_audit_topic_is_itself_not_audited(self) -> None:
        audit = self.make_audit(topic="counts")
        assert audit.topic == "counts"
        assert not audit.audits("counts")
        assert audit.audits("flights")
        assert not self.make_audit(topic="counts", topics=["counts", "flights"]).audits("counts")

    def test_only_configured_topics_are_audited(self) -> None:
        audit = self.make_audit(topics=["flights"])
        assert audit.audits("flights")
        assert not audit.audits("weather")
        assert not self.make_audit().audits("__consumer_offsets")
        assert not self.make_audit().audits("_schemas"), "nobody counts what goes into it"

    def test_windows_are_ten_minutes_unless_configured(self) -> None:
        assert self.make_audit().window_ms == WINDOW_MS
        assert self.make_audit(**{"window.minutes": 60}).window_ms == 3_600_000

    def test_the_mark_of_a_batch_names_host_application_and_producer(self) -> None:
        identity = AuditIdentity("producer", "departures-1", "here", "departures")
        headers: Mapping[str, bytes | None] = dict(self.make_audit().mark(identity, _FLIGHTS, ((5, 600, 9),)))
        assert {b"here", b"departures", b"departures-1"} <= set(headers.values())
        assert all(headers.values())

    def test_a_producers_counts_are_stored_when_flush_returns(self) -> None:
        topic = PublishedEvents()
        counts = self.make_audit().producer(self.identity("producer", "instance-1"), topic)
        counts.attempted("flights", 5, 10)
        counts.attempted("flights", 5, 10)
        counts.acknowledged("flights", 5, 10)
        counts.flush()
        assert list(self.windows("flights", topic.events)) == [AuditedWindow(0, 2, 1, 10)]
        counts.close()

    def test_a_range_is_counted_once_whatever_is_committed_when(self) -> None:
        topic = PublishedEvents()
        counts = self.make_audit().ranges(self.identity("consumer", "group"), topic)
        counts.start(_FLIGHTS, 3)
        counts.count(_FLIGHTS, [3, 4, 5, 8], [0, 1, WINDOW_MS, 2], [1, 2, 3, 4])
        for to in (4, 9):
            counts.publish({_FLIGHTS: to})
            counts.committed({_FLIGHTS: to})
        counts.stop([_FLIGHTS])
        counts.close()
        found = [(window.start_ms, window.records, window.size) for window in self.windows("flights", topic.events)]
        assert found == [(0, 3, 7), (WINDOW_MS, 1, 3)]

    def test_counts_made_elsewhere(self) -> None:
        topic = PublishedEvents()
        ranges = self.make_audit().ranges(self.identity("hadoop", "lake"), topic)
        ranges.publish_ranges([RangeCount(_FLIGHTS, 0, 9, (WindowCount(0, 9, 90),))])
        assert [(window.start_ms, window.records) for window in self.windows("flights", topic.events)] == [(0, 9)]
