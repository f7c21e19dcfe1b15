"""Registry groups when members, sessions and the coordination's server die."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.groups.membership.member import LostOwnershipError, Owned
from klamm.core.groups.membership.registry import RegistryMember, RegistrySettings
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.clients.members import (
    CoordinationSpec,
    Group,
    Ledger,
    MemberProcess,
    offset_store,
    open_coordination,
    write_topic,
)
from klammtest.ports import free_port
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase, ZooKeeperCase

PARTITIONS = {TopicPartition("t", n) for n in range(6)}


@pytest.fixture
def tree(spec: CoordinationSpec) -> Iterator[Coordination]:
    coordination = open_coordination(spec)
    write_topic(coordination, "t", len(PARTITIONS))
    yield coordination
    coordination.close()


@pytest.fixture
def start(spec: CoordinationSpec, tree: Coordination, tmp_path: Path) -> Iterator[Callable[[str], MemberProcess]]:
    started: list[MemberProcess] = []

    def make(name: str) -> MemberProcess:
        started.append(MemberProcess(spec, "g", "t", name, tmp_path))
        return started[-1]

    yield make
    for process in started:
        process.stop()


def shared(processes: list[MemberProcess]) -> bool:
    """All partitions owned, evenly."""
    shares = [process.owned() for process in processes]
    each = len(PARTITIONS) // len(processes)
    return all(len(share) == each for share in shares) and set().union(*shares) == PARTITIONS


def test_three_processes_one_killed(start: Callable[[str], MemberProcess]) -> None:
    a, b, c = start("a"), start("b"), start("c")
    eventually(lambda: shared([a, b, c]), "three share")
    ledger = Ledger()
    b.kill()
    ledger.add("b", "killed")
    eventually(lambda: shared([a, c]), "two share after the session time-out")
    d = start("d")
    eventually(lambda: shared([a, c, d]), "three share again")
    for process in (a, b, c, d):
        ledger.read(process.log, process.name)
    owners = ledger.owners()
    assert owners.keys() == PARTITIONS
    assert set(owners.values()) == {"a", "c", "d"}


def test_a_stopped_process_loses_its_partitions_and_finds_out(start: Callable[[str], MemberProcess]) -> None:
    a, b = start("a"), start("b")
    eventually(lambda: shared([a, b]), "two share")
    a.signal(signal.SIGSTOP)
    eventually(lambda: b.owned() == PARTITIONS, "the other has all")
    a.signal(signal.SIGCONT)
    eventually(lambda: '"lost"' in a.log.read_text(), "it finds out")
    eventually(lambda: shared([a, b]), "two share again")


class _Owner:
    """A member whose session a test ends, and what it is told."""

    def __init__(self, case: CoordinationCase) -> None:
        self.coordination = case.open()
        self.store = offset_store(self.coordination)
        self.events: list[tuple[str, set[TopicPartition]]] = []
        settings = RegistrySettings("g", {"t": 1}, backoff_s=0.2)
        self.member = RegistryMember(self.coordination, self.store, settings, self)
        self.member.start()

    def on_assigned(self, owned: Collection[Owned]) -> None:
        self.events.append(("assigned", {o.partition for o in owned}))

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.events.append(("revoked", set(partitions)))

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.events.append(("lost", set(partitions)))

    def on_error(self, error: Exception) -> None:
        self.events.append((str(error), set()))


def test_an_expired_session_loses_everything_and_joins_anew(coordination_case: CoordinationCase) -> None:
    write_topic(coordination_case.open(), "t", len(PARTITIONS))
    owner = _Owner(coordination_case)
    eventually(lambda: owner.member.owned().keys() == PARTITIONS, "owned")
    name, epochs = owner.member.member_id, {o.epoch for o in owner.member.owned().values()}
    coordination_case.expire(owner.coordination)
    eventually(lambda: len(owner.events) == 3 and owner.member.owned(), "lost and assigned again")
    assert [kind for kind, _ in owner.events] == ["assigned", "lost", "assigned"]
    assert owner.member.member_id != name
    assert min(o.epoch for o in owner.member.owned().values()) > max(epochs)
    assert owner.coordination.children(paths.group_ids("g")) == [owner.member.member_id]
    owner.member.commit({p: CommittedOffset(3) for p in PARTITIONS})
    owner.member.close()


def test_a_commit_in_an_expired_session_is_refused(coordination_case: CoordinationCase) -> None:
    other = coordination_case.open()
    write_topic(other, "t", len(PARTITIONS))
    owner = _Owner(coordination_case)
    eventually(lambda: owner.member.owned().keys() == PARTITIONS, "owned")
    claims = owner.member._claims
    assert claims is not None
    guards = claims.guards(PARTITIONS)
    coordination_case.expire(owner.coordination)
    eventually(lambda: len(owner.events) == 3 and owner.member.owned(), "assigned again")
    # What a process that slept through its expiry would send: the same paths exist, the registration does not.
    with pytest.raises(Exception, match="ids/"):
        offset_store(other).commit("g", {p: CommittedOffset(9) for p in PARTITIONS}, guards)
    assert offset_store(other).fetch("g") == {}
    owner.member.close()
    with pytest.raises(LostOwnershipError):
        owner.member.commit({next(iter(PARTITIONS)): CommittedOffset(9)})


def test_a_restart_of_zookeeper_loses_no_partition_for_good(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper", free_port()) as server:
        case = ZooKeeperCase(server)
        spec = {
            "plugin": "zookeeper",
            "config": {"zookeeper.connect": case._connect, "zookeeper.session.timeout.ms": 10_000},
        }
        tree = open_coordination(spec)
        write_topic(tree, "t", len(PARTITIONS))
        group = Group(spec, "g", {"t": 1})
        group.join("a")
        group.join("b")
        group.await_settled(sorted(PARTITIONS))
        server.kill()
        server.start()
        group.await_settled(sorted(PARTITIONS))
        group.join("c")
        group.await_settled(sorted(PARTITIONS))
        for member, _, _ in group.members.values():
            eventually(lambda member=member: _commits(member), "commits are taken again")
        group.close()
        tree.close()


def _commits(member: RegistryMember) -> bool:
    try:
        member.commit({p: CommittedOffset(1) for p in member.owned()})
    except LostOwnershipError:
        return False
    return True
