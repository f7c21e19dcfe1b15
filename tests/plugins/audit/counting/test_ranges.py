from __future__ import annotations

from array import array

import pytest

from klamm.core.errors import DeliveryError
from klamm.core.interfaces.audit import LoadOrigin, RangeCount, WindowCount
from klamm.plugins.audit.comparison.compare import tier_counts
from klamm.plugins.audit.comparison.rules import last_of_each
from klamm.plugins.audit.comparison.tiers import TierKey
from klamm.plugins.audit.counting.ranges import PIECE_RECORDS, KlammRangeAudit, _Records, _Rows
from klamm.plugins.audit.event import AuditEvent
from klammtest.audits import FLIGHTS, WINDOW_MS, AuditTopic, identity


def auditor(topic: AuditTopic, **more: int) -> KlammRangeAudit:
    return KlammRangeAudit(identity("consumer"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1, **more)


def read(counts: KlammRangeAudit, begin: int, end: int) -> None:
    """Hand out records whose offset is their minute."""
    counts.count(FLIGHTS, range(begin, end), [n * 60_000 for n in range(begin, end)], [1] * (end - begin))


def commit(counts: KlammRangeAudit, to: int) -> None:
    counts.publish({FLIGHTS: to})
    counts.committed({FLIGHTS: to})


def spans(events: list[AuditEvent], replay: bool = False) -> list[tuple[int, int, int]]:
    """(from, to, records) of the last event of each key."""
    return sorted(
        (event.from_offset, event.to_offset, sum(window.records for window in event.windows))
        for event in last_of_each(events).values()
        if event.replay is replay
    )


def problems(events: list[AuditEvent]) -> list[str]:
    counts = tier_counts("flights", events, WINDOW_MS, 0)[TierKey("consumer", "owner")]
    return [problem.kind for problem in counts.problems]


def test_ranges_tile_from_commit_to_commit() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 100)
    read(counts, 100, 130)
    commit(counts, 130)
    read(counts, 130, 145)
    commit(counts, 145)
    assert spans(topic.events) == [(100, 130, 30), (130, 145, 15)]
    assert problems(topic.events) == []


def test_one_event_holds_all_windows_of_its_range() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 25)
    commit(counts, 25)
    [event] = topic.events
    assert [(window.start_ms, window.records) for window in event.windows] == [
        (0, 10),
        (WINDOW_MS, 10),
        (2 * WINDOW_MS, 5),
    ]


def test_a_commit_may_lie_anywhere_in_what_was_handed_out() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 50)
    commit(counts, 20)
    commit(counts, 50)
    assert spans(topic.events) == [(0, 20, 20), (20, 50, 30)]


def test_offsets_that_hold_no_record_are_part_of_the_range() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    counts.count(FLIGHTS, [0, 5, 9], [0, 0, 0], [1, 1, 1])
    commit(counts, 12)
    commit(counts, 20)
    assert spans(topic.events) == [(0, 12, 3), (12, 20, 0)]
    assert problems(topic.events) == []


def test_a_crash_between_publish_and_commit_neither_loses_nor_doubles() -> None:
    topic = AuditTopic()
    first = auditor(topic)
    first.start(FLIGHTS, 100)
    read(first, 100, 150)
    first.publish({FLIGHTS: 150})
    again = auditor(topic)  # kill -9 of the first: 100 is still what is committed
    again.start(FLIGHTS, 100)
    read(again, 100, 120)
    commit(again, 120)
    read(again, 120, 160)
    commit(again, 160)
    assert spans(topic.events) == [(100, 120, 20), (120, 160, 40)]
    assert problems(topic.events) == []


def test_windows_of_the_replaced_event_do_not_stay() -> None:
    topic = AuditTopic()
    first = auditor(topic)
    first.start(FLIGHTS, 0)
    read(first, 0, 40)
    first.publish({FLIGHTS: 40})
    again = auditor(topic)
    again.start(FLIGHTS, 0)
    read(again, 0, 5)
    commit(again, 5)
    counts = tier_counts("flights", topic.events, WINDOW_MS, 0)[TierKey("consumer", "owner")]
    assert {start: tally.records for start, tally in counts.windows.items()} == {0: 5}


def test_a_commit_that_failed_does_not_move_the_range() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 10)
    counts.publish({FLIGHTS: 10})  # and the commit is refused
    read(counts, 10, 30)
    commit(counts, 30)
    assert spans(topic.events) == [(0, 30, 30)]


def test_counts_that_could_not_be_stored_are_in_the_next_event() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 10)
    topic.fail = 1
    with pytest.raises(DeliveryError, match="owner"):
        counts.publish({FLIGHTS: 10})
    counts.committed({FLIGHTS: 10})  # the commit went on all the same
    read(counts, 10, 30)
    commit(counts, 30)
    assert spans(topic.events) == [(0, 30, 30)]
    assert problems(topic.events) == []


def test_after_a_seek_back_below_the_commit_events_are_replay_and_not_summed() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 50)
    commit(counts, 50)
    counts.seek(FLIGHTS, 0)
    read(counts, 0, 20)
    commit(counts, 20)
    read(counts, 20, 60)
    commit(counts, 60)
    assert spans(topic.events) == [(0, 50, 50), (50, 60, 10)]
    assert spans(topic.events, replay=True) == [(0, 20, 20), (20, 50, 30)]
    assert problems(topic.events) == []


def test_a_seek_back_above_the_commit_counts_once() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 50)
    counts.seek(FLIGHTS, 10)
    read(counts, 10, 60)
    commit(counts, 60)
    assert spans(topic.events) == [(0, 60, 60)]


def test_what_a_seek_forward_skips_is_in_no_count() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 10)
    counts.seek(FLIGHTS, 40)
    read(counts, 40, 50)
    commit(counts, 50)
    assert spans(topic.events) == [(0, 50, 20)]


def test_what_was_skipped_and_is_read_after_all_is_counted() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 10)
    counts.seek(FLIGHTS, 40)
    read(counts, 40, 50)
    counts.seek(FLIGHTS, 5)
    read(counts, 5, 60)
    commit(counts, 30)
    commit(counts, 60)
    assert spans(topic.events) == [(0, 30, 30), (30, 60, 30)]


def test_a_rebalance_hands_over_at_the_commit() -> None:
    topic = AuditTopic()
    one, other = auditor(topic), auditor(topic)
    one.start(FLIGHTS, 0)
    read(one, 0, 30)
    commit(one, 20)
    one.stop([FLIGHTS])
    one.publish({FLIGHTS: 30})  # no longer its own: says nothing
    other.start(FLIGHTS, 20)
    read(other, 20, 40)
    commit(other, 40)
    other.stop([FLIGHTS])
    one.start(FLIGHTS, 40)
    read(one, 40, 45)
    commit(one, 45)
    assert spans(topic.events) == [(0, 20, 20), (20, 40, 20), (40, 45, 5)]


def test_too_many_records_without_a_commit_are_unknown_and_not_forgotten() -> None:
    topic = AuditTopic()
    counts = auditor(topic, max_records=100)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 101)
    commit(counts, 50)
    read(counts, 101, 120)
    commit(counts, 120)
    commit(counts, 121)
    assert [event.lossy for event in topic.events] == [True, True, False]
    assert "lossy" in problems(topic.events)


@pytest.mark.parametrize(
    "sizes", [(1, 1), (PIECE_RECORDS, 3), (3, PIECE_RECORDS), (PIECE_RECORDS + 1, 2 * PIECE_RECORDS)]
)
@pytest.mark.parametrize("as_buffers", [False, True])
def test_pieces_of_any_size_count_as_records_one_by_one(sizes: tuple[int, int], as_buffers: bool) -> None:
    """A commit anywhere, also within a piece, counts what is below it; a gap in the offsets counts nothing."""
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    offsets = [*range(sizes[0]), *range(sizes[0] + 5, sizes[0] + 5 + sizes[1]), sizes[0] + sizes[1] + 7]
    stamps, weights = [n * 7_000 for n in offsets], [n % 11 for n in offsets]
    for begin, end in ((0, sizes[0]), (sizes[0], len(offsets) - 1), (len(offsets) - 1, len(offsets))):
        columns = [numbers[begin:end] for numbers in (offsets, stamps, weights)]
        if as_buffers:
            counts.count(FLIGHTS, *(memoryview(array("q", column)).toreadonly() for column in columns))
        else:
            counts.count(FLIGHTS, *columns)
    begin = 0
    for to in (1, sizes[0] - 1 or 1, sizes[0], sizes[0] + 6, sizes[0] + sizes[1], offsets[-1] + 1):
        if to <= begin:
            continue
        commit(counts, to)
        expected: dict[int, list[int]] = {}
        for offset, stamp, weight in zip(offsets, stamps, weights, strict=True):
            if begin <= offset < to:
                cell = expected.setdefault(stamp - stamp % WINDOW_MS, [0, 0])
                cell[0] += 1
                cell[1] += weight
        got = {w.start_ms: [w.records, w.size] for w in topic.events[-1].windows}
        assert got == expected, (begin, to)
        begin = to


def test_columns_that_may_still_change_are_copied() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    stamps = array("q", [0] * PIECE_RECORDS)
    counts.count(FLIGHTS, range(PIECE_RECORDS), memoryview(stamps), [1] * PIECE_RECORDS)
    stamps[0] = 5 * WINDOW_MS
    commit(counts, PIECE_RECORDS)
    assert [window.start_ms for window in topic.events[-1].windows] == [0]


def test_many_small_polls_are_kept_as_few_pieces() -> None:
    kept = _Records()
    for offset in range(0, 3 * PIECE_RECORDS, 2):  # every second offset: a compacted log
        kept.extend(_Rows.of([offset], [0], [1]))
    assert len(kept) == 3 * PIECE_RECORDS // 2
    assert len(kept._pieces) <= 2
    kept.drop(PIECE_RECORDS)
    assert len(kept) == PIECE_RECORDS


def test_a_range_that_cannot_be_read_is_unknown() -> None:
    topic = AuditTopic()
    counts = auditor(topic)
    counts.start(FLIGHTS, 0)
    read(counts, 0, 10)
    counts.uncountable(FLIGHTS, 20)
    read(counts, 20, 25)
    commit(counts, 25)
    read(counts, 25, 30)
    commit(counts, 30)
    assert spans(topic.events) == [(0, 25, 15), (25, 30, 5)]
    assert [event.lossy for event in topic.events] == [True, False]


def test_counts_made_elsewhere_may_be_sent_again() -> None:
    topic = AuditTopic()
    counts = KlammRangeAudit(identity("hadoop"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    load = LoadOrigin(17, "job", "lake-id", "file:///lake/flights")
    ranges = [RangeCount(FLIGHTS, 0, 30, (WindowCount(0, 10, 100), WindowCount(WINDOW_MS, 20, 200)), load=load)]
    counts.publish_ranges(ranges)
    counts.publish_ranges(ranges)
    assert spans(topic.events) == [(0, 30, 30)]
    assert [event.load for event in topic.events] == [17, 17]


def test_where_a_group_begins_is_told_again_if_the_audit_topic_refused_it() -> None:
    topic = AuditTopic()
    counts = KlammRangeAudit(identity("consumer"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    counts.start(FLIGHTS, 11)
    topic.fail = 1
    with pytest.raises(DeliveryError):
        counts.begin([FLIGHTS])
    for _ in range(2):  # the group commits its position, and has received nothing
        counts.publish({FLIGHTS: 11})
        counts.committed({FLIGHTS: 11})
    assert [(event.from_offset, event.to_offset) for event in topic.events] == [(11, 11)]


def test_where_a_group_begins_without_a_commit_is_told_as_that_and_after_what_it_had_committed() -> None:
    """It is moved, because the log has lost its position; then it is moved while the audit topic refuses events."""
    topic = AuditTopic()
    counts = KlammRangeAudit(identity("consumer"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    counts.start(FLIGHTS, 0, reset=True)
    counts.begin([FLIGHTS])
    read(counts, 0, 5)
    commit(counts, 5)
    read(counts, 5, 9)
    counts.start(FLIGHTS, 20, reset=True)
    counts.begin([FLIGHTS])
    read(counts, 20, 25)
    commit(counts, 25)
    counts.start(FLIGHTS, 30, reset=True)
    topic.fail = 2
    with pytest.raises(DeliveryError):
        counts.begin([FLIGHTS])
    read(counts, 30, 33)
    commit(counts, 33)
    assert [(event.from_offset, event.to_offset, event.reset) for event in topic.events] == [
        (0, 0, True), (0, 5, False), (5, 5, False), (20, 20, True), (20, 25, False), (30, 33, True),
    ]  # fmt: skip


def test_where_a_group_begins_is_told_later_if_the_audit_topic_refused_it_at_a_commit_too() -> None:
    """A commit succeeds though the audit topic refuses: the group has received nothing, and its range has no end."""
    topic = AuditTopic()
    counts = KlammRangeAudit(identity("consumer"), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    counts.start(FLIGHTS, 11)
    topic.fail = 2
    with pytest.raises(DeliveryError):
        counts.begin([FLIGHTS])
    with pytest.raises(DeliveryError):
        counts.publish({FLIGHTS: 11})
    counts.committed({FLIGHTS: 11})
    commit(counts, 11)
    assert [(event.from_offset, event.to_offset) for event in topic.events] == [(11, 11)]
