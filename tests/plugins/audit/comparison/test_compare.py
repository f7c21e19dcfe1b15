"""Planted anomalies: the comparison has to find each of them."""

from __future__ import annotations

import pytest

from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.tiers import Kind, State, TierKey
from klamm.plugins.audit.event import AuditEvent
from klammtest.audits import WINDOW_MS, event, readers_of, states

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
    [audit] = compare(events, now_ms, **{"expect": readers_of(events)} | more)  # type: ignore[arg-type]
    return audit


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


HOUR_MS = 3_600_000


def told(number: int, ahead_ms: int, waited_ms: int = 20, **more: object) -> AuditEvent:
    """An event of a producer whose clock is so far ahead, stored `waited_ms` after it was made."""
    stored_ms = 10**10 + number * 1000
    windows = {0: 10} if number == 0 else {}
    times = {"time_ms": stored_ms - waited_ms + ahead_ms, "stored_ms": stored_ms}
    return event("producer", "p", number, number + 1, windows, **times | more)


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_off_is_told_and_changes_no_count(ahead_ms: int) -> None:
    counted = event("broker", "b", 0, 10, {}, sources={"p": {0: 10}})
    audit = result([told(0, ahead_ms), counted], 10**10)
    assert audit.complete
    [clock] = audit.clocks
    assert (clock.producer, clock.application, clock.host) == ("p", "tests", "host")
    assert abs(clock.ahead_ms - ahead_ms) <= 20
    assert ("60.0 min ahead of" if ahead_ms > 0 else "60.0 min behind") in clock.text


@pytest.mark.parametrize(("ahead_ms", "lateness_ms"), [(0, 0), (170_000, 0), (-500_000, 600_000)])
def test_a_clock_within_what_is_allowed_is_not_told(ahead_ms: int, lateness_ms: int) -> None:
    counted = event("broker", "b", 0, 10, {}, sources={"p": {0: 10}})
    assert result([told(0, ahead_ms), counted], 10**10, lateness_ms=lateness_ms).clocks == ()


def test_an_event_that_waited_for_an_hour_is_no_wrong_clock() -> None:
    """Its broker was away; the next one was stored at once."""
    assert result([told(0, 0, waited_ms=HOUR_MS), told(1, 0)], 10**10).clocks == ()


def test_a_live_producer_whose_clock_is_behind_holds_the_watermark_by_as_much() -> None:
    """It may still send records of an hour ago."""
    now_ms = 1000 * WINDOW_MS
    counted = event("broker", "b", 0, 990, {}, sources={"p": dict.fromkeys(range(990), 1)})
    whole = {"final": False, "interval_ms": 1000}

    def mark(ahead_ms: int) -> int | None:
        windows = dict.fromkeys(range(990), 1)
        first = event("producer", "p", 0, 1, windows, stored_ms=1, time_ms=1 + ahead_ms, **whole)
        last = event("producer", "p", 1, 2, {}, stored_ms=now_ms, time_ms=now_ms + ahead_ms, **whole)
        return result([first, last, counted], now_ms, lateness_ms=WINDOW_MS).watermark_ms

    assert mark(0) == 990 * WINDOW_MS
    assert mark(-20 * WINDOW_MS) == 979 * WINDOW_MS
    assert mark(20 * WINDOW_MS) == 990 * WINDOW_MS


def reads(*ranges: tuple[int, int, int]) -> list[AuditEvent]:
    """30 records in three windows, and ranges of a group: (epoch, from, to)."""
    counted = event("broker", "b", 0, 30, {}, sources={"p": {0: 10, 1: 10, 2: 10}})
    readers = [
        event(
            "consumer",
            "readers",
            begin,
            end,
            {n: 10 for n in range(3) if begin <= 10 * n < end},
            epoch=epoch,
            stored_ms=at,
        )
        for at, (epoch, begin, end) in enumerate(ranges)
    ]
    return [event("producer", "p", 0, 1, {0: 10, 1: 10, 2: 10}), counted, *readers]


@pytest.mark.parametrize("again", [(2, 0, 30), (2, 0, 10), (2, 10, 20)])
def test_a_group_that_was_set_back_to_the_beginning_of_a_range_is_told(again: tuple[int, int, int]) -> None:
    """The new ranges replace the former ones, and fit in: no overlap shows."""
    audit = result(reads((1, 0, 10), (1, 10, 20), (1, 20, 30), again))
    assert State.UNKNOWN in states(audit, READERS)
    assert not audit.complete
    assert "the group was set back" in audit.problems[0].text


@pytest.mark.parametrize(
    "ranges",
    [
        [(1, 0, 10), (2, 10, 20), (3, 20, 30)],
        [(1, 0, 10), (1, 10, 30), (2, 10, 20), (2, 20, 30)],
        [(5, 0, 10), (5, 10, 20), (1, 20, 30)],
        [(-1, 0, 10), (-1, 10, 20), (-1, 20, 30)],
        [(2, 0, 10), (2, 10, 20), (2, 20, 30), (1, 0, 30)],
    ],
)
def test_owners_that_go_on_where_the_former_committed_are_complete(ranges: list[tuple[int, int, int]]) -> None:
    """The second was told twice, for the first owner's commit was refused; the third group's generation began again; in
    the last a member that was stopped tells late."""
    audit = result(reads(*ranges))
    assert audit.complete, audit.problems
