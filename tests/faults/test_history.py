"""The history checker finds each kind of planted anomaly, and none in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.core.records.partition import TopicPartition
from klammtest.history import Commit, History, Leadership, Outcome, Ownership, Poll, Send, check

TP = TopicPartition("t", 0)
Stored = list[tuple[int, str | int]]


def right() -> tuple[History, Stored]:
    history = History()
    for i in range(6):
        history.send(TP, Send("p", f"v{i}", Outcome.OK, i))
    history.send(TP, Send("p", "maybe", Outcome.UNKNOWN))
    history.send(TP, Send("p", "refused", Outcome.FAIL))
    stored: Stored = [(i, f"v{i}") for i in range(6)] + [(6, "maybe")]
    history.polled(TP, [Poll("c", o, v) for o, v in stored])
    history.commit(TP, Commit("g", 3, Outcome.OK))
    history.commit(TP, Commit("g", 2, Outcome.FAIL))
    history.commit(TP, Commit("g", 7, Outcome.OK))
    history.owned(TP, Ownership("m1", 1, 0.0, 5.0))
    history.owned(TP, Ownership("m2", 2, 5.0, 9.0))
    history.led(TP, Leadership(0, 1))
    history.high_watermark(TP, 3)
    history.high_watermark(TP, 7)
    return history, stored


def test_a_right_history_has_no_anomaly() -> None:
    history, stored = right()
    verdict = check(history, {TP: stored})
    assert not verdict.anomalies
    assert (verdict.acknowledged, verdict.unknown) == (6, 1)
    assert verdict.line("x", 2) == "campaign x injected 2 acknowledged 6 lost 0 duplicated 0 reordered 0"


def test_an_unknown_record_may_be_absent() -> None:
    history, stored = right()
    history.partitions[TP].polls.pop()
    assert not check(history, {TP: stored[:-1]}).anomalies


def swap(history: History, stored: Stored) -> None:
    stored[1], stored[2] = (1, "v2"), (2, "v1")


PLANTS: dict[str, Callable[[History, Stored], object]] = {
    "lost": lambda h, s: s.pop(3),
    "duplicated": lambda h, s: s.append((7, "v1")),
    "phantom": lambda h, s: s.append((7, "refused")),
    "reordered": swap,
    "offset": lambda h, s: h.polled(TP, [Poll("c", 2, "v5")]),
    "skipped": lambda h, s: h.partitions[TP].polls.pop(2),
    "commit-back": lambda h, s: h.commit(TP, Commit("g", 1, Outcome.OK)),
    "two-owners": lambda h, s: h.owned(TP, Ownership("m3", 2, 4.0, 6.0)),
    "two-leaders": lambda h, s: h.led(TP, Leadership(1, 1)),
    "high-watermark-fell": lambda h, s: h.high_watermark(TP, 2),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_each_planted_anomaly_is_found(kind: str) -> None:
    history, stored = right()
    PLANTS[kind](history, stored)
    verdict = check(history, {TP: stored})
    assert verdict.count(kind) > 0, verdict.anomalies
