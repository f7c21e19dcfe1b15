"""Rules R24 and R25: a mirror's topic id stands for the id at the source; what the source has lost is missing."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.plugins.audit.comparison import rules
from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.mirrors import at_source, losses
from klamm.plugins.audit.comparison.tiers import LogEnd, Place, State, TierKey
from klamm.plugins.audit.event import AuditEvent
from klammtest.audits import event, states
from klammtest.guarantees import guarantee

MIRROR, LAKE, BROKER = TierKey("mirror"), TierKey("hadoop", "lake"), TierKey("broker", "b")


def result(events: list[AuditEvent], end: int, topic_id: str = "here") -> TopicAudit:
    """Returns the audit at the cluster whose log ends at `end`."""
    moved, logs = at_source(events, {"flights": {Place(topic_id, 0): LogEnd(0, end)}})
    [audit] = compare(moved, 10**12, logs=logs)
    return audit


def live(count: int = 100, topic_id: str = "there") -> list[AuditEvent]:
    return [
        event("producer", "p", 0, 1, {0: count}),
        event("broker", "b", 0, count, {0: count}, topic_id=topic_id),
    ]


def copied(begin: int, end: int, records: int, at: int = 1, topic_id: str = "here") -> AuditEvent:
    return event("mirror", "b", begin, end, {0: records}, topic_id=topic_id, origin="there", stored_ms=at)


def test_readers_at_the_mirror_are_compared_with_the_broker_of_the_source() -> None:
    load = event("hadoop", "lake", 0, 100, {0: 100}, topic_id="here", load=1, job="j", lake="l", directory="d")
    audit = result([*live(), copied(0, 100, 100), load], 100)
    assert (audit.complete, audit.topic_ids) == (True, ("there",))
    assert (states(audit, MIRROR), states(audit, LAKE)) == ([State.COMPLETE], [State.COMPLETE])


def test_a_mirror_that_is_behind_is_late_and_one_with_a_gap_is_missing() -> None:
    audit = result([*live(), copied(0, 60, 60)], 60)
    assert (audit.complete, states(audit, MIRROR)) == (False, [State.LATE])
    audit = result([*live(), copied(0, 60, 60), copied(60, 100, 10)], 100)
    assert (audit.complete, states(audit, MIRROR)) == (False, [State.MISSING])


def test_what_is_mirrored_and_not_counted_at_the_source_is_unknown() -> None:
    audit = result([*live(), copied(0, 120, 120)], 120)
    assert (audit.complete, [problem.kind for problem in audit.problems]) == (False, ["behind"])


def late_for_ever(patch: pytest.MonkeyPatch) -> None:
    """As it was: what a mirror will never copy is late."""
    patch.setattr(rules, "not_mirrored", lambda *_: set())


@guarantee("C9", "what a mirror will not copy, since its topic was created again, is missing", plant=late_for_ever)
@pytest.mark.parametrize("end", [100, 60])
def test_a_topic_that_was_created_again_is_missing_until_it_is_mirrored(end: int) -> None:
    new = event("broker", "b", 0, 50, {1: 50}, topic_id="new", stored_ms=5)
    events = [*live(), copied(0, end, end), event("producer", "p", 1, 2, {1: 50}), new]
    former = State.COMPLETE if end == 100 else State.MISSING  # the rest of it is nowhere
    audit = result(events, end)
    assert (audit.complete, states(audit, MIRROR)) == (False, [former, State.MISSING])
    assert [cell.short for cell in (window.cells[MIRROR] for window in audit.windows)] == [100 - end, 50]
    [line] = losses(audit)
    assert "created again at the source, as new" in line
    begun = event("mirror", "b", 0, 20, {1: 20}, topic_id="anew", origin="new", stored_ms=9)
    audit = result([*events, begun], 20, "anew")
    assert (states(audit, MIRROR), list(losses(audit))) == ([former, State.LATE], [])


def test_a_link_that_was_made_after_the_topic_was_created_again_lacks_nothing() -> None:
    former = [*live(topic_id="former"), event("producer", "p", 1, 2, {1: 100})]
    new = event("broker", "b", 0, 100, {1: 100}, topic_id="there", stored_ms=5)
    begun = event("mirror", "b", 0, 60, {1: 60}, topic_id="here", origin="there", stored_ms=6)
    assert states(result([*former, new, begun], 60), MIRROR) == [State.NOT_COMPARED, State.LATE]


def test_of_two_copies_the_newest_counts_and_none_after_a_promotion() -> None:
    again = copied(0, 40, 40, at=2, topic_id="anew")
    assert states(result([*live(), copied(0, 100, 100), again], 40, "anew"), MIRROR) == [State.LATE]
    own = event("broker", "b", 100, 120, {0: 20}, topic_id="here", epoch=7)
    more = event("producer", "q", 0, 1, {0: 20})
    promoted = result([*live(), copied(0, 100, 100), own, more], 120)
    assert MIRROR not in promoted.tiers


def of_p(tier: str, begin: int, end: int, windows: dict[int, int], source: str = "p", **more: Any) -> AuditEvent:
    """Returns an event about records of the producer p, in ranges of the source's topic."""
    fields = {"topic_id": "there"} | ({"origin": "there", "topic_id": "here"} if tier == "mirror" else {}) | more
    return event(tier, "b", begin, end, {}, sources={source: windows}, **fields)


def unclean(begin: int = 70, again: int = 0) -> list[AuditEvent]:
    """The source had 100 records in window 0 and has lost the last 30; it has 20 in window 1 since, and `again` in
    window 0, at the same offsets. Its former leader has counted in ranges of which one begins at `begin`."""
    return [
        event("producer", "p", 0, 1, {0: 100}),
        event("producer", "p", 1, 2, {1: 20}),
        of_p("broker", 0, begin, {0: begin}, epoch=1),
        of_p("broker", begin, 100, {0: 100 - begin}, epoch=1),
        of_p("broker", 70, 90 + again, {1: 20, 0: again}, epoch=2),
    ]


COPIED = of_p("mirror", 0, 100, {0: 100})
CUT = of_p("mirror", 70, 100, {0: 30}, cut=True)
NOT_HERE = of_p("mirror", 70, 100, {}, cut=True, lossy=True)


def copied_since(again: int = 0) -> AuditEvent:
    return of_p("mirror", 70, 90 + again, {1: 20, 0: again})


def counting_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    """As it was: an event that reports a cut is none, so that the ranges overlap."""
    patch.setattr(rules, "without_cuts", lambda events: ([each for each in events if not each.cut], []))


@guarantee("C9", "what a source has lost after it was mirrored is missing at the mirror", plant=counting_what_was_cut)
@pytest.mark.parametrize("ranges", [[COPIED], [of_p("mirror", 0, 40, {0: 40}), of_p("mirror", 40, 100, {0: 60})]])
def test_what_the_source_has_lost_is_missing(ranges: list[AuditEvent]) -> None:
    audit = result([*unclean(), *ranges, CUT, copied_since()], 90)
    assert states(audit, MIRROR) == states(audit, BROKER) == [State.MISSING, State.COMPLETE]
    cell = audit.windows[0].cells[MIRROR]
    assert (cell.records, cell.expected, cell.short, audit.problems) == (70, 100, 30, ())
    [line] = losses(audit)
    assert "partition 0: the source has lost 30 records of offsets [70, 100)" in line


def test_what_was_sent_again_is_not_missing() -> None:
    audit = result([*unclean(again=30), COPIED, CUT, copied_since(30)], 120)
    assert (audit.complete, states(audit, MIRROR)) == (True, [State.COMPLETE, State.COMPLETE])
    audit = result([*unclean(again=20), COPIED, CUT, copied_since(20)], 110)
    assert [window.cells[MIRROR].short for window in audit.windows] == [10, 0]


def test_what_is_behind_a_cut_is_late_until_it_is_copied() -> None:
    audit = result([*unclean(), COPIED, CUT], 70)
    assert states(audit, MIRROR) == [State.MISSING, State.LATE]


def test_the_mirror_proves_a_loss_where_the_source_s_broker_tier_has_counted_offsets_twice() -> None:
    events = [*unclean(50), COPIED, CUT, copied_since()]
    audit = result(events, 90)
    assert states(audit, BROKER) == [State.UNKNOWN, State.UNKNOWN]
    assert states(audit, MIRROR) == [State.MISSING, State.UNKNOWN]
    assert (audit.windows[0].cells[MIRROR].expected, audit.windows[0].cells[MIRROR].short) == (100, 30)
    for unsure in (events[:-1], [*unclean(50, again=30), COPIED, CUT, copied_since(30)]):
        assert states(result(unsure, 70), MIRROR) == [State.UNKNOWN, State.UNKNOWN]


def test_a_cut_whose_records_are_not_known_is_unknown_unless_a_range_begins_there() -> None:
    audit = result([*unclean(), COPIED, NOT_HERE, copied_since()], 90)
    assert states(audit, MIRROR) == [State.UNKNOWN, State.COMPLETE]
    assert {problem.kind for problem in audit.problems} == {"lossy"}
    ranges = [of_p("mirror", 0, 70, {0: 70}), of_p("mirror", 70, 100, {0: 30})]
    audit = result([*unclean(), *ranges, NOT_HERE, copied_since()], 90)
    assert (states(audit, MIRROR), audit.problems) == ([State.MISSING, State.COMPLETE], ())


@pytest.mark.parametrize(
    "ranges",
    [
        [of_p("mirror", 0, 100, {0: 100}, lossy=True)],
        [of_p("mirror", 0, 80, {0: 80}), of_p("mirror", 80, 100, {0: 10}, lossy=True)],
        [of_p("mirror", 0, 100, {0: 20})],  # fewer than what was cut
        [of_p("mirror", 0, 80, {0: 80}), of_p("mirror", 85, 100, {0: 15})],
    ],
)
def test_a_range_that_does_not_fit_what_was_cut_from_it_is_unknown(ranges: list[AuditEvent]) -> None:
    assert states(result([*unclean(), *ranges, CUT, copied_since()], 90), MIRROR)[0] is State.UNKNOWN


def test_a_cut_that_is_reported_twice_counts_once() -> None:
    again = of_p("mirror", 70, 100, {0: 30}, cut=True, epoch=1)
    audit = result([*unclean(), COPIED, CUT, again, of_p("mirror", 70, 90, {1: 20}, epoch=1)], 90)
    assert (states(audit, MIRROR), audit.windows[0].cells[MIRROR].short) == ([State.MISSING, State.COMPLETE], 30)
    assert len([*losses(audit)]) == 1


def test_a_second_cut_below_the_first() -> None:
    events = [
        *unclean(),
        of_p("broker", 60, 65, {1: 5}, epoch=3),
        *(COPIED, CUT, copied_since(), of_p("mirror", 60, 90, {0: 10, 1: 20}, cut=True)),
        of_p("mirror", 60, 65, {1: 5}),
    ]
    events[2:3] = [of_p("broker", 0, 60, {0: 60}, epoch=1), of_p("broker", 60, 70, {0: 10}, epoch=1)]
    audit = result(events, 65)
    assert states(audit, MIRROR) == states(audit, BROKER) == [State.MISSING, State.MISSING]
    assert [window.cells[MIRROR].short for window in audit.windows] == [40, 15]


def test_what_clients_have_lost_that_do_not_audit_is_missing() -> None:
    """Nobody reports whether they have sent it again."""
    events = [
        event("producer", "p", 0, 1, {1: 20}),
        of_p("broker", 0, 70, {0: 70}, "", epoch=1),
        of_p("broker", 70, 90, {1: 20}, epoch=2),
        *(of_p("mirror", 0, 100, {0: 100}, ""), of_p("mirror", 70, 100, {0: 30}, "", cut=True), copied_since()),
    ]
    assert states(result(events, 90), MIRROR) == [State.MISSING, State.COMPLETE]


def test_what_is_lost_of_a_producer_without_a_report_is_unknown() -> None:
    events = [
        event("producer", "p", 0, 1, {1: 20}),
        of_p("broker", 0, 70, {2: 70}, "", epoch=1),
        of_p("broker", 70, 90, {1: 20}, epoch=2),
        *(of_p("mirror", 0, 70, {2: 70}, ""), of_p("mirror", 70, 100, {0: 30}, "q"), copied_since()),
    ]
    events[-1:-1] = [of_p("mirror", 70, 100, {0: 30}, "q", cut=True)]
    audit = result(events, 90)
    assert states(audit, MIRROR)[0] is State.UNKNOWN
    assert "untold" in {problem.kind for problem in audit.problems}


def test_a_mirror_that_was_cut_and_then_created_again_lacks_both() -> None:
    new = event("broker", "b", 0, 50, {2: 50}, topic_id="new", stored_ms=5)
    told = event("producer", "p", 2, 3, {2: 50})
    audit = result([*unclean(), COPIED, CUT, told, new], 70)
    assert states(audit, MIRROR) == [State.UNKNOWN, State.MISSING, State.MISSING]  # the first by R16
    assert len([*losses(audit)]) == 2
