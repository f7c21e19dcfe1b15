from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress

import pytest

from klamm.core.client.producer.producer import Producer
from klamm.core.errors import ConfigError, DeliveryError
from klamm.plugins.audit.comparison.compare import compare
from klamm.plugins.audit.comparison.rules import last_of_each
from klamm.plugins.audit.counting import producer
from klamm.plugins.audit.counting.producer import KlammProducerAudit
from klamm.plugins.audit.event import AuditEvent, EventWindow
from klammtest.audits import WINDOW_MS, AuditTopic, identity


def auditor(topic: AuditTopic, interval_s: float = 3600.0, owner: str = "p") -> KlammProducerAudit:
    return KlammProducerAudit(
        identity("producer", owner), topic, window_ms=WINDOW_MS, interval_s=interval_s, clock_ms=lambda: 1
    )


def total(events: list[AuditEvent]) -> dict[int, tuple[int, int]]:
    """(attempted, acknowledged) by window, of the last event of each key."""
    found: dict[int, tuple[int, int]] = {}
    for event in last_of_each(events).values():
        for window in event.windows:
            attempted, acknowledged = found.get(window.start_ms, (0, 0))
            found[window.start_ms] = (attempted + window.attempted, acknowledged + window.records)
    return found


def test_attempted_and_acknowledged_are_counted_apart() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    for n in range(5):
        counts.attempted("flights", n * 300_000, 10)
    for n in range(3):
        counts.acknowledged("flights", n * 300_000, 10)
    counts.close()
    assert total(topic.events) == {0: (2, 2), WINDOW_MS: (2, 1), 2 * WINDOW_MS: (1, 0)}
    assert sum(window.size for event in topic.events for window in event.windows) == 30
    assert sum(window.attempted_size for event in topic.events for window in event.windows) == 50


def test_events_are_numbered_without_a_hole_and_only_the_last_is_final() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    for _ in range(4):
        counts.attempted("flights", 0, 1)
        counts.flush()
    counts.close()
    counts.close()
    numbers = [event.from_offset for event in topic.events]
    assert numbers == list(range(len(numbers)))
    assert [event.final for event in topic.events] == [False] * (len(numbers) - 1) + [True]


def test_what_could_not_be_stored_goes_again_under_the_same_number() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.attempted("flights", 0, 1)
    counts.flush()
    first = topic.events[-1].from_offset
    topic.fail, topic.store_failed = 1, True  # stored, but the answer was lost: nobody knows
    counts.acknowledged("flights", 0, 1)
    with suppress(DeliveryError):  # which the auditor's own thread may have met before
        counts.flush()
    assert counts.failures == 1
    counts.acknowledged("flights", 0, 1)
    counts.close()
    assert [event.from_offset for event in topic.events if event.from_offset > first][:2] == [first + 1, first + 1]
    assert total(topic.events)[0] == (1, 2)


def test_a_publisher_that_refuses_at_once_loses_no_count() -> None:
    refusals = [RuntimeError("the producer is closed")]
    topic = AuditTopic()

    def publish(key: bytes, value: bytes) -> Future[None]:
        if refusals:
            raise refusals.pop()
        return topic(key, value)

    counts = KlammProducerAudit(identity("producer"), publish, window_ms=WINDOW_MS, interval_s=3600, clock_ms=lambda: 1)
    counts.acknowledged("flights", 0, 1)
    with pytest.raises(DeliveryError, match="closed"):
        counts.flush()
    counts.close()
    assert total(topic.events) == {0: (0, 1)}


def test_a_producer_says_that_it_is_there_and_that_it_lives() -> None:
    """The first event needs no flush, and without news the next comes after the interval."""
    told = threading.Semaphore(0)
    topic = AuditTopic()

    def publish(key: bytes, value: bytes) -> Future[None]:
        future = topic(key, value)
        told.release()
        return future

    counts = KlammProducerAudit(identity("producer"), publish, window_ms=WINDOW_MS, interval_s=0.01, clock_ms=lambda: 1)
    counts.attempted("flights", 0, 1)
    for _ in range(3):
        assert told.acquire(timeout=60)
    counts.close()
    assert total(topic.events) == {0: (1, 0)}
    assert not topic.events[0].final
    assert topic.events[0].interval_ms == 10


def test_many_windows_go_out_in_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "MAX_WINDOWS", 4)
    topic = AuditTopic()
    counts = auditor(topic)
    for n in range(10):
        counts.acknowledged("flights", n * WINDOW_MS, 1)
    counts.close()
    assert [len(event.windows) for event in topic.events] == [4, 4, 2]
    assert [event.final for event in topic.events] == [False, False, True]
    assert total(topic.events) == {n * WINDOW_MS: (0, 1) for n in range(10)}


def test_threads_lose_no_count() -> None:
    topic = AuditTopic()
    counts = auditor(topic, interval_s=0.001)
    each, threads = 20_000, 4

    def work() -> None:
        for n in range(each):
            counts.attempted("flights", n, 1)
            counts.acknowledged("flights", n, 1)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counts.close()
    assert total(topic.events) == {0: (each * threads, each * threads)}


def test_records_without_a_timestamp_are_counted() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.acknowledged("flights", -1, 7)
    counts.close()
    assert topic.events[-1].windows == (EventWindow(-1, 1, 7, 0, 0),)


def test_an_event_stored_late_does_not_end_the_quiet_state_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer becomes quiet while the event that ended the previous quiet state is found stored."""
    monkeypatch.setattr(KlammProducerAudit, "_run", lambda self: None)
    topic = AuditTopic()
    counts = auditor(topic)
    counts.attempted("flights", 0, 1)
    counts.acknowledged("flights", 0, 1)
    counts.flush()
    late = topic.events[-1]
    counts._topics["flights"].resumed_by = late
    becoming_quiet = threading.Thread(target=lambda: counts._send(final=False, heartbeat=True))

    class Stored(Future[None]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            becoming_quiet.start()
            becoming_quiet.join(0.5)
            return None

    counts._stored(late, Stored())
    becoming_quiet.join()
    assert topic.events[-1].quiet
    assert not counts.begin("flights")
    counts.close()


@pytest.mark.parametrize("client_id", ["p" * 500, "ü" * 250])
def test_a_client_id_that_makes_too_long_a_mark_is_refused(client_id: str) -> None:
    given = {"producer": {"bootstrap.servers": "127.0.0.1:1", "client.id": client_id}, "audit": {"plugin": "klamm"}}
    before = set(threading.enumerate())
    with pytest.raises(ConfigError) as caught:
        Producer(given)
    assert str(caught.value) == (
        "producer.client.id has 500 bytes in UTF-8; with an audit it has at most 499, "
        "because the producer's id, which begins with it, has at most 512"
    )
    assert set(threading.enumerate()) <= before
    given["producer"]["client.id"] = client_id[:-1]
    Producer(given).close()


def test_a_producer_that_was_killed_shows() -> None:
    """kill -9: what was published stands, no last event comes."""
    topic = AuditTopic()
    counts = auditor(topic)
    counts.acknowledged("flights", 0, 1)
    counts.flush()
    [audit] = compare(topic.events, now_ms=10**12)
    assert [problem.kind for problem in audit.problems if str(problem.tier) == "producer"] == ["killed"]
    assert not audit.complete
    counts.close()
