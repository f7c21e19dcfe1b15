"""The consumer tier of the audit counts each returned run once, small runs together, before any other call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.consumer.audit import ConsumerAudit
from klamm.core.interfaces.audit import Audit
from klamm.core.records.decode import Columns, RecordColumns
from klamm.core.records.partition import TopicPartition

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


class Ranges:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.fails = False

    def start(self, partition: TopicPartition, committed: int, *, reset: bool, **_: object) -> None:
        self.told.append(("start", partition, committed, reset))

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        self.told.append(("begin", *partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.told.append(("seek", partition, offset))

    def count(
        self, partition: TopicPartition, offsets: Sequence[int], stamps: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.told.append(("count", partition, list(offsets), list(stamps), list(sizes)))
        if self.fails:
            raise RuntimeError("no")

    def publish(self, to: Mapping[TopicPartition, int]) -> None:
        self.told.append(("publish", dict(to)))

    def committed(self, to: Mapping[TopicPartition, int]) -> None:
        self.told.append(("committed", dict(to)))

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        self.told.append(("stop", *partitions))

    def close(self) -> None:
        self.told.append(("close",))


class Auditing:
    topic = "__audit"

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges

    def audits(self, topic: str) -> bool:
        return topic == "flights"

    def ranges(self, *_: object) -> Ranges:
        return self._ranges


class Ids:
    def topic_ids(self, topics: Iterable[str]) -> dict[str, uuid.UUID]:
        return dict.fromkeys(topics, uuid.UUID(int=1))


@pytest.fixture
def ranges() -> Ranges:
    return Ranges()


@pytest.fixture
def audit(ranges: Ranges) -> ConsumerAudit:
    return ConsumerAudit(
        cast("Audit", Auditing(ranges)), cast("ClusterClient", Ids()), "g", "app", lambda _: 1, lambda: 1
    )


def run(*offsets: int, value: bytes = b"ab") -> RecordColumns:
    count = len(offsets)
    return RecordColumns(list(offsets), [o * 10 for o in offsets], [b"k"] * count, [value] * count, [()] * count)


def returned(audit: ConsumerAudit, partition: TopicPartition, columns: Columns) -> None:
    done = audit.prepare(partition, columns)
    assert done is not None
    done()


def test_runs_are_counted_together_before_the_next_call(audit: ConsumerAudit, ranges: Ranges) -> None:
    returned(audit, P0, run(0, 1))
    returned(audit, P1, run(7))
    returned(audit, P0, run(2, 3))
    assert ranges.told == []
    audit.publish({P0: 4})
    assert ranges.told == [
        ("count", P0, [0, 1, 2, 3], [0, 10, 20, 30], [3, 3, 3, 3]),
        ("count", P1, [7], [70], [3]),
        ("publish", {P0: 4}),
    ]


def test_runs_with_gaps_keep_their_offsets(audit: ConsumerAudit, ranges: Ranges) -> None:
    returned(audit, P0, run(0, 2))
    returned(audit, P0, run(5, 6))
    audit.seek(P0, 0)
    assert ranges.told == [("count", P0, [0, 2, 5, 6], [0, 20, 50, 60], [3] * 4), ("seek", P0, 0)]


def test_a_run_that_is_returned_again_is_not_joined(audit: ConsumerAudit, ranges: Ranges) -> None:
    """The auditor recognizes offsets that it has counted by where a call begins."""
    for offsets in ((0, 1), (0, 1), (2, 3), (3, 4)):
        returned(audit, P0, run(*offsets))
    audit.publish({P0: 5})
    assert [what[2] for what in ranges.told[:-1]] == [[0, 1], [0, 1, 2, 3], [3, 4]]


@pytest.mark.parametrize(
    "tell",
    [
        lambda audit: audit.committed({P0: 1}),
        lambda audit: audit.stop([P0]),
        lambda audit: audit.start({P0: 9}),
        lambda audit: audit.close(),
    ],
    ids=["committed", "stop", "start", "close"],
)
def test_whatever_is_told_comes_after_the_counts(
    audit: ConsumerAudit, ranges: Ranges, tell: Callable[[Any], None]
) -> None:
    returned(audit, P0, run(0))
    tell(audit)
    first, *_ = ranges.told
    assert first[0] == "count"


def test_an_auditor_learns_which_partitions_begin_without_a_commit(audit: ConsumerAudit, ranges: Ranges) -> None:
    audit.start({P0: 9, P1: 3}, [P1])
    assert ranges.told == [("start", P0, 9, False), ("start", P1, 3, True), ("begin", P0, P1)]


def test_so_many_runs_wait_at_most(audit: ConsumerAudit, ranges: Ranges) -> None:
    for offset in range(200):
        returned(audit, P0, run(offset))
    assert [len(cast("list[int]", what[2])) for what in ranges.told] == [64, 64, 64]


def test_a_large_run_does_not_wait(audit: ConsumerAudit, ranges: Ranges) -> None:
    returned(audit, P0, run(*range(5000)))
    assert [what[0] for what in ranges.told] == ["count"]


def test_an_auditor_that_raises_is_asked_once_for_a_run(audit: ConsumerAudit, ranges: Ranges) -> None:
    ranges.fails = True
    returned(audit, P0, run(0))
    returned(audit, P1, run(0))
    audit.publish({P0: 1})
    audit.publish({P0: 1})
    assert [what[0] for what in ranges.told] == ["count", "count", "publish", "publish"]
    assert audit.errors == 2


def test_a_run_without_records_is_not_counted(audit: ConsumerAudit) -> None:
    assert audit.prepare(P0, run()) is None


def test_topics_that_are_not_audited_cost_nothing(audit: ConsumerAudit) -> None:
    assert audit.prepare(TopicPartition("other", 0), run(0)) is None
