"""The commits of one consumer are stored in the order in which their offsets were chosen."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any
from unittest.mock import create_autospec

import pytest

from klamm.core.client.consumer.audit import ConsumerAudit
from klamm.core.client.consumer.commits import CommitPolicy, Commits
from klamm.core.client.consumer.positions import Positions
from klamm.core.groups.membership.member import Owned
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klammtest.guarantees import guarantee
from klammtest.waiting import PATIENCE_S

PARTITION = TopicPartition("t", 0)


class Member:
    """A group's member that remembers what it stored."""

    group = "g"
    member_id = "m"
    generation = 1

    def __init__(self) -> None:
        self.stored: list[int] = []

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.stored.append(offsets[PARTITION].offset)

    def owned(self) -> dict[TopicPartition, Owned]:
        return {PARTITION: Owned(PARTITION, 0, 1)}

    def committed(self, _: Any) -> dict[TopicPartition, CommittedOffset]:
        return {}

    def start(self) -> None: ...

    def close(self) -> None: ...


class Pausing(Positions):
    """The first automatic commit stops between choosing its offsets and storing them, until the explicit one is done
    or waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen = threading.Event()
        self.go_on = threading.Event()

    def to_commit(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        found = super().to_commit(partitions)
        if not self.chosen.is_set():
            self.chosen.set()
            assert self.go_on.wait(PATIENCE_S)
        return found


def made(positions: Positions) -> tuple[Commits, Member]:
    audit = create_autospec(ConsumerAudit, instance=True)
    member = Member()
    commits = Commits(positions, audit, [], CommitPolicy(False, 1.0, 1.0, lambda: 0))
    commits.follow(member)
    positions.add([Owned(PARTITION, 0, 1)])
    return commits, member


def chosen_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are chosen, then the commit waits for its turn."""
    in_turn = Commits._commit

    def commit(self: Commits, choose: Any) -> None:
        found = choose()
        in_turn(self, lambda: found)

    monkeypatch.setattr(Commits, "_commit", commit)


@guarantee("B7", "an automatic commit stores nothing older than the commit before it", plant=chosen_before_its_turn)
@pytest.mark.parametrize("how", ["timer", "revocation"])
def test_a_stored_commit_does_not_go_back(how: str) -> None:
    positions = Pausing()
    commits, member = made(positions)
    state = positions.states[PARTITION]
    state.move(950)
    automatic = threading.Thread(
        target=commits.commit_confirmed, args=() if how == "timer" else ([PARTITION],), name="automatic"
    )
    automatic.start()
    assert positions.chosen.wait(PATIENCE_S)
    state.move(960)
    explicit = threading.Thread(target=commits.commit_all, name="explicit")
    explicit.start()
    if not commits._lock.locked():  # nothing makes the second wait for the first
        explicit.join(PATIENCE_S)
    positions.go_on.set()
    for thread in (automatic, explicit):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert member.stored == [950, 960]


def test_a_partition_that_was_lost_comes_back_after_the_commits_of_it() -> None:
    """Else what was chosen under the former assignment is stored under the new one, over another member's offsets."""
    positions = Pausing()
    commits, member = made(positions)
    positions.states[PARTITION].move(950)
    automatic = threading.Thread(target=commits.commit_confirmed)
    automatic.start()
    assert positions.chosen.wait(PATIENCE_S)
    order: list[str] = []

    def lose() -> None:
        commits.on_lost([PARTITION])
        order.extend([*map(str, member.stored), "lost"])

    losing = threading.Thread(target=lose)
    losing.start()
    while positions.states:  # it is handed out no more while the commit is under way
        threading.Event().wait(0.005)
    positions.go_on.set()
    for thread in (automatic, losing):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert order == ["950", "lost"]
