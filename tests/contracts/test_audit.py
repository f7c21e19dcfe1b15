"""The contract of an audit system (`klamm.core.interfaces.audit`), run on every one that is shipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.core.interfaces.audit import Audit, AuditIdentity, RangeCount, WindowCount
from klamm.core.plugins import plugin_host
from klamm.plugins.audit.comparison.compare import tier_counts
from klamm.plugins.audit.comparison.tiers import Place
from klammtest.audits import FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, identity

Make = Callable[..., Audit]


@pytest.fixture(params=plugin_host().audits.names())
def make(request: pytest.FixtureRequest) -> Make:
    return lambda **config: plugin_host().audits.create(request.param, config)


def test_the_audit_topic_is_itself_not_audited(make: Make) -> None:
    audit = make(topic="counts")
    assert audit.topic == "counts"
    assert not audit.audits("counts")
    assert audit.audits("flights")
    assert not make(topic="counts", topics=["counts", "flights"]).audits("counts")


def test_only_configured_topics_are_audited(make: Make) -> None:
    audit = make(topics=["flights"])
    assert audit.audits("flights")
    assert not audit.audits("weather")
    assert not make().audits("__consumer_offsets")
    assert not make().audits("_schemas"), "nobody counts what goes into it"


def test_windows_are_ten_minutes_unless_configured(make: Make) -> None:
    assert make().window_ms == 600_000
    assert make(**{"window.minutes": 60}).window_ms == 3_600_000


def test_the_mark_of_a_batch_names_host_application_and_producer(make: Make) -> None:
    headers = dict(
        make().mark(AuditIdentity("producer", "departures-1", "here", "departures"), FLIGHTS, ((5, 600, 9),))
    )
    assert {b"here", b"departures", b"departures-1"} <= set(headers.values())
    assert all(headers.values())


def test_a_producers_counts_are_stored_when_flush_returns(make: Make) -> None:
    topic = AuditTopic()
    counts = make().producer(identity("producer"), topic)
    counts.attempted("flights", 5, 10)
    counts.attempted("flights", 5, 10)
    counts.acknowledged("flights", 5, 10)
    counts.flush()
    windows = [window for event in topic.events for window in event.windows]
    assert (sum(w.attempted for w in windows), sum(w.records for w in windows), sum(w.size for w in windows)) == (
        2,
        1,
        10,
    )
    counts.close()


def test_a_range_is_counted_once_whatever_is_committed_when(make: Make) -> None:
    topic = AuditTopic()
    counts = make().ranges(identity("consumer"), topic)
    counts.start(FLIGHTS, 3)
    counts.count(FLIGHTS, [3, 4, 5, 8], [0, 1, WINDOW_MS, 2], [1, 2, 3, 4])
    for to in (4, 9):
        counts.publish({FLIGHTS: to})
        counts.committed({FLIGHTS: to})
    counts.stop([FLIGHTS])
    counts.close()
    [found] = tier_counts("flights", topic.events, WINDOW_MS, 0).values()
    assert found.problems == []
    assert found.ends == {Place("", 0): 9}
    assert {start: (tally.records, tally.size) for start, tally in found.windows.items()} == {
        0: (3, 7),
        WINDOW_MS: (1, 3),
    }


def test_counts_made_elsewhere(make: Make) -> None:
    topic = AuditTopic()
    make().ranges(identity("hadoop", "lake"), topic).publish_ranges(
        [RangeCount(FLIGHTS, 0, 9, (WindowCount(0, 9, 90),))]
    )
    [found] = tier_counts("flights", topic.events, WINDOW_MS, 0).values()
    assert found.windows[0].records == 9


def test_a_broker_tells_no_watermark_that_was_not_computed(make: Make) -> None:
    service = make().broker(MemoryLogs())
    assert service.health() is None
    assert list(service.metrics()) == []
