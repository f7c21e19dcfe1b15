"""Rule R24: a mirror's topic id stands for the id at the source."""

from __future__ import annotations

from klamm.plugins.audit.comparison.compare import State, TopicAudit, compare
from klamm.plugins.audit.comparison.mirrors import at_source
from klamm.plugins.audit.comparison.tiers import LogEnd, Place, TierKey
from klamm.plugins.audit.event import AuditEvent
from klammtest.audits import event, states

MIRROR, LAKE = TierKey("mirror"), TierKey("hadoop", "lake")


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


def test_a_new_topic_at_the_source_is_late_until_it_is_copied() -> None:
    new = event("broker", "b", 0, 50, {1: 50}, topic_id="new", stored_ms=5)
    told = event("producer", "p", 1, 2, {1: 50})
    audit = result([*live(), copied(0, 100, 100), told, new], 100)
    assert (audit.complete, states(audit, MIRROR)) == (False, [State.COMPLETE, State.LATE])


def test_of_two_copies_the_newest_counts_and_none_after_a_promotion() -> None:
    again = copied(0, 40, 40, at=2, topic_id="anew")
    assert states(result([*live(), copied(0, 100, 100), again], 40, "anew"), MIRROR) == [State.LATE]
    own = event("broker", "b", 100, 120, {0: 20}, topic_id="here", epoch=7)
    more = event("producer", "q", 0, 1, {0: 20})
    promoted = result([*live(), copied(0, 100, 100), own, more], 120)
    assert MIRROR not in promoted.tiers
