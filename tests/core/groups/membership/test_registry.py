"""The paper's groups on both coordinations: who owns what is even, and never double."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.groups.membership.member import LostOwnershipError
from klamm.core.groups.membership.registry import RegistrySettings
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klammtest.clients.members import CoordinationSpec, Group, delete_topic, open_coordination, write_topic
from klammtest.waiting import eventually

PARTITIONS = [TopicPartition("t", n) for n in range(8)]


@pytest.fixture
def tree(spec: CoordinationSpec) -> Iterator[Coordination]:
    coordination = open_coordination(spec)
    write_topic(coordination, "t", len(PARTITIONS))
    yield coordination
    coordination.close()


@pytest.fixture
def group(spec: CoordinationSpec, tree: Coordination) -> Iterator[Group]:
    made = Group(spec, "g", {"t": 1})
    yield made
    made.close()


def test_partitions_move_as_members_come_and_go(group: Group, tree: Coordination) -> None:
    first = group.join("a")
    group.await_settled(PARTITIONS)
    epochs = {p: owned.epoch for p, owned in first.owned().items()}
    group.join("b")
    group.await_settled(PARTITIONS)
    kept = first.owned()
    assert all(kept[p].epoch == epochs[p] for p in kept), "what stays is kept without a new claim"
    group.join("c")
    group.await_settled(PARTITIONS)
    group.leave("b")
    group.await_settled(PARTITIONS)
    names = tree.children(paths.group_ids("g"))
    assert sorted(m.member_id for m, _, _ in group.members.values()) == names
    group.close()
    assert group.ledger.owners() == {}
    assert tree.children(paths.group_owners("g") + "/t") == []


def test_new_partitions_and_new_topics_are_taken_up(spec: CoordinationSpec, tree: Coordination) -> None:
    group = Group(spec, "g2", {"t": 2, "later": 1})
    group.join("a")
    group.join("b")
    group.await_settled(PARTITIONS)
    more = [TopicPartition("t", n) for n in range(12)]
    write_topic(tree, "t", 12)
    group.await_settled(more)
    write_topic(tree, "later", 2)
    group.await_settled([*more, TopicPartition("later", 0), TopicPartition("later", 1)])
    streams = {o.stream for m, _, _ in group.members.values() for p, o in m.owned().items() if p.topic == "t"}
    assert streams == {0, 1}
    delete_topic(tree, "later")
    group.await_settled(more)
    group.close()


def test_a_storm_of_joins_and_leaves_settles_and_never_doubles(group: Group) -> None:
    chance = random.Random(5)
    alive: list[str] = []
    for turn in range(24):
        if alive and (chance.random() < 0.4 or len(alive) > 5):
            group.leave(alive.pop(chance.randrange(len(alive))))
        else:
            alive.append(f"m{turn}")
            group.join(alive[-1], dwell_s=chance.choice([0.0, 0.0, 0.05]))
        time.sleep(chance.random() * 0.05)
    group.await_settled(PARTITIONS)
    changes = sum(member.rebalances for member, _, _ in group.members.values())
    assert changes <= 24 * len(group.members), "each member changes at most once for each join and leave"
    assert all(not recorder.errors for _, _, recorder in group.members.values())


def test_commits_of_owners_are_taken_and_of_lost_owners_refused(group: Group, tree: Coordination) -> None:
    first = group.join("a")
    group.await_settled(PARTITIONS)
    first.commit({p: CommittedOffset(5, metadata="m") for p in PARTITIONS})
    assert first.committed(PARTITIONS)[PARTITIONS[0]].offset == 5
    group.join("b")
    group.await_settled(PARTITIONS)
    lost = next(p for p in PARTITIONS if p not in first.owned())
    kept = next(iter(first.owned()))
    with pytest.raises(LostOwnershipError, match=str(lost)):
        first.commit({lost: CommittedOffset(7), kept: CommittedOffset(7)})
    first.commit({kept: CommittedOffset(6)})
    stored = first.committed([lost, kept])
    assert (stored[lost].offset, stored[kept].offset) == (5, 6)


def test_a_commit_is_refused_when_the_claim_is_gone_though_the_member_does_not_know(
    group: Group, tree: Coordination
) -> None:
    member = group.join("a")
    group.await_settled(PARTITIONS)
    tree.delete(paths.group_member("g", member.member_id))
    with pytest.raises(LostOwnershipError, match="lost to another member"):
        member.commit({PARTITIONS[0]: CommittedOffset(1)})
    eventually(lambda: len(tree.children(paths.group_ids("g"))) == 1, "registered again")
    group.await_settled(PARTITIONS)
    member.commit({PARTITIONS[0]: CommittedOffset(1)})


def test_an_owner_that_does_not_let_go_is_told_and_waited_for(group: Group, tree: Coordination) -> None:
    stranger = paths.partition_owner("g", "t", 3)
    tree.create(stranger, b"somebody", ephemeral=True, make_parents=True)
    group.settings = RegistrySettings("g", {"t": 1}, retries=2, backoff_s=0.5)
    member = group.join("a")
    errors = group.members["a"][2].errors
    eventually(lambda: errors, "it says so")
    assert "still owned by others: t-3 after" in str(errors[0])
    assert member.owned() == {}, "a claim is all or nothing"
    tree.delete(stranger)
    group.await_settled(PARTITIONS)


def test_tries_outlast_the_session() -> None:
    settings = RegistrySettings("g", {"t": 1}, retries=2, backoff_s=0.5)
    assert settings.tries(6.0) * settings.backoff_s > 6.0
    assert RegistrySettings("g", {"t": 1}).tries(6.0) == 10


@pytest.mark.parametrize("count", [2, 8])
def test_settling_is_printed(
    spec: CoordinationSpec, tree: Coordination, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_topic(tree, "wide", 32)
    partitions = [TopicPartition("wide", n) for n in range(32)]
    group = Group(spec, f"settle{count}", {"wide": 1})
    start = time.monotonic()
    for number in range(count):
        group.join(f"m{number}")
    group.await_settled(partitions)
    joined = time.monotonic() - start
    rebalances = sum(member.rebalances for member, _, _ in group.members.values())
    start = time.monotonic()
    group.leave("m0")
    group.await_settled(partitions)
    left = time.monotonic() - start
    with capsys.disabled():
        print(
            f"\nregistry group on {spec['plugin']}, {count} members, 32 partitions: settled {joined:.2f} s after the "
            f"first join in {rebalances} changes of assignment; {left:.2f} s after a leave"
        )
    group.close()
