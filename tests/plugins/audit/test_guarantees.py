"""Guarantees of the audit: it never says "complete" where a record may be missing, and never doubts a proven count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from klamm.core.client.cluster_client import EARLIEST
from klamm.core.client.network.metadata import ClusterView, PartitionView, TopicView
from klamm.core.errors import CoordinationError, ErrorCode, KlammError
from klamm.core.interfaces.audit import RangeCount, WindowCount
from klamm.core.records import native
from klamm.core.records.decode import read_area
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers
from klamm.plugins.audit import query
from klamm.plugins.audit.comparison import compare, rules
from klamm.plugins.audit.comparison.compare import TopicAudit, settlement_counts
from klamm.plugins.audit.comparison.tiers import Horizon, Kind, LogEnd, Place, Problem, State, TierKey
from klamm.plugins.audit.config import AuditConfig
from klamm.plugins.audit.counting import batch_counts, producer
from klamm.plugins.audit.counting.batch_counts import BatchCounter
from klamm.plugins.audit.counting.broker_tier import GROUP, Follower
from klamm.plugins.audit.counting.origins import Mark, OneWindow, mark_of, read_mark
from klamm.plugins.audit.counting.producer import KlammProducerAudit
from klamm.plugins.audit.counting.ranges import KlammRangeAudit
from klamm.plugins.audit.event import SETTLEMENT, UNATTRIBUTED, AuditEvent, EventSource, EventWindow
from klammtest import audits
from klammtest.audits import CODECS, FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, event, follower, identity, states
from klammtest.guarantees import guarantee
from klammtest.stored_topic import StoredTopic

BROKER, READERS, LAKE = TierKey("broker", "b"), TierKey("consumer", "readers"), TierKey("hadoop", "lake")
OLD, NEW = UUID(int=1), UUID(int=2)
LATER_MS = 10**12


def result(events: Sequence[AuditEvent], now_ms: int = LATER_MS, **more: Any) -> TopicAudit:
    [audit] = compare.compare(events, now_ms, **{"expect": audits.readers_of(events)} | more)
    return audit


# -- A5


def without_topic_ids(patch: pytest.MonkeyPatch) -> None:
    original = EventSource.event
    patch.setattr(EventSource, "event", lambda self, *place, **more: original(self, *place, **more | {"topic_id": ""}))


@guarantee("A5", "counts of a topic that was created again do not replace the former one's", plant=without_topic_ids)
def test_a_topic_created_again_has_counts_of_its_own() -> None:
    topic = AuditTopic()
    for tier, counted in (("broker", 30), ("consumer", 29)):  # one record of the former topic is never given to it
        counts = KlammRangeAudit(identity(tier), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
        for topic_id, records in ((OLD, counted), (NEW, 30)):
            counts.start(FLIGHTS, 0, topic_id=topic_id)
            if tier == "broker":
                counts.count_windows(FLIGHTS, 30, {(0, UNATTRIBUTED): (records, records)})
            else:
                counts.count(FLIGHTS, range(records), [0] * records, [1] * records)
            counts.publish({FLIGHTS: 30})
            counts.committed({FLIGHTS: 30})
    events = [*topic.events, event("producer", "p1", 0, 1, {0: 30}), event("producer", "p2", 0, 1, {0: 30})]
    audit = result(events)
    [window] = audit.windows
    assert window.cells[TierKey("broker", "owner")].state is State.COMPLETE
    assert window.cells[TierKey("consumer", "owner")].state is State.MISSING
    assert audit.topic_ids == (str(OLD), str(NEW))


def following_the_name(patch: pytest.MonkeyPatch) -> None:
    """The former broker tier: a position is one of the name."""
    original = MemoryLogs.partitions
    patch.setattr(MemoryLogs, "partitions", lambda self: dict.fromkeys(original(self), OLD))
    patch.setattr(MemoryLogs, "id_read", lambda _: OLD)


@guarantee("A5", "the broker tier counts a topic that was created again from its beginning", plant=following_the_name)
def test_the_broker_tier_begins_again_with_a_new_topic() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 10)
    tier.advance()
    logs.create_again()
    logs.append([WINDOW_MS] * 15)
    tier.advance()
    again = follower(logs, topic)  # and another process, which finds the offset stored
    again.advance()
    counts = compare.tier_counts("flights", topic.events, WINDOW_MS, 0)[TierKey("broker", GROUP)]
    assert {start: tally.records for start, tally in counts.windows.items()} == {0: 10, WINDOW_MS: 15}


# -- C9


def beyond_the_clock(patch: pytest.MonkeyPatch) -> None:
    original = rules.watermark
    patch.setattr(rules, "watermark", lambda windows, length, _: original(windows, length, Horizon(2**63)))


@guarantee("C9", "the watermark never passes now - lateness, nor a window of a live producer", plant=beyond_the_clock)
@pytest.mark.parametrize("future", [0, 6])
def test_the_watermark_stays_behind(future: int) -> None:
    now_ms, minute = 100 * WINDOW_MS + 60_000, 60_000
    counts = {90: 5, 99: 5, 100: 5} | ({100 + future: 1} if future else {})
    producer = event("producer", "p", 0, 1, counts, final=False, time_ms=now_ms - 500)
    events = [producer, event("broker", "b", 0, sum(counts.values()), {}, sources={"p": counts})]
    audit = result(events, now_ms, lateness_ms=5 * minute)
    assert audit.complete
    assert audit.watermark_ms is None, "it counted in the first of them a moment ago"
    told = event("producer", "p", 1, 2, {}, final=False, time_ms=now_ms + 6 * minute)
    later = result([*events, told], now_ms + 6 * minute, lateness_ms=5 * minute)
    assert later.watermark_ms == 100 * WINDOW_MS


def not_asking_the_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "is_behind", lambda *_: False)


@guarantee("C9", "nothing passes for complete where a log goes on behind what is counted", plant=not_asking_the_logs)
@pytest.mark.parametrize("end", [100, -1])
def test_a_broker_tier_that_stopped_counting_holds_the_watermark(end: int) -> None:
    """Its broker is down, or the audit topic away; a reader is as far as it is."""
    then, now_ms = 100 * WINDOW_MS + 60_000, 106 * WINDOW_MS
    producer = event("producer", "p", 0, 1, {}, final=False, time_ms=now_ms - 500)
    counted = {50: 10, 100: 40}
    spans = ((0, 10, 50), (10, 50, 100))
    stalled = [
        event("broker", "b", begin, to, {}, sources={"": {window: counted[window]}}, topic_id=str(OLD), time_ms=then)
        for begin, to, window in spans
    ]
    reader = event("consumer", "readers", 0, 50, counted, topic_id=str(OLD), time_ms=then)
    logs = {"flights": {Place(str(OLD), 0): LogEnd(0, end)}}
    audit = result([producer, *stalled, reader], now_ms, logs=logs)
    assert not audit.complete
    assert audit.lowest() is None
    assert audit.watermark_ms == 51 * WINDOW_MS, "what is so much older is complete"
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN]
    assert not audit.between(100 * WINDOW_MS, None).complete
    assert audit.between(None, 60 * WINDOW_MS).complete
    reached = event("broker", "b", 50, 100, {}, sources={"": {100: 50}}, topic_id=str(OLD), time_ms=now_ms)
    rest = event("consumer", "readers", 50, 100, {100: 50}, topic_id=str(OLD), time_ms=now_ms)
    logs = {"flights": {Place(str(OLD), 0): LogEnd(0, 100)}}
    later = result([producer, *stalled, reader, reached, rest], now_ms, logs=logs)
    assert later.complete
    assert later.watermark_ms == 101 * WINDOW_MS


@guarantee("C9", "a topic that the broker tier has told nothing of is reported", plant=not_asking_the_logs)
def test_a_log_that_was_never_counted_is_reported() -> None:
    logs = {name: {Place(str(OLD), 0): LogEnd(10, end)} for name, end in (("empty", 10), ("flights", 11))}
    [audit] = compare.compare([], LATER_MS, logs=logs)
    assert (audit.topic, audit.complete, audit.watermark_ms) == ("flights", False, None)


class AskedCluster(StoredTopic):
    """As much of `ClusterClient` as a report uses: an audit topic of these events, and two partitions of `flights`, of
    which one is served and ends at 100."""

    def __init__(self, events: Sequence[AuditEvent]) -> None:
        super().__init__("__klamm_audit", codecs=CODECS)
        self.logs[0].append(*((0, *each.encode(), ()) for each in events))
        self.questions: list[str] = []

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterView:
        if topics is not None:
            return super().metadata(topics)
        topic = TopicView("flights", ErrorCode.none, dict.fromkeys((0, 1), PartitionView(0)), topic_id=OLD)
        return ClusterView(topics={"flights": topic})

    def list_served_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KlammError]]:
        self.questions.append("logs")
        return {p: 0 if at == EARLIEST else 100 for p, at in wanted.items() if p == FLIGHTS}, {}

    def fetch(self, node_id: int, offsets: Mapping[TopicPartition, int], **limits: Any) -> Any:
        self.questions.append("events")
        return super().fetch(node_id, offsets, **limits)


@guarantee("C9", "a report asks where the logs end before it reads the events", plant=not_asking_the_logs)
def test_a_report_compares_the_counts_with_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "REACH_S", 0.0)
    counted = [
        event("producer", "p", 0, 1, {0: 50}),
        event("broker", "b", 0, 50, {}, sources={"p": {0: 50}}, topic_id=str(OLD)),
    ]
    cluster: Any = AskedCluster(counted)
    config = AuditConfig.model_validate({"broker.interval.ms": 10})
    answer = query.ask(cluster, config, query.AuditQuery())
    [audit] = answer.audits
    assert not answer.complete
    assert audit.watermark_ms is None
    assert [problem.text for problem in audit.problems] == [
        "partition 0: counted up to offset 50, and its log ends at 100",
        "partition 1: not counted yet, and no broker says where its log ends",
    ]
    assert cluster.questions.index("events") > cluster.questions.index("logs")


def test_a_log_without_order_may_hold_a_record_of_any_window_that_was_counted() -> None:
    """Old records, sent again in no order of time."""
    day = 144
    counts = [event("broker", "b", n, n + 1, {window: 1}, time_ms=LATER_MS) for n, window in enumerate([9 * day, day])]
    audit = result(counts, logs={"flights": {Place("", 0): LogEnd(0, 3)}})
    assert states(audit, BROKER) == [State.UNKNOWN, State.UNKNOWN]


# -- C10


def counting_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchCounter, "_sender", lambda *_: UNATTRIBUTED)
    patch.setattr(BatchCounter, "_stated", lambda *_: None)


@guarantee("C10", "records of clients that do not audit never make up for a loss", plant=counting_everybody)
def test_a_loss_is_seen_beside_records_that_nobody_audits() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 20, producer="p")  # of 30 that it had acknowledged
    logs.append([0] * 10)
    follower(logs, topic).advance()
    [window] = result([*topic.events, event("producer", "p", 0, 1, {0: 30})]).windows
    cell = window.cells[TierKey("broker", GROUP)]
    assert (cell.state, cell.records, cell.foreign) == (State.MISSING, 30, 10)
    assert cell.ratio == pytest.approx(2 / 3)


@guarantee("C10", "records of one producer never make up for another's", plant=counting_everybody)
def test_one_producers_surplus_does_not_hide_anothers_loss() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 9, producer="p")
    logs.append([0] * 11, producer="q")
    follower(logs, topic).advance()
    told = [event("producer", owner, 0, 1, {0: 10}) for owner in "pq"]
    [window] = result([*topic.events, *told]).windows
    assert window.cells[TierKey("broker", GROUP)].state is State.MISSING


def test_what_nobody_audits_is_shown_and_is_what_readers_are_measured_by() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 5, producer="p")
    logs.append([0] * 3)
    follower(logs, topic).advance()
    told = event("producer", "p", 0, 1, {0: 5})
    audit = result([*topic.events, told, event("consumer", "readers", 0, 8, {0: 7}, topic_id=str(OLD))])
    assert states(audit, TierKey("broker", GROUP)) == [State.COMPLETE]
    assert states(audit, READERS) == [State.MISSING]


def test_a_record_is_its_last_senders() -> None:
    """A record that is sent on with the headers that it came with has two: the last is the sender's own."""
    mine, former = named("mine"), named("former")
    assert read_mark((*former, *mine)).source == "mine"
    assert sources([mine, (), former[:2]]) == ["mine", "", UNATTRIBUTED]
    assert sources([mine, mine]) == ["mine"]
    assert sources([(), ()]) == [""]
    assert sources([(("k", b"v"),), (("k", b"v"),)]) == [""]
    assert sources([(("k", None), *mine), (("k", b""), *mine)]) == ["mine", "mine"]
    shifted = [(("klamm.producer", b"ab"), ("x", b"c")), (("klamm.producer", b"a"), ("x", b"bc"))]
    assert sources(shifted) == ["ab", "a"]


def trusting_any_mark(patch: pytest.MonkeyPatch) -> None:
    """The first record of a batch says whose it is, wherever its mark was made."""
    patch.setattr(batch_counts, "batch_name", lambda *_: "any")
    patch.setattr(batch_counts, "mark_of", lambda headers: Mark(mark_of(headers).source, "any"))


@guarantee("C10", "a batch of records that are sent on passes for nobody's but its sender's", plant=trusting_any_mark)
@pytest.mark.parametrize(("records", "of"), [(9, FLIGHTS), (10, TopicPartition("flights", 1))])
def test_the_mark_of_another_batch_is_void(records: int, of: TopicPartition) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 20, producer="p")  # of 30
    logs.append([0] * 10, each=[audits.mark_of("p", [0] * records, of)])
    follower(logs, topic).advance()
    [window] = result([*topic.events, event("producer", "p", 0, 1, {0: 30})]).windows
    cell = window.cells[TierKey("broker", GROUP)]
    assert (cell.state, cell.foreign) == (State.MISSING, 10)


def test_a_mark_is_read_from_the_first_record_alone() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10, each=[(), audits.mark_of("p", [0] * 10)])
    follower(logs, topic).advance()
    assert [(w.source, w.records) for w in topic.events[0].windows] == [("", 10)]


def test_a_producer_that_sends_marked_records_on_marks_its_own_batches() -> None:
    former, mine = (audits.mark_of(owner, [0] * 3) for owner in ("former", "mine"))
    assert read_mark((*former, *mine)) == Mark("mine", "3 flights-0", OneWindow(WINDOW_MS, 0, 24))
    assert read_mark((*former, *named("old"))) == Mark("old")
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 3, each=[(*former, *mine), former, former])
    follower(logs, topic).advance()
    assert [(w.source, w.records) for w in topic.events[0].windows] == [("mine", 3)]


def sources(headers: Sequence[Headers]) -> list[str]:
    """As the broker tier finds them in a batch: one for records that follow each other and have the same headers."""
    batch = encode_batch([(0, None, None, each) for each in headers])
    area = read_area(batch, 0, BatchHeader.parse(batch), CODECS)
    return [mark_of(raw).source for _, _, _, raw in native.window_counts(*area, 0, 2**62, WINDOW_MS)]


# -- C11


def tainting_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Problem, "touches", lambda self, start: True)


@guarantee("C11", "a problem makes only the windows unknown that it touches", plant=tainting_all)
def test_a_killed_producer_leaves_other_days_as_they_were() -> None:
    day = 144
    death_ms = 2 * day * WINDOW_MS + 1000
    events = [
        event("producer", "early", 0, 1, {0: 5}),
        event("producer", "killed", 0, 1, {2 * day: 4}, final=False, time_ms=death_ms),
        event("producer", "late", 0, 1, {3 * day: 5}),
        event("broker", "b", 0, 14, {}, sources={"early": {0: 5}, "killed": {2 * day: 4}, "late": {3 * day: 5}}),
        event("consumer", "readers", 0, 14, {0: 5, 2 * day: 4, 3 * day: 5}),
    ]
    audit = result(events)
    assert states(audit, BROKER) == [State.COMPLETE, State.UNKNOWN, State.COMPLETE]
    assert states(audit, READERS) == [State.COMPLETE] * 3
    assert [problem.kind for problem in audit.problems] == [Kind.KILLED]


def never_quiet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KlammProducerAudit, "_become_quiet", lambda self: None)


@guarantee("C11", "a producer killed after all was told and counted leaves nothing unknown", plant=never_quiet)
def test_a_quiet_producer_that_was_killed_is_proved() -> None:
    topic = AuditTopic()
    counts = producer_audit(topic)
    counts.attempted("flights", 0, 1)
    counts.acknowledged("flights", 0, 1)
    counts.flush()
    topic.wait_for(lambda each: each.quiet, 10)
    events = list(topic.events)
    stored = event("broker", "b", 0, 1, {}, sources={"p": {0: 1}})
    audit = result([*events, stored])
    assert audit.complete, audit.problems
    lost = event("broker", "b", 0, 1, {}, sources={})
    assert states(result([*events, lost]), BROKER) == [State.MISSING]
    counts.close()


def sending_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KlammProducerAudit, "_resumed", lambda self, state: True)


def test_a_quiet_producer_tells_before_it_goes_on() -> None:
    topic = AuditTopic()
    counts = producer_audit(topic)
    counts.attempted("flights", 0, 1)
    counts.acknowledged("flights", 0, 1)
    topic.wait_for(lambda each: each.quiet, 10)
    begun(counts)  # and not ended, so it is not quiet again
    last = {each.from_offset: each for each in list(topic.events)}
    assert not last[max(last)].quiet
    counts.close()


def asked_once(patch: pytest.MonkeyPatch) -> None:
    """The flag falls when something is to be sent, before the event is stored."""
    original = KlammProducerAudit._resumed

    def resumed(self: Any, state: Any) -> bool:
        may = original(self, state)
        state.quiet = False
        return may

    patch.setattr(KlammProducerAudit, "_resumed", resumed)


@guarantee("C11", "a quiet producer begins no batch before it is stored that it goes on", plant=asked_once)
def test_a_quiet_producer_sends_nothing_until_it_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "RESUME_S", 60.0)
    monkeypatch.setattr(KlammProducerAudit, "_run", lambda self: None)  # nothing is told but by what follows
    topic = GatedTopic()
    counts = producer_audit(topic)
    counts.attempted("flights", 0, 1)
    counts.acknowledged("flights", 0, 1)
    counts.flush()
    counts._send(final=False, heartbeat=True)
    assert topic.events[-1].quiet
    assert not counts.begin("flights")
    topic.gate.clear()
    telling = threading.Thread(target=counts.flush, daemon=True)
    telling.start()
    try:
        assert topic.arrived.wait(30)
        assert not counts.begin("flights"), "it is not stored yet"
    finally:
        topic.gate.set()
        telling.join(30)
    assert counts.begin("flights")
    assert not topic.events[-1].quiet
    counts.close()


@guarantee("C11", "a batch that is begun keeps its producer from being quiet", plant=sending_at_once)
def test_a_producer_that_is_about_to_send_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it becomes quiet, between any two steps of a sender: what is sent was told or refused."""
    monkeypatch.setattr(KlammProducerAudit, "_run", lambda self: None)
    topic = AuditTopic()
    counts = producer_audit(topic)

    def pause() -> bool:
        counts._send(final=False, heartbeat=True)
        return topic.events[-1].quiet

    assert counts.begin("flights")
    assert not pause()
    counts.attempted("flights", 0, 1)
    counts.end("flights")
    assert not pause()
    assert not pause()
    counts.acknowledged("flights", 0, 1)
    assert not pause()
    assert pause()
    assert not counts.begin("flights")
    assert not pause(), "it says that it goes on"
    assert counts.begin("flights")
    counts.close()


def test_an_audit_that_cannot_tell_stops_no_batch_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KlammProducerAudit, "_run", lambda self: None)
    topic, now = AuditTopic(), [0.0]
    counts = producer_audit(topic, clock=lambda: now[0])
    counts.begin("flights")
    counts.end("flights")
    counts._send(final=False, heartbeat=True)
    counts._send(final=False, heartbeat=True)
    assert not counts.begin("flights")
    now[0] = producer.RESUME_S - 0.1
    assert not counts.begin("flights")
    now[0] = producer.RESUME_S
    assert counts.begin("flights")
    counts.close()


def the_last_wins(patch: pytest.MonkeyPatch) -> None:
    def chosen(_: TierKey, versions: Mapping[int, Sequence[AuditEvent]]) -> Iterator[AuditEvent]:
        return (versions[begin][-1] for begin in sorted(versions))

    patch.setattr(rules, "chosen", chosen)


@guarantee("C11", "the late event of a former owner does not replace its successor's", plant=the_last_wins)
def test_the_highest_epoch_wins() -> None:
    events = [
        event("producer", "p", 0, 1, {0: 30}),
        event("broker", "b", 0, 30, {0: 30}),
        event("consumer", "readers", 0, 10, {0: 10}, epoch=4),
        event("consumer", "readers", 10, 30, {0: 20}, epoch=5),
        event("consumer", "readers", 0, 17, {0: 17}, epoch=4),  # paused, and past its session when it woke
        event("consumer", "readers", 10, 17, {0: 7}, epoch=4),
    ]
    audit = result(events)
    assert audit.complete, audit.problems


def only_by_epoch(patch: pytest.MonkeyPatch) -> None:
    original = rules.chosen

    def chosen(tier: TierKey, versions: Mapping[int, Sequence[AuditEvent]]) -> Iterator[AuditEvent]:
        highest = {begin: max(event.epoch for event in versions[begin]) for begin in versions}
        return original(tier, {b: [e for e in versions[b] if e.epoch == highest[b]] for b in versions})

    patch.setattr(rules, "chosen", chosen)


@guarantee("C11", "a group whose generations began again is complete where all is committed", plant=only_by_epoch)
def test_the_range_that_was_committed_wins_though_its_generation_is_lower() -> None:
    events = [
        event("producer", "p", 0, 1, {0: 40}),
        event("broker", "b", 0, 40, {0: 40}),
        event("consumer", "readers", 0, 10, {0: 10}, epoch=5),
        event("consumer", "readers", 10, 15, {0: 5}, epoch=5),  # its commit failed: the broker was restarted
        event("consumer", "readers", 10, 30, {0: 20}, epoch=1),
        event("consumer", "readers", 30, 40, {0: 10}, epoch=1),
    ]
    audit = result(events)
    assert audit.complete, audit.problems


def by_the_readers_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "present_ms", lambda events, now_ms: now_ms)


@guarantee("C11", "a report whose clock is wrong finds no live producer killed", plant=by_the_readers_clock)
def test_the_clock_that_stamps_events_decides_who_lives() -> None:
    stamped = {"final": False, "interval_ms": 10_000, "time_ms": 0}
    begun = event("producer", "p", 0, 1, {0: 5}, stored_ms=WINDOW_MS, **stamped)
    stored = event("broker", "b", 0, 5, {}, sources={"p": {0: 5}}, stored_ms=WINDOW_MS)
    ahead_ms = WINDOW_MS + 5_000 + 30_000
    audit = result([begun, stored], ahead_ms)
    assert audit.live_producers == ("p",)
    assert audit.complete
    told = event("producer", "q", 0, 1, {}, stored_ms=WINDOW_MS + 31_000, **stamped)
    assert result([begun, stored, told], 0).live_producers == ("q",), "and a clock behind lets no killed one live"
    assert result([begun, stored], WINDOW_MS + 70_000).live_producers == ()


def unsettled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compare, "_settled", lambda windows, settlements: (tuple(windows), ()))


@guarantee("C11", "what cannot be proved is closed by somebody's word, and only as it was", plant=unsettled)
def test_a_settlement_closes_what_is_unknown_until_it_changes() -> None:
    killed = event("producer", "p", 0, 1, {0: 5}, final=False, time_ms=WINDOW_MS)
    stored = event("broker", "b", 0, 6, {}, sources={"p": {0: 6}})
    audit = result([killed, stored])
    assert not audit.complete
    word = settlement(audit, "ops", "the batch was replayed")
    settled = result([killed, stored, word])
    assert settled.complete
    assert settled.watermark_ms == WINDOW_MS
    assert [(by.who, by.why) for by in settled.settled] == [("ops", "the batch was replayed")]
    assert [problem.kind for problem in settled.closed] == [Kind.KILLED]
    more = event("broker", "b", 6, 7, {}, sources={"p": {0: 1}})
    assert not result([killed, stored, more, word]).complete, "it was about other counts"


def test_what_is_proved_is_not_settled() -> None:
    events = [event("producer", "p", 0, 1, {0: 5}), event("broker", "b", 0, 4, {}, sources={"p": {0: 4}})]
    audit = result(events)
    assert states(audit, BROKER) == [State.MISSING]
    assert settlement_counts(audit) == {}


def test_a_settlement_keeps_its_words_in_the_audit_topic() -> None:
    killed = event("producer", "p", 0, 1, {0: 5}, final=False, time_ms=WINDOW_MS)
    word = settlement(result([killed, event("broker", "b", 0, 6, {}, sources={"p": {0: 6}})]), "ops", "why ü")
    topic = AuditTopic()
    topic(*word.encode())
    assert topic.events == [word]


# -- what was counted and is lost afterwards


def trusting_the_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryLogs, "epoch_end", lambda self, partition, epoch: -1)


@guarantee("C9", "records that a cut log has lost are missing though they were counted", plant=trusting_the_offset)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_log_lost_after_it_was_counted_is_missing(restarted: bool) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 10, producer="p")
    tier.advance()
    logs.append([WINDOW_MS] * 10, producer="p")
    tier.advance()
    logs.cut(10)
    logs.append([2 * WINDOW_MS] * 30, producer="q")
    (follower(logs, topic) if restarted else tier).advance()
    told = [event("producer", "p", 0, 1, {0: 10, 1: 10}), event("producer", "q", 0, 1, {2: 30})]
    audit = result([*topic.events, *told])
    assert states(audit, TierKey("broker", GROUP)) == [State.COMPLETE, State.MISSING, State.COMPLETE]


def telling_no_cut(patch: pytest.MonkeyPatch) -> None:
    """As before: the broker tier goes on where the log was cut when something is written there."""
    patch.setattr(KlammRangeAudit, "cut", lambda *_: None)


def keeping_all_tiles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "not_cut", lambda tiles: tiles)


@guarantee("C9", "what a cut log has lost is not complete though nothing is written after it", plant=telling_no_cut)
@pytest.mark.parametrize("kept", [10, 15])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_cut_is_told_at_once(kept: int, restarted: bool) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    for window, counts in enumerate(([10], [5, 5])):
        for count in counts:
            logs.append([window * WINDOW_MS] * count, producer="p")
        tier.advance()
    logs.cut(kept)
    again = follower(logs, topic) if restarted else tier
    assert again.advance()
    assert not again.advance()
    audit = result([*topic.events, event("producer", "p", 0, 1, {0: 10, 1: 10})])
    expected = State.MISSING if kept == 10 else State.UNKNOWN
    assert states(audit, TierKey("broker", GROUP)) == [State.COMPLETE, expected]


@guarantee("C9", "what was published and not committed before a cut is not complete", plant=telling_no_cut)
def test_a_leader_tells_where_it_begins_though_nothing_was_committed_behind() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    for window in range(2):
        logs.append([window * WINDOW_MS] * 10, producer="p")
        logs.offsets.fail = window  # the second event is stored, and its commit is refused
        with suppress(CoordinationError):
            tier.advance()
    logs.cut(10)  # exactly where the tier had committed
    follower(logs, topic).advance()
    audit = result([*topic.events, event("producer", "p", 0, 1, {0: 10, 1: 10})])
    assert states(audit, TierKey("broker", GROUP)) == [State.COMPLETE, State.MISSING]


@guarantee("C9", "ranges that were counted behind a cut count no more", plant=keeping_all_tiles)
def test_later_ranges_of_a_cut_log_are_missing() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    for window in range(5):
        logs.append([window * WINDOW_MS] * 10, producer="p")
        tier.advance()
    logs.cut(20)
    logs.append([5 * WINDOW_MS] * 3, producer="p")
    while tier.advance():
        pass
    audit = result([*topic.events, event("producer", "p", 0, 1, dict.fromkeys(range(5), 10) | {5: 3})])
    assert states(audit, TierKey("broker", GROUP)) == [State.COMPLETE] * 2 + [State.MISSING] * 3 + [State.COMPLETE]


# -- C12


def jumping_in_silence(patch: pytest.MonkeyPatch) -> None:
    def jump(self: Any, partition: TopicPartition, followed: Any, read: Any) -> None:
        followed.position = read.log_start_offset
        self._ranges.start(partition, read.log_start_offset, topic_id=followed.topic_id)

    patch.setattr(Follower, "_jump", jump)


@guarantee(
    "C12", "records deleted before the broker tier or a load counted them are not complete", plant=jumping_in_silence
)
def test_what_was_deleted_before_the_first_load_is_not_complete() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    tier.advance()
    for _ in range(5):
        logs.append([0] * 20, producer="p")
    logs.delete_before(60)
    tier.advance()
    tier.advance()
    load(topic, 60, 100, 0)
    audit = result([*topic.events, event("producer", "p", 0, 1, {0: 100})])
    assert not audit.of_tiers([LAKE]).complete


def test_what_the_broker_counted_and_no_load_has_is_a_gap() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 60, producer="p")
    tier.advance()
    logs.append([WINDOW_MS] * 40, producer="p")
    tier.advance()
    load(topic, 60, 100, 1)
    audit = result([*topic.events, event("producer", "p", 0, 1, {0: 60, 1: 40})])
    assert states(audit, LAKE) == [State.UNKNOWN, State.COMPLETE]
    assert "[0, 60)" in audit.problems[0].text


def test_what_was_gone_before_the_audit_began_is_nobodys_loss() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 60)
    logs.append([WINDOW_MS] * 40, producer="p")
    logs.delete_before(60)
    follower(logs, topic).advance()
    load(topic, 60, 100, 1)
    assert result([*topic.events, event("producer", "p", 0, 1, {1: 40})]).complete


# -- the parts


def named(producer: str) -> Headers:
    return (("klamm.host", b"host"), ("klamm.application", b"tests"), ("klamm.producer", producer.encode()))


class GatedTopic(AuditTopic):
    """Stores nothing while its gate is shut; `arrived`: somebody waits there."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        if not self.gate.is_set():
            self.arrived.set()
            assert self.gate.wait(60)
        return super().__call__(key, value)


def producer_audit(topic: AuditTopic, clock: Callable[[], float] = time.monotonic) -> KlammProducerAudit:
    return KlammProducerAudit(
        identity("producer", "p"), topic, window_ms=WINDOW_MS, interval_s=0.02, clock_ms=lambda: 1, clock=clock
    )


def begun(counts: KlammProducerAudit) -> None:
    """Asks as a sender does, until it may send."""
    deadline = time.monotonic() + 10
    while not counts.begin("flights"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def load(topic: AuditTopic, begin: int, end: int, window: int) -> None:
    counts = KlammRangeAudit(identity("hadoop", "lake"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    held = (WindowCount(window * WINDOW_MS, end - begin, 1),)
    counts.publish_ranges([RangeCount(FLIGHTS, begin, end, held, OLD)])


def settlement(audit: TopicAudit, who: str, why: str) -> AuditEvent:
    counts = settlement_counts(audit).items()
    windows = [EventWindow(start, records, 0, expected, source=tier) for (tier, start), (records, expected) in counts]
    return AuditEvent(
        tier=SETTLEMENT, owner=who, host="host", application="tests", topic=audit.topic, partition=None,
        from_offset=1, to_offset=2, window_ms=audit.window_ms, windows=tuple(windows), note=why,
    )  # fmt: skip
