"""Who counts, from when, until when: lakes that are replaced, moved and copied, groups that begin late and end, tiers
that nobody expects, audit events that were deleted. The rules' numbers are those of docs/audit.md.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from klamm.plugins.audit.comparison import rules
from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.report import remarks
from klamm.plugins.audit.comparison.tiers import Kind, LogEnd, Place, State, TierKey
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.gate import Gate, obstacle
from klammtest.audits import WINDOW_MS, event, states
from klammtest.guarantees import guarantee

READERS, LAKE, BROKER = TierKey("consumer", "readers"), TierKey("hadoop", "lake"), TierKey("broker", "b")
LATER_MS = 10**12
UNTIL = Gate("flights", 3 * WINDOW_MS)


def result(events: list[AuditEvent], *expect: TierKey, now_ms: int = LATER_MS, **more: Any) -> TopicAudit:
    [audit] = compare(events, now_ms, expect, **more)
    return audit


def stored(count: int = 200) -> list[AuditEvent]:
    """So many records in two windows of one partition, counted by the broker in two ranges."""
    half = count // 2
    return [
        event("producer", "p", 0, 1, {0: half, 1: half}),
        event("broker", "b", 0, half, {0: half}, stored_ms=1),
        event("broker", "b", half, count, {1: half}, stored_ms=2),
    ]


def load(number: int, begin: int, end: int, at: int, lake: str = "one", **more: Any) -> AuditEvent:
    """A load of a lake, all of whose offsets below 100 lie in the first window."""
    windows = {0: max(min(end, 100) - begin, 0), 1: max(end - max(begin, 100), 0)}
    held = {window: records for window, records in windows.items() if records}
    fields = {"directory": "/lake/flights", "job": f"{lake}-{number}", "stored_ms": at, "load": number, "lake": lake}
    return event("hadoop", "lake", begin, end, held, **fields | more)


def announced(lake: str, at: int, **more: Any) -> AuditEvent:
    return load(0, 0, 0, at, lake, **{"job": ""} | more)


# -- R6: lakes


def counting_all_lakes(patch: pytest.MonkeyPatch) -> None:
    """As before events named a lake: for one sink and offset the last event counts."""
    patch.setattr(rules, "newest_lake", lambda events, current: (list(current), [], []))


@guarantee("C9", "a lake that lacks records is never complete by an earlier lake's counts", plant=counting_all_lakes)
def test_a_lake_that_was_loaded_from_the_start_again_counts_alone() -> None:
    """The remedy that `klamm load` names: the directory was moved away; the new lake has 150 of 200 records."""
    old = [load(1, 0, 100, 10), load(2, 100, 200, 11)]
    assert result([*stored(), *old], LAKE).complete
    new = [announced("two", 20), load(1, 0, 150, 21, "two")]
    for begun in (new[:1], new):
        audit = result([*stored(), *old, *begun], LAKE)
        assert not audit.complete
        assert obstacle(audit, UNTIL) is not None
        assert State.LATE in states(audit, LAKE)
        assert any(
            "lake one, is not compared any more: replaced by lake two in /lake/flights" in r for r in remarks(audit)
        )
    done = result([*stored(), *old, *new, load(2, 150, 200, 30, "two")], LAKE)
    assert done.complete
    assert obstacle(done, UNTIL) is None
    assert done.problems == ()


@guarantee("C9", "two lakes of one sink do not count as one", plant=counting_all_lakes)
@pytest.mark.parametrize("last", ["production", "trial", "both"])
def test_two_lakes_of_one_sink_close_the_gate(last: str) -> None:
    """Production has 100 of 200 records; a trial elsewhere, whose sink has the same name, has all."""
    production = [load(1, 0, 100, 10)]
    trial = [announced("two", 20, directory="/trial/flights"), load(1, 0, 200, 21, "two", directory="/trial/flights")]
    more = {"production": [load(2, 100, 150, 30)], "both": [load(2, 100, 200, 30)], "trial": []}[last]
    audit = result([*stored(), *production, *trial, *more], LAKE)
    [problem] = audit.problems
    assert problem.kind is Kind.TWO_LAKES
    assert "one in /lake/flights; two in /trial/flights" in problem.text
    assert "two lakes" in str(obstacle(audit, UNTIL))
    assert audit.watermark_ms is None
    ended = event("hadoop", "lake", 0, 1, {}, partition=None, final=True, lake="two", stored_ms=40, note="a trial")
    after = result([*stored(), *production, *trial, *more, ended], LAKE)
    assert after.problems == ()
    assert after.complete is (last == "both")


def test_a_directory_that_was_moved_replaces_its_lake_until_that_one_goes_on() -> None:
    old = [load(1, 0, 100, 10)]
    moved = {"directory": "/new/flights", "replaces": ("one",)}
    new = [announced("two", 20, **moved), *(load(n, 100 * (n - 1), 100 * n, 20 + n, "two", **moved) for n in (1, 2))]
    assert result([*stored(), *old, *new], LAKE).complete
    gone_on = result([*stored(), *old, *new, load(2, 100, 120, 30)], LAKE)
    assert [problem.kind for problem in gone_on.problems] == [Kind.TWO_LAKES]


def test_a_directory_that_was_moved_twice_replaces_a_lake_though_no_event_of_the_one_between_was_stored() -> None:
    old = [load(1, 0, 100, 10)]
    moved = {"directory": "/third/flights", "replaces": ("one", "two")}
    loads = (load(n, 100 * (n - 1), 100 * n, 20 + n, "three", **moved) for n in (1, 2))
    new = [announced("three", 20, **moved), *loads]
    assert result([*stored(), *old, *new], LAKE).complete


def test_a_lake_that_was_announced_and_lost_its_first_load_to_another_job_is_none() -> None:
    events = [announced("two", 20), announced("one", 19), load(1, 0, 200, 22)]
    audit = result([*stored(), *events], LAKE)
    assert audit.complete, audit.problems


def any_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "current_loads", list)


@guarantee("C9", "loads that were removed by hand count no more once they are loaded again", plant=any_job)
def test_a_load_that_was_removed_and_made_again_counts_instead_of_all_later_ones() -> None:
    loads = [load(1, 0, 60, 10), load(2, 60, 120, 11), load(3, 120, 200, 12)]
    again = [load(2, 60, 150, 20, job="again"), load(3, 150, 200, 21, job="again-3")]
    assert result([*stored(), *loads, *again], LAKE).complete
    audit = result([*stored(), *loads, again[0]], LAKE)
    assert (states(audit, LAKE), audit.problems) == ([State.COMPLETE, State.LATE], ())


# -- R2, R3, R5: groups


def test_a_group_that_began_at_the_end_makes_no_earlier_window_missing() -> None:
    begun = event("consumer", "readers", 150, 150, {}, stored_ms=5)
    audit = result([*stored(), begun, event("consumer", "readers", 150, 200, {1: 50}, stored_ms=6)], READERS)
    assert states(audit, READERS) == [State.NOT_COMPARED, State.NOT_COMPARED]
    assert obstacle(audit, UNTIL) is None
    assert audit.watermark_ms == 2 * WINDOW_MS
    lacking = result([*stored(), begun, event("consumer", "readers", 170, 200, {1: 30}, stored_ms=6)], READERS)
    assert [problem.kind for problem in lacking.problems] == [Kind.GAP]
    assert obstacle(lacking, UNTIL) is not None


def test_a_group_lacks_what_it_passed_and_is_late_with_the_rest() -> None:
    half = event("consumer", "readers", 0, 100, {0: 90})
    audit = result([*stored(), half], READERS)
    assert states(audit, READERS) == [State.MISSING, State.LATE]
    assert [window.cells[READERS].short for window in audit.windows] == [10, 100]
    assert "lacks 10 of 100 records" in str(obstacle(audit, UNTIL))
    late = result([*stored(), event("consumer", "readers", 0, 100, {0: 100})], READERS)
    assert "has not got 100 of 100 records yet" in str(obstacle(late, UNTIL))


def test_a_record_that_was_counted_twice_makes_up_for_none_that_is_late() -> None:
    ranges = [event("broker", "b", 0, 10, {0: 10}), event("broker", "b", 10, 11, {0: 1})]
    events = [event("producer", "p", 0, 1, {0: 11}), *ranges, load(1, 0, 10, 5)]
    doubled = event("hadoop", "lake", 0, 10, {0: 11})
    assert states(result(events, LAKE), LAKE) == [State.LATE]
    assert states(result([*events[:-1], doubled], LAKE), LAKE) == [State.DUPLICATED]


def test_a_partition_in_which_a_group_has_not_begun_is_demanded() -> None:
    second = event("broker", "b", 0, 10, {0: 10}, partition=1)
    events = [
        event("producer", "q", 0, 1, {0: 10}),
        *stored(),
        second,
        event("consumer", "readers", 0, 200, {0: 100, 1: 100}),
    ]
    assert states(result(events, READERS), READERS) == [State.LATE, State.COMPLETE]
    begun = event("consumer", "readers", 10, 10, {}, partition=1)
    assert result([*events, begun], READERS).complete


def test_a_group_is_not_asked_for_a_topic_that_was_replaced_before_it_began() -> None:
    old = [event("producer", "p", 0, 1, {0: 10}), event("broker", "b", 0, 10, {0: 10}, topic_id="old", stored_ms=1)]
    new = [event("producer", "q", 0, 1, {1: 5}), event("broker", "b", 0, 5, {1: 5}, topic_id="new", stored_ms=2)]
    audit = result([*old, *new, event("consumer", "readers", 0, 5, {1: 5}, topic_id="new", stored_ms=3)], READERS)
    assert states(audit, READERS) == [State.NOT_COMPARED, State.COMPLETE]
    assert audit.complete
    both = event("consumer", "readers", 0, 4, {0: 4}, topic_id="old", stored_ms=1)
    assert State.LATE in states(result([*old, *new, both], READERS), READERS)


def ended(tier: TierKey, at: int) -> AuditEvent:
    who = {"application": "anna", "note": "renamed", "stored_ms": at}
    return event(*tier, 0, 1, {}, partition=None, final=True, **who)


def never_ending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "without_ended", lambda events: ([each for each in events if not each.ends], []))


@guarantee("C11", "a group that ended holds nothing back", plant=never_ending)
def test_a_group_that_ended_is_not_compared_and_begins_anew_when_it_counts_again() -> None:
    lagging = event("consumer", "readers", 0, 100, {0: 90}, stored_ms=5)
    audit = result([*stored(), lagging, ended(READERS, 6)])
    assert READERS not in audit.tiers
    assert "consumer/readers is not compared any more: ended by anna on 1970-01-01T00:00Z: renamed" in remarks(audit)
    expected = result([*stored(), lagging, ended(READERS, 6)], READERS)
    assert [(p.kind, p.tier) for p in expected.problems] == [(Kind.ABSENT, READERS)]
    assert "since it ended" in expected.problems[0].text
    again = event("consumer", "readers", 100, 200, {1: 100}, stored_ms=7)
    audit = result([*stored(), lagging, ended(READERS, 6), again], READERS)
    assert states(audit, READERS) == [State.NOT_COMPARED, State.COMPLETE]
    assert obstacle(audit, UNTIL) is None


def test_only_expected_tiers_hold_the_watermark_the_gate_and_the_exit_status() -> None:
    lagging = event("consumer", "trial", 0, 30, {0: 20})
    audit = result([*stored(), lagging, load(1, 0, 200, 10)])
    assert audit.complete
    assert audit.lowest() == 1.0
    assert audit.watermark_ms == 2 * WINDOW_MS
    assert obstacle(audit, UNTIL) is None
    assert "consumer/trial is late" in remarks(audit)[0]
    named = Gate("flights", 3 * WINDOW_MS, tiers=("consumer/trial",))
    assert obstacle(audit, named) is not None
    assert not audit.of_tiers([TierKey("consumer", "trial")]).complete


def test_every_lake_is_expected_unless_one_is_named() -> None:
    behind = [*stored(), load(1, 0, 150, 10)]
    assert not result(behind).complete
    assert not result(behind, READERS).complete
    other = event("hadoop", "other", 0, 200, {0: 100, 1: 100})
    assert result([*behind, other], TierKey("hadoop", "other")).complete


# -- R17, R22: deleted events of the audit topic


@pytest.fixture
def week() -> list[AuditEvent]:
    """A producer sends a record in each of ten windows, and each tier tells of it a moment later."""
    events = []
    for n in range(10):
        at = {"stored_ms": (n + 1) * WINDOW_MS - 10, "time_ms": (n + 1) * WINDOW_MS - 10}
        events += [
            event("producer", "p", n, n + 1, {n: 1}, **at | {"final": n == 9}),
            event("broker", "b", n, n + 1, {n: 1}, **at),
            event("consumer", "readers", n, n + 1, {n: 1}, **at),
            load(n + 1, n, n + 1, at["stored_ms"], job=f"{n}"),
        ]
    for each in events:
        if each.tier == "hadoop":
            object.__setattr__(each, "windows", (each.windows[0]._replace(start_ms=each.from_offset * WINDOW_MS),))
    return events


def keeping_all_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "left_out_ms", lambda *_: None)


@guarantee("C11", "windows are not unknown because older audit events were deleted", plant=keeping_all_windows)
def test_windows_before_the_first_event_that_is_left_are_left_out(week: list[AuditEvent]) -> None:
    retained_ms = 4 * WINDOW_MS + 100
    left = [each for each in week if each.stored_ms >= retained_ms]
    assert not result(left, READERS, LAKE, lateness_ms=WINDOW_MS).complete, "events are missing without a reason"
    audit = result(left, READERS, LAKE, lateness_ms=WINDOW_MS, retained_ms=retained_ms)
    assert (audit.complete, audit.problems) == (True, ())
    assert audit.left_out_ms == 5 * WINDOW_MS + 100
    assert [window.start_ms // WINDOW_MS for window in audit.windows] == [6, 7, 8, 9]
    assert audit.watermark_ms == 10 * WINDOW_MS
    assert "windows before 1970-01-01T00:50Z are left out: older events were deleted (audit.retention.ms)" in remarks(
        audit
    )
    assert obstacle(audit, Gate("flights", 10 * WINDOW_MS)) is None
    assert "are left out" in str(obstacle(audit, Gate("flights", 5 * WINDOW_MS)))


@pytest.mark.parametrize("lost", range(6, 10))
def test_a_loss_is_found_after_the_first_event_that_is_left(week: list[AuditEvent], lost: int) -> None:
    retained_ms = 4 * WINDOW_MS + 100
    for each in week:
        if each.tier == "consumer" and each.from_offset == lost:
            object.__setattr__(each, "windows", ())
    left = [each for each in week if each.stored_ms >= retained_ms]
    audit = result(left, READERS, lateness_ms=WINDOW_MS, retained_ms=retained_ms)
    assert [w.start_ms // WINDOW_MS for w in audit.windows if not w.complete] == [lost]
    assert audit.watermark_ms == (None if lost == 6 else lost * WINDOW_MS)


def test_a_partition_whose_events_were_all_deleted_is_counted_up_to_the_committed_offset(
    week: list[AuditEvent],
) -> None:
    retained_ms = 4 * WINDOW_MS + 100
    left = [each for each in week if each.stored_ms >= retained_ms]
    idle = Place("", 1)
    for counted, complete in ((7, True), (6, False)):
        logs = {"flights": {Place("", 0): LogEnd(0, 10), idle: LogEnd(0, 7, counted)}}
        audit = result(left, lateness_ms=WINDOW_MS, retained_ms=retained_ms, logs=logs)
        assert audit.complete is complete, audit.problems


def test_offsets_before_the_first_event_of_the_broker_tier_that_is_left_are_no_gap_of_a_reader(
    week: list[AuditEvent],
) -> None:
    """A group tells late what it had committed, and retention had deleted these records."""
    retained_ms = 4 * WINDOW_MS + 100
    left = [each for each in week if each.stored_ms >= 6 * WINDOW_MS and each.tier != "consumer"]
    begun = [
        event("consumer", "readers", 1, 1, {}, stored_ms=9 * WINDOW_MS),
        event("consumer", "readers", 6, 6, {}, stored_ms=9 * WINDOW_MS, reset=True),
        event("consumer", "readers", 6, 10, dict.fromkeys(range(6, 10), 1), stored_ms=10 * WINDOW_MS),
    ]
    audit = result([*left, *begun], READERS, lateness_ms=WINDOW_MS, retained_ms=retained_ms)
    assert (audit.complete, audit.problems) == (True, ())


@pytest.mark.parametrize("renamed", [False, True])
def test_a_group_may_have_begun_in_a_topic_that_was_replaced_before_its_first_event_that_is_left(
    week: list[AuditEvent], renamed: bool
) -> None:
    """The event by which it began is deleted; that it was ended, and began anew, is left."""
    for each in week:
        if each.tier == "broker":
            object.__setattr__(each, "topic_id", "old" if each.from_offset < 8 else "new")
    at = {"stored_ms": 9 * WINDOW_MS, "topic_id": "new"}
    begun = event("consumer", "readers", 8, 10, {8: 1, 9: 1}, **at)
    retained_ms = 4 * WINDOW_MS + 100
    left = [each for each in week if each.stored_ms >= retained_ms and each.tier in ("producer", "broker")]
    left += [*([ended(READERS, 8 * WINDOW_MS)] if renamed else []), begun]
    audit = result(left, READERS, lateness_ms=WINDOW_MS, retained_ms=retained_ms)
    former = State.NOT_COMPARED if renamed else State.UNKNOWN
    assert states(audit, READERS) == [former, former, State.COMPLETE, State.COMPLETE]
    assert [problem.kind for problem in audit.problems] == ([] if renamed else [Kind.GAP])
    assert audit.watermark_ms == (10 * WINDOW_MS if renamed else None)


def test_an_idle_topic_none_of_whose_events_is_left_closes_no_gate() -> None:
    audit = result([], READERS, topics=["flights"], retained_ms=100 * WINDOW_MS)
    assert audit.problems == ()
    assert obstacle(audit, Gate("flights", 200 * WINDOW_MS)) is None
    assert math.isfinite(audit.left_out_ms or math.inf)


# -- R16: topics that were deleted


@pytest.mark.parametrize("again", [True, False], ids=["created again", "deleted"])
def test_what_a_deleted_topic_held_and_nobody_counted_is_not_missing(again: bool) -> None:
    """The last 10 records of window 1 were deleted with the topic, before the broker tier counted them."""
    first = [
        event("producer", "p", 0, 1, {0: 100, 1: 100}, stored_ms=2 * WINDOW_MS),
        event("broker", "b", 0, 100, {0: 100}, topic_id="one", stored_ms=WINDOW_MS),
        event("broker", "b", 100, 190, {1: 90}, topic_id="one", stored_ms=2 * WINDOW_MS - 1),
    ]
    second = [
        event("producer", "p", 1, 2, {50: 100, 60: 100}, stored_ms=60 * WINDOW_MS + 1, final=True),
        event("broker", "b", 0, 100, {50: 100}, topic_id="two", stored_ms=50 * WINDOW_MS + 2),
        event("broker", "b", 100, 190, {60: 90}, topic_id="two", stored_ms=60 * WINDOW_MS + 2),
    ]
    logs = {"flights": {Place("two", 0): LogEnd(0, 190 if again else 0)}}
    audit = result([*first, *second] if again else first, BROKER, logs=logs)
    assert states(audit, BROKER)[:2] == [State.COMPLETE, State.UNKNOWN]
    assert [problem.kind for problem in audit.problems if problem.tier == BROKER] == [Kind.LOSSY]
    if again:  # the first topic was deleted long before
        assert states(audit, BROKER)[2:] == [State.COMPLETE, State.MISSING]
    present = result(first, BROKER, logs={"flights": {Place("one", 0): LogEnd(0, 190)}})
    assert states(present, BROKER) == [State.COMPLETE, State.MISSING]


def test_a_load_of_a_former_topic_that_tells_late_leaves_the_present_one_demanded() -> None:
    """The lake stopped with the former topic, and its event came after the present one's first: it lacks records."""
    events = [
        event("producer", "p", 0, 1, {0: 100, 1: 100}, final=True),
        event("broker", "b", 0, 100, {0: 100}, topic_id="one", stored_ms=10),
        event("broker", "b", 0, 100, {1: 100}, topic_id="two", stored_ms=20),
        load(1, 0, 100, 30, topic_id="one"),
    ]
    late = [event for event in events if event.topic_id != "one" or event.tier != "broker"]
    logs = {"flights": {Place("two", 0): LogEnd(0, 100)}}
    assert states(result(events, LAKE, logs=logs), LAKE) == [State.COMPLETE, State.LATE]
    assert states(result(late, LAKE, logs=logs), LAKE)[1] is State.LATE  # "one" is named only after "two"


# -- R14, R15, R17: offsets that nobody counted, and logs that were cut


def test_a_reader_s_gap_makes_only_the_windows_unknown_that_its_offsets_can_be_in() -> None:
    """The broker tier lacks a part of them: that part lies between its ranges before and after."""
    counted = [
        event("broker", "b", 0, 10, {0: 10}, stored_ms=1),
        event("broker", "b", 10, 20, {5: 10}, stored_ms=2),
        event("broker", "b", 25, 30, {9: 5}, stored_ms=3),
    ]
    sent = event("producer", "p", 0, 1, {0: 10, 5: 10, 7: 5, 9: 5})
    read = [event("hadoop", "lake", 0, 10, {0: 10}), event("hadoop", "lake", 28, 30, {9: 2})]
    audit = result([sent, *counted, *read], lateness_ms=WINDOW_MS)
    gap = next(problem for problem in audit.problems if problem.tier == LAKE)
    assert sorted(start // WINDOW_MS for start in gap.windows or ()) == [5, 7, 9]


@pytest.mark.parametrize(("ahead", "state"), [(0, State.MISSING), (-3, State.UNKNOWN), (3, State.UNKNOWN)])
def test_a_broker_s_gap_may_hold_records_of_a_wrong_clock(ahead: int, state: State) -> None:
    """The audit topic has lost the broker's count of the second producer's records."""
    now = 9 * WINDOW_MS
    lost = 9 + ahead if ahead else 6
    events = [
        event("producer", "p", 0, 1, {9: 20}, stored_ms=now, time_ms=now),
        event("producer", "q", 0, 1, {lost: 5}, stored_ms=now, time_ms=now + ahead * WINDOW_MS),
        event("broker", "b", 0, 10, {}, sources={"p": {9: 10}}, stored_ms=now),
        event("broker", "b", 15, 25, {}, sources={"p": {9: 10}}, stored_ms=now),
    ]
    audit = result(events, BROKER, lateness_ms=WINDOW_MS)
    assert {w.start_ms // WINDOW_MS: w.cells[BROKER].state for w in audit.windows}[lost] is state


def test_an_owner_that_begins_inside_a_range_was_set_back() -> None:
    """An unclean election cut the log at 150, and retention deleted what came instead before the group read on."""
    read = [
        event("consumer", "readers", 0, 200, {0: 100, 1: 100}, epoch=1, stored_ms=1),
        event("consumer", "readers", 150, 150, {}, epoch=1, stored_ms=2),
    ]
    audit = result([*stored(), *read], READERS)
    assert states(audit, READERS) == [State.UNKNOWN, State.UNKNOWN]
    assert any("was set back" in problem.text for problem in audit.problems)


@pytest.mark.parametrize(("ahead", "unknown"), [(-6, range(3, 13)), (0, range(9, 13)), (6, range(9, 19))])
def test_a_killed_producer_may_have_counted_by_its_own_clock(ahead: int, unknown: range) -> None:
    """What it had sent since its last event was acknowledged, and an unclean election cut it off."""
    now = 10 * WINDOW_MS
    at = {"interval_ms": WINDOW_MS // 2, "final": False}
    events = [
        event("producer", "p", 0, 1, dict.fromkeys(range(20), 1), stored_ms=now, time_ms=now),
        event("producer", "q", 0, 1, {0: 1}, stored_ms=now // 2, time_ms=now // 2 + ahead * WINDOW_MS, **at),
        event("producer", "q", 1, 2, {}, stored_ms=now, time_ms=now + ahead * WINDOW_MS, **at),
        event("broker", "b", 0, 21, {}, sources={"p": dict.fromkeys(range(20), 1), "q": {0: 1}}, stored_ms=now),
    ]
    audit = result(events, lateness_ms=WINDOW_MS)
    found = [w.start_ms // WINDOW_MS for w in audit.windows if w.cells[BROKER].state is State.UNKNOWN]
    assert found == [*unknown]
    assert set(states(audit, BROKER)) == {State.COMPLETE, State.UNKNOWN}


def test_windows_between_the_offsets_that_a_group_read_again_are_not_in_doubt() -> None:
    """It was set back twice: from 10 to 5, and from 40 to 35."""
    counted = [
        event("producer", "p", 0, 1, dict.fromkeys(range(4), 10)),
        *(event("broker", "b", 10 * at, 10 * at + 10, {at: 10}, stored_ms=at) for at in range(4)),
    ]
    read = [
        event("consumer", "readers", 0, 10, {0: 10}, epoch=1, stored_ms=10),
        event("consumer", "readers", 5, 5, {}, epoch=2, stored_ms=11),
        event("consumer", "readers", 5, 10, {0: 5}, epoch=2, stored_ms=12),
        event("consumer", "readers", 10, 30, {1: 10, 2: 10}, epoch=2, stored_ms=13),
        event("consumer", "readers", 30, 40, {3: 10}, epoch=2, stored_ms=14),
        event("consumer", "readers", 35, 35, {}, epoch=3, stored_ms=15),
        event("consumer", "readers", 35, 40, {3: 5}, epoch=3, stored_ms=16),
    ]
    audit = result([*counted, *read], READERS)
    assert states(audit, READERS) == [State.UNKNOWN, State.COMPLETE, State.COMPLETE, State.UNKNOWN]
    texts = [problem.text for problem in audit.problems if "was set back" in problem.text]
    assert [text.rpartition("offsets ")[2] for text in texts] == ["[5, 10) again", "[35, 40) again"]


def test_records_that_a_cut_has_lost_make_up_for_none_that_a_group_has_not_received() -> None:
    """The group skipped two records, and committed past two others that an unclean election cut off at 24 since."""
    counted = [
        event("producer", "p", 0, 1, {0: 24, 1: 5}),
        event("broker", "b", 0, 24, {0: 24}, epoch=1, stored_ms=1),
        event("broker", "b", 24, 29, {0: 5}, epoch=1, stored_ms=2),
        event("broker", "b", 24, 24, {}, epoch=2, stored_ms=5),
        event("broker", "b", 24, 29, {1: 5}, epoch=2, stored_ms=6),
    ]
    read = [
        event("consumer", "readers", 0, 24, {0: 22}, epoch=1, stored_ms=3),
        event("consumer", "readers", 24, 26, {0: 2}, epoch=1, stored_ms=4),
    ]
    audit = result([*counted, *read], READERS)
    assert states(audit, READERS) == [State.MISSING, State.LATE]
    whole = result([*counted, event("consumer", "readers", 0, 24, {0: 24}, epoch=1, stored_ms=3), read[1]], READERS)
    assert states(whole, READERS) == [State.DUPLICATED, State.LATE]


@pytest.mark.parametrize(("kept", "state"), [(200, State.COMPLETE), (150, State.UNKNOWN)])
def test_a_log_that_was_cut_is_unknown_until_its_leader_tells(kept: int, state: State) -> None:
    """What was stored instead can be of the first window, too."""
    logs = {"flights": {Place("", 0): LogEnd(0, 200, kept=kept)}}
    audit = result(stored(), BROKER, lateness_ms=0, logs=logs)
    assert states(audit, BROKER) == [state, state]
    texts = [problem.text for problem in audit.problems]
    assert texts == (["partition 0: counted up to offset 200, and its log was cut at 150"] if kept < 200 else [])


def test_two_ranges_that_overlap_make_only_the_windows_of_the_offsets_unknown_that_are_in_both() -> None:
    """The members of this client have no epoch, and the audit topic refused where they begin."""
    read = [event("consumer", "readers", 0, 20, {0: 10, 1: 10}), event("consumer", "readers", 15, 30, {1: 5, 2: 10})]
    audit = result([*in_three_windows(), *read], READERS)
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.COMPLETE]


def in_three_windows() -> list[AuditEvent]:
    """Ten records in each of three windows, each counted by the broker in a range of its own."""
    counted = [event("broker", "b", 10 * n, 10 * n + 10, {n: 10}, stored_ms=n) for n in range(3)]
    return [event("producer", "p", 0, 1, {0: 10, 1: 10, 2: 10}), *counted]


def test_a_range_that_reaches_beyond_several_later_ones_overlaps_each_of_them() -> None:
    read = [
        event("consumer", "readers", 0, 30, {0: 10, 1: 10, 2: 10}),
        event("consumer", "readers", 10, 12, {1: 2}),
        event("consumer", "readers", 12, 30, {1: 8, 2: 10}),
    ]
    audit = result([*in_three_windows(), *read], READERS)
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.UNKNOWN]


@pytest.mark.parametrize(
    ("begin", "reset", "state"),
    [
        (10, False, State.COMPLETE),
        (10, True, State.UNKNOWN),
        (20, False, State.UNKNOWN),
        (20, True, State.UNKNOWN),
        (5, False, State.UNKNOWN),
        (5, True, State.UNKNOWN),
        (0, True, State.LATE),
    ],
)
def test_a_range_that_no_later_owner_s_commit_ends_is_not_complete(begin: int, reset: bool, state: State) -> None:
    """A suspended member publishes what it has read, and its commit is refused. The next one begins there if it was
    committed; elsewhere, or without a commit, if retention deleted the records, or the offset was set."""
    read = [
        event("consumer", "readers", 0, 0, {}, epoch=1, stored_ms=5, reset=True),
        event("consumer", "readers", 0, 10, {0: 10}, epoch=1, stored_ms=6),
    ]
    assert states(result([*in_three_windows(), *read], READERS), READERS)[0] is State.COMPLETE
    begun = event("consumer", "readers", begin, begin, {}, epoch=2, stored_ms=7, reset=reset)
    audit = result([*in_three_windows(), *read, begun], READERS)
    assert states(audit, READERS)[0] is state
    rest = event("consumer", "readers", begin, 30, {1: 10, 2: 10}, epoch=2, stored_ms=8)
    audit = result([*in_three_windows(), *read, begun, rest], READERS)
    assert states(audit, READERS)[0] is (State.MISSING if state is State.LATE else state)
    assert states(audit, READERS)[2] is State.COMPLETE


def test_a_beginning_that_is_told_again_and_one_before_a_void_range_prove_no_less() -> None:
    """The offset was set forward to 25, and then back to 15. The audit topic stores each event twice."""
    events = [
        event("consumer", "readers", 0, 10, {0: 10}, epoch=1, stored_ms=5),
        event("consumer", "readers", 10, 20, {1: 10}, epoch=1, stored_ms=6),
        event("consumer", "readers", 25, 25, {}, epoch=2, stored_ms=7),
        event("consumer", "readers", 15, 15, {}, epoch=3, stored_ms=8),
        event("consumer", "readers", 15, 30, {1: 5, 2: 10}, epoch=3, stored_ms=9),
    ]
    audit = result([*in_three_windows(), *(each for each in events for _ in range(2))], READERS)
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.COMPLETE]


def test_an_owner_that_begins_below_one_that_was_moved_was_not_set_back() -> None:
    """Retention deleted [0, 10); the member that began at 10 therefore was suspended, and its commit was refused."""
    read = [
        event("consumer", "readers", 0, 0, {}, epoch=1, stored_ms=5),
        event("consumer", "readers", 10, 10, {}, epoch=1, stored_ms=6, reset=True),
        event("consumer", "readers", 10, 20, {1: 10}, epoch=1, stored_ms=7),
        event("consumer", "readers", 0, 0, {}, epoch=2, stored_ms=8),
        event("consumer", "readers", 10, 10, {}, epoch=2, stored_ms=9, reset=True),
        event("consumer", "readers", 10, 30, {1: 10, 2: 10}, epoch=2, stored_ms=10),
    ]
    audit = result([*in_three_windows(), *read], READERS)
    assert states(audit, READERS) == [State.UNKNOWN, State.COMPLETE, State.COMPLETE]
    assert [problem.kind for problem in audit.problems] == [Kind.GAP]


def test_an_owner_that_is_moved_tells_what_it_had_committed_before() -> None:
    """Retention deleted [10, 20) before it was read."""
    read = [
        event("consumer", "readers", 0, 10, {0: 10}, epoch=1, stored_ms=6),
        event("consumer", "readers", 10, 10, {}, epoch=2, stored_ms=7),
        event("consumer", "readers", 20, 20, {}, epoch=2, stored_ms=8, reset=True),
        event("consumer", "readers", 20, 30, {2: 10}, epoch=2, stored_ms=9),
    ]
    audit = result([*in_three_windows(), *read], READERS)
    assert states(audit, READERS) == [State.COMPLETE, State.UNKNOWN, State.COMPLETE]


# -- R6, R8, R11, R16, R17, R18: what random histories have found


def test_a_range_of_a_member_that_published_after_the_next_one_began_is_void() -> None:
    """The offset was set back to 2 while the member was suspended, so the next one began below its range."""
    read = [
        event("consumer", "readers", 0, 100, {0: 100}, epoch=1, stored_ms=5),
        event("consumer", "readers", 100, 100, {}, epoch=3, stored_ms=6),
        event("consumer", "readers", 50, 50, {}, epoch=5, stored_ms=7),
        event("consumer", "readers", 50, 120, {0: 50, 1: 20}, epoch=5, stored_ms=8),
    ]
    late = event("consumer", "readers", 100, 150, {1: 50}, epoch=3, stored_ms=9)
    rest = event("consumer", "readers", 120, 200, {1: 80}, epoch=5, stored_ms=10)
    audit = result([*stored(), *read, late, rest], READERS)
    assert states(audit, READERS)[1] is State.COMPLETE
    assert "consumer/readers" not in {str(p.tier) for p in audit.problems if p.touches(WINDOW_MS)}


def test_records_of_a_producer_without_an_event_are_not_told_though_the_log_has_lost_them() -> None:
    """The producer was killed before its first event, and an unclean election cut off what the broker had counted."""
    events = [
        event("producer", "q", 0, 1, {1: 10}),
        event("broker", "b", 0, 100, {}, sources={"p": {0: 100}}, epoch=0, stored_ms=1),
        event("broker", "b", 0, 10, {}, sources={"q": {1: 10}}, epoch=1, stored_ms=2),
    ]
    audit = result(events, BROKER)
    assert states(audit, BROKER) == [State.UNKNOWN, State.COMPLETE]
    [problem] = audit.problems
    assert problem.text == "producer p has sent no event, but the log has had records of it"


def test_the_committed_offset_does_not_stand_for_the_last_event_where_others_are_left() -> None:
    """The audit topic has lost the broker tier's last event: its records are not proved to be missing."""
    sent = event("producer", "p", 0, 1, {9: 20})
    counted = event("broker", "b", 0, 10, {9: 10}, stored_ms=9 * WINDOW_MS)
    logs = {"flights": {Place("", 0): LogEnd(0, 20, counted=20)}}
    audit = result([sent, counted], BROKER, lateness_ms=WINDOW_MS, logs=logs, retained_ms=WINDOW_MS)
    assert states(audit, BROKER) == [State.UNKNOWN]
    assert [problem.kind for problem in audit.problems] == [Kind.BEHIND]


@pytest.mark.parametrize(("ahead", "state"), [(0, State.MISSING), (3, State.UNKNOWN)])
def test_what_a_deleted_topic_held_may_be_ahead_by_as_much_as_a_producer_s_clock_is(ahead: int, state: State) -> None:
    def at(window: int, off: int = 0) -> dict[str, int]:
        return {"stored_ms": window * WINDOW_MS, "time_ms": (window + off) * WINDOW_MS}

    events = [
        event("producer", "p", 0, 1, {1: 10, 8: 5}, **at(5, ahead)),
        event("broker", "b", 0, 10, {1: 10}, topic_id="one", **at(4)),
        event("broker", "b", 0, 10, {9: 10}, topic_id="two", **at(6)),
        event("producer", "q", 0, 1, {9: 10}, **at(9)),
    ]
    logs = {"flights": {Place("two", 0): LogEnd(0, 10)}}
    audit = result(events, BROKER, lateness_ms=WINDOW_MS, logs=logs)
    assert states(audit, BROKER)[1] is state


def test_a_lake_that_was_announced_in_a_moved_directory_replaces_though_another_one_was_begun_there() -> None:
    """Its event was not stored: the job crashed, and then the directory was begun anew."""
    old = load(1, 0, 100, 10)
    moved = announced("two", 20, directory="/new/flights", replaces=("one",))
    new = [announced("three", 30, directory="/new/flights"), load(1, 0, 200, 31, "three", directory="/new/flights")]
    audit = result([*stored(), old, moved, *new], LAKE)
    assert audit.complete, audit.problems


def test_a_hole_in_a_producer_s_events_doubts_records_without_a_timestamp() -> None:
    told = [
        event("producer", "p", 0, 1, {-1: 5}, final=False, stored_ms=0),
        event("producer", "p", 2, 3, {}, stored_ms=9),
    ]
    audit = result([*told, event("broker", "b", 0, 5, {-1: 5})], BROKER, lateness_ms=0)
    assert states(audit, BROKER) == [State.UNKNOWN]
