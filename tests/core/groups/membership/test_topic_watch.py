"""The changes of topics that the leader of a classic group notices, and the times of its requests, with a fake
clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.groups.membership.topic_watch import TopicPartitions, TopicWatch

MAX_AGE_S = 300.0
OLD, NEW = UUID(int=1), UUID(int=2)


def partitions(count: int, topic_id: UUID | None = OLD) -> TopicPartitions:
    return TopicPartitions(tuple(range(count)), topic_id)


@dataclass
class World:
    """A cluster, its clock, and the requests that were sent."""

    topics: dict[str, TopicPartitions] = field(default_factory=lambda: {"a": partitions(2), "b": partitions(3)})
    max_age_s: float = MAX_AGE_S
    now: float = 50.0
    away: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = TopicWatch(self._read, self.max_age_s, lambda failures: min(0.1 * failures, 1.0), lambda: self.now)

    def _read(self, names: Collection[str], timeout_s: float | None) -> Mapping[str, TopicPartitions]:
        self.asked.append(tuple(sorted(names)))
        if self.away:
            raise BrokerError(ErrorCode.broker_not_available, "planted")
        return {name: self.topics[name] for name in names if name in self.topics}

    def looks(self, seconds: float) -> list[bool]:
        """Returns the result of each request in this time; the member's thread waits exactly as long as `wait_s`
        says.
        """
        said, end = [], self.now + seconds
        while (wait_s := self.watch.wait_s(60.0)) <= end - self.now:
            self.now += wait_s
            before = len(self.asked)
            changed = self.watch.changed()
            if len(self.asked) > before:
                said.append(changed)
        self.now = end
        return said


def test_nobody_looks_before_an_assignment_nor_after_the_leadership() -> None:
    world = World()
    assert world.looks(10 * MAX_AGE_S) == []
    assert world.watch.read(["a"]) == {"a": (0, 1)}
    world.watch.stop()
    world.topics["a"] = partitions(5)
    assert world.looks(10 * MAX_AGE_S) == []
    assert world.asked == [("a",)]


def test_topics_are_asked_for_at_their_maximum_age() -> None:
    world = World()
    world.watch.read(["a", "b"])
    assert world.looks(3 * MAX_AGE_S + 1) == [False] * 3
    assert world.asked == [("a", "b")] * 4


@pytest.mark.parametrize(
    "change",
    [{"a": partitions(4)}, {"a": partitions(1, NEW)}, {"a": partitions(2, NEW)}, {"a": None}],
    ids=["more", "recreated with fewer", "recreated alike", "deleted"],
)
def test_a_change_is_seen_until_it_is_assigned(change: dict[str, TopicPartitions | None]) -> None:
    world = World()
    world.watch.read(["a", "b"])
    world.topics = {name: found for name, found in {**world.topics, **change}.items() if found is not None}
    assert world.looks(MAX_AGE_S) == [True]
    assert world.looks(MAX_AGE_S)[-1], "the member could not join again yet"
    world.watch.read(["a", "b"])
    assert not any(world.looks(MAX_AGE_S))


def test_a_broker_that_gives_no_topic_ids_says_nothing_of_them() -> None:
    world = World()
    world.watch.read(["a"])
    world.topics["a"] = partitions(2, None)
    assert world.looks(MAX_AGE_S) == [False]


def test_an_absent_topic_is_asked_for_with_the_back_off_until_it_is_there() -> None:
    world = World()
    assert world.watch.read(["a", "late"]) == {"a": (0, 1)}
    said = world.looks(60)
    assert not any(said)
    assert 50 < len(said) < 70, "once in a second in the long run"
    world.topics["late"] = partitions(1)
    assert world.looks(1.0) == [True]
    world.watch.read(["a", "late"])
    assert world.looks(MAX_AGE_S) == [False]


def test_a_failed_request_is_no_change_and_is_sent_again() -> None:
    world = World()
    world.watch.read(["a"])
    world.away = True
    said = world.looks(MAX_AGE_S + 60)
    assert not any(said)
    assert 50 < len(said) < 70
    world.away = False
    world.topics["a"] = partitions(3)
    assert world.looks(1.0) == [True]


def test_looks_are_a_back_off_apart_however_short_the_maximum_age_is() -> None:
    world = World(max_age_s=0.001)
    world.watch.read(["a"])
    assert 90 <= len(world.looks(10)) <= 101
