"""Planted anomalies: the comparison has to find each of them."""

from __future__ import annotations

from klamm.plugins.audit.compare import State, TopicAudit, compare
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.tiling import Kind, TierKey
from klammtest.audits import WINDOW_MS, event

READERS, LAKE = TierKey("consumer", "readers"), TierKey("hadoop", "lake")
BROKER, PRODUCER = TierKey("broker", "b"), TierKey("producer")


def pipeline() -> list[AuditEvent]:
    """Two producers, 30 records in three windows, and every tier has counted all of them."""
    return [
        event("producer", "p1", 0, 1, {0: 4, 1: 5}),
        event("producer", "p1", 1, 2, {1: 1, 2: 5}),
        event("producer", "p2", 0, 1, {0: 6, 1: 4, 2: 5}),
        event("broker", "b", 0, 12, {0: 10, 1: 2}),
        event("broker", "b", 12, 30, {1: 8, 2: 10}),
        event("consumer", "readers", 0, 20, {0: 10, 1: 10}),
        event("consumer", "readers", 20, 30, {2: 10}),
        event("hadoop", "lake", 0, 30, {0: 10, 1: 10, 2: 10}),
    ]


def result(events: list[AuditEvent], now_ms: int = 10**12, **more: object) -> TopicAudit:
    [audit] = compare(events, now_ms, **more)  # type: ignore[arg-type]
    return audit


def states(audit: TopicAudit, tier: TierKey) -> list[State]:
    return [window.cells[tier].state for window in audit.windows]


def kinds(audit: TopicAudit) -> list[Kind]:
    return [problem.kind for problem in audit.problems]


def test_all_tiers_agree() -> None:
    audit = result(pipeline())
    assert audit.complete
    assert audit.lowest() == 1.0
    assert audit.watermark_ms == 3 * WINDOW_MS
    assert audit.tiers == (PRODUCER, BROKER, READERS, LAKE)
    assert audit.windows[1].cells[PRODUCER].attempted == 10


def test_a_lost_record() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 30, {0: 10, 1: 9, 2: 10})
    audit = result(events)
    assert states(audit, LAKE) == [State.COMPLETE, State.MISSING, State.COMPLETE]
    assert audit.lowest() == 0.9
    assert audit.watermark_ms == WINDOW_MS
    assert not audit.complete


def test_a_doubled_record() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 30, {0: 11, 1: 10, 2: 10})
    audit = result(events)
    assert states(audit, LAKE)[0] is State.DUPLICATED
    assert audit.windows[0].cells[LAKE].ratio == 1.1
    assert audit.watermark_ms is None
    assert not audit.complete


def test_a_record_in_a_window_where_none_was_expected() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 30, {0: 10, 1: 10, 2: 10, 9: 1})
    audit = result(events)
    assert states(audit, LAKE)[3] is State.DUPLICATED
    assert not audit.complete


def test_one_lost_and_one_doubled_do_not_make_up_for_each_other() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 30, {0: 11, 1: 9, 2: 10})
    assert states(result(events), LAKE) == [State.DUPLICATED, State.MISSING, State.COMPLETE]


def test_a_gap_in_the_ranges_is_unknown_though_the_counts_agree() -> None:
    events = pipeline()
    events[6] = event("consumer", "readers", 21, 30, {2: 10})
    audit = result(events)
    assert kinds(audit) == [Kind.GAP]
    assert "[20, 21)" in audit.problems[0].text
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.UNKNOWN]
    assert states(audit, LAKE) == [State.COMPLETE] * 3
    assert audit.lowest() is None
    assert not audit.complete


def test_ranges_that_overlap_are_unknown() -> None:
    events = pipeline()
    events[6] = event("consumer", "readers", 15, 30, {2: 10})
    audit = result(events)
    assert kinds(audit) == [Kind.OVERLAP]
    assert "[15, 20)" in audit.problems[0].text
    assert not audit.complete


def test_a_gap_at_the_broker_leaves_nothing_to_measure_by() -> None:
    events = pipeline()
    del events[3]
    events.insert(3, event("broker", "b", 0, 11, {0: 10, 1: 2}))
    audit = result(events)
    assert kinds(audit) == [Kind.GAP]
    for tier in (BROKER, READERS, LAKE):
        assert set(states(audit, tier)) == {State.UNKNOWN}


def test_a_missing_tier_is_unknown() -> None:
    events = [each for each in pipeline() if each.tier != "hadoop"]
    assert result(events).complete
    audit = result(events, expect=[LAKE])
    assert kinds(audit) == [Kind.ABSENT]
    assert states(audit, LAKE) == [State.UNKNOWN] * 3
    assert audit.watermark_ms is None


def test_no_broker_or_no_producer_is_unknown() -> None:
    for tier in ("broker", "producer"):
        audit = result([each for each in pipeline() if each.tier != tier])
        assert kinds(audit) == [Kind.ABSENT]
        assert audit.lowest() is None
        assert not audit.complete


def test_a_topic_of_which_nothing_is_known_is_not_complete() -> None:
    audit = result([], topics=["flights"])
    assert not audit.complete
    assert audit.lowest() is None


def test_a_producer_that_was_killed_makes_the_broker_unknown_and_not_duplicated() -> None:
    events = pipeline()
    events[2] = event("producer", "p2", 0, 1, {0: 6}, final=False, time_ms=0)
    audit = result(events, now_ms=60_000)
    assert kinds(audit) == [Kind.KILLED]
    assert "silent for 60 s" in audit.problems[0].text
    assert states(audit, BROKER) == [State.UNKNOWN] * 3
    assert states(audit, READERS) == [State.COMPLETE] * 3
    assert not audit.complete


def test_a_killed_producer_is_unknown_even_where_its_counts_agree() -> None:
    events = pipeline()
    events[2] = event("producer", "p2", 0, 1, {0: 6, 1: 4, 2: 5}, final=False, time_ms=0)
    assert not result(events, now_ms=60_000).complete


def test_a_producer_that_goes_on_is_no_problem_but_what_it_has_not_told_is_unknown() -> None:
    events = pipeline()
    events[2] = event("producer", "p2", 0, 1, {0: 6, 1: 4}, final=False, time_ms=59_000)
    audit = result(events, now_ms=60_000)
    assert audit.live_producers == ("p2",)
    assert kinds(audit) == []
    assert states(audit, BROKER) == [State.COMPLETE, State.COMPLETE, State.UNKNOWN]


def test_a_hole_in_a_producers_events_is_unknown() -> None:
    events = pipeline()
    del events[0]
    audit = result(events)
    assert kinds(audit) == [Kind.GAP]
    assert "the first is 0" in audit.problems[0].text


def test_a_replay_is_not_summed() -> None:
    events = [*pipeline(), event("consumer", "readers", 0, 20, {0: 10, 1: 10}, replay=True)]
    assert result(events).complete


def test_the_last_event_of_a_key_wins_whole() -> None:
    wrong = event("consumer", "readers", 20, 27, {2: 3, 8: 4})
    events = pipeline()
    events.insert(0, wrong)
    assert result(events).complete
    assert not result([*events, wrong]).complete


def test_a_consumer_ahead_of_the_brokers_count_is_unknown() -> None:
    events = pipeline()
    del events[4]
    audit = result(events)
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.UNKNOWN]
    assert states(audit, BROKER) == [State.COMPLETE, State.MISSING, State.MISSING]


def test_lossy_ranges_are_unknown() -> None:
    events = pipeline()
    events[6] = event("consumer", "readers", 20, 30, {2: 10}, lossy=True)
    audit = result(events)
    assert kinds(audit) == [Kind.LOSSY]
    assert not audit.complete


def test_windows_of_different_lengths_are_compared_in_common_ones() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 30, {0: 20, 1: 0, 2: 10}, window_ms=2 * WINDOW_MS)
    audit = result(events)
    assert audit.window_ms == 2 * WINDOW_MS
    assert [window.cells[LAKE].records for window in audit.windows] == [20, 10]
    assert audit.complete


def test_records_without_a_timestamp_do_not_hold_the_watermark() -> None:
    events = pipeline()
    events[7] = event("hadoop", "lake", 0, 31, {0: 10, 1: 10, 2: 10})
    events.append(event("producer", "p3", 0, 1, {}))
    events[3] = event("broker", "b", 0, 12, {0: 10, 1: 2})
    no_time = events[4].windows[0]._replace(start_ms=-1, records=1)
    events[4] = event("broker", "b", 12, 31, {1: 8, 2: 10})
    object.__setattr__(events[4], "windows", (*events[4].windows, no_time))
    audit = result(events)
    assert audit.windows[0].start_ms == -1
    assert not audit.windows[0].complete
    assert audit.watermark_ms == 3 * WINDOW_MS
