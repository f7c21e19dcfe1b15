"""`klamm cluster drain` and `reassign` beside what others do meanwhile, with a cluster scripted poll by poll."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.core.cli.admin import cluster as commands
from klamm.core.cli.admin import moves
from klamm.core.client.cluster_admin import LogDirectory, OngoingReassignment
from klamm.core.client.cluster_client import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigEntry
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.network.metadata import ClusterView, Node, PartitionView, TopicView
from klamm.core.config.section import ConfigSource
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.records.partition import TopicPartition

Klamm = Callable[..., Any]
ORDERS = TopicPartition("orders", 0)


@dataclass
class ScriptedCluster:
    """Stands for `ClusterAdmin`. `steps` run one by one, each before an answer that the progress
    of moves is read from; the last one again and again."""

    live: set[int] = field(default_factory=lambda: {0, 1, 2})
    replicas: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    isr: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    ongoing: dict[TopicPartition, OngoingReassignment] = field(default_factory=dict)
    steps: list[Callable[[], object]] = field(default_factory=list)
    polls: int = 0

    def __post_init__(self) -> None:
        self.client = ScriptedClient(self)

    # -- what the script does

    def begin(self, tp: TopicPartition, target: tuple[int, ...]) -> None:
        before = self.ongoing[tp].target if tp in self.ongoing else self.replicas[tp]
        adding = tuple(replica for replica in target if replica not in before)
        removing = tuple(replica for replica in self.replicas[tp] if replica not in target)
        self.replicas[tp] = target + removing
        self.ongoing[tp] = OngoingReassignment(self.replicas[tp], adding, removing)

    def end(self, tp: TopicPartition = ORDERS) -> None:
        if tp in self.ongoing:
            self.replicas[tp] = self.isr[tp] = self.ongoing.pop(tp).target

    def cancel(self, tp: TopicPartition = ORDERS) -> None:
        if tp in self.ongoing:
            found = self.ongoing.pop(tp)
            self.replicas[tp] = tuple(replica for replica in found.replicas if replica not in found.adding)

    def delete(self, tp: TopicPartition = ORDERS) -> None:
        for held in (self.ongoing, self.replicas, self.isr):
            held.pop(tp, None)

    # -- what the commands ask

    def view(self) -> ClusterView:
        topics: dict[str, dict[int, PartitionView]] = {}
        for tp, replicas in self.replicas.items():
            isr = self.isr.get(tp, replicas)
            leader = next((member for member in isr if member in self.live), -1)
            topics.setdefault(tp.topic, {})[tp.partition] = PartitionView(leader, 0, replicas, isr)
        views = {name: TopicView(name, ErrorCode.none, partitions) for name, partitions in topics.items()}
        return ClusterView(
            nodes={broker: Node(broker, "127.0.0.1", 9092 + broker) for broker in self.live}, topics=views
        )

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        if partitions is None:
            return dict(self.ongoing)
        self.polls += 1
        assert self.polls < 100, "the command does not end"
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        step()
        return {tp: found for tp, found in self.ongoing.items() if tp in partitions}

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, BrokerError]:
        for tp, target in targets.items():
            assert target is not None
            self.begin(tp, target)
        return {}

    def log_directory(self, broker: int, partitions: object = None) -> LogDirectory:
        return LogDirectory("/data", {})


@dataclass
class ScriptedClient:
    """Stands for `ClusterClient`. `configs`: what is set, by the name of a topic or a broker; `unreachable`: names of
    those whose change fails."""

    admin: ScriptedCluster
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)

    @property
    def cluster(self) -> SimpleNamespace:
        return SimpleNamespace(view=self.admin.view())

    def metadata(self) -> ClusterView:
        return self.admin.view()

    def describe_configs(self, name: str, *, resource: int = TOPIC_RESOURCE) -> dict[str, ConfigEntry]:
        found = self.configs.get(name, {})
        own = ConfigSource.DYNAMIC_BROKER if resource == BROKER_RESOURCE else ConfigSource.TOPIC
        names = moves._RATES if resource == BROKER_RESOURCE else moves._REPLICAS
        return {
            key: ConfigEntry(key, found.get(key), own if key in found else ConfigSource.DEFAULT, False, False)
            for key in names
        }

    def alter_configs(self, name: str, changes: Mapping[str, str | None], *, resource: int = TOPIC_RESOURCE) -> None:
        if name in self.unreachable:
            raise ConnectionFailedError(f"{name} does not answer")
        if resource == TOPIC_RESOURCE and name not in {tp.topic for tp in self.admin.replicas}:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
        changed = {**self.configs.get(name, {}), **changes}
        self.configs[name] = {key: value for key, value in changed.items() if value is not None}


def wait() -> None:
    """A step in which nothing happens."""


def in_turn(*calls: Callable[[], object]) -> Callable[[], None]:
    """Returns one step of several."""

    def step() -> None:
        for call in calls:
            call()

    return step


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(replicas={ORDERS: (1,)}, isr={ORDERS: (1,)})

    @contextmanager
    def client(*_: object) -> Iterator[ScriptedClient]:
        yield made.client

    monkeypatch.setattr(commands, "cluster_client", client)
    monkeypatch.setattr(commands, "_admin", lambda _: made)
    monkeypatch.setattr(moves, "_POLL_S", 0.001)
    return made


def test_a_drain_waits_for_moves_that_have_begun(klamm: Klamm, scripted: ScriptedCluster) -> None:
    """As after Ctrl-C during a drain: broker 1 has the only copy until the move that it began ends."""
    scripted.begin(ORDERS, (0,))
    scripted.steps = [wait, wait, scripted.end]
    done = klamm("cluster", "drain", "1", "--dry-run")
    assert (done.status, done.out) == (0, "1 move off broker 1 in progress: orders-0\n")
    done = klamm("cluster", "drain", "1")
    assert (scripted.polls, scripted.replicas[ORDERS]) == (3, (0,))
    assert (done.status, done.out.splitlines()[-1]) == (0, "broker 1 has no replicas: it can be stopped")


def test_a_drain_of_a_dead_broker_waits_for_moves_that_have_begun(klamm: Klamm, scripted: ScriptedCluster) -> None:
    scripted.live = {0, 2}
    scripted.replicas[ORDERS], scripted.isr[ORDERS] = (1, 2), (2,)
    scripted.begin(ORDERS, (0, 2))
    scripted.steps = [wait, scripted.end]
    done = klamm("cluster", "drain", "1")
    assert (done.status, done.out.splitlines()[-1]) == (0, "broker 1 has no replicas: it can be stopped")


def test_a_move_that_ends_while_the_cluster_is_read_is_not_moved_again(
    klamm: Klamm, scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.begin(ORDERS, (0,))
    view = scripted.view

    def view_and_end() -> ClusterView:
        shown = view()
        scripted.end()
        return shown

    monkeypatch.setattr(scripted, "view", view_and_end)
    scripted.steps = [wait]
    done = klamm("cluster", "drain", "1")
    assert (scripted.replicas[ORDERS], done.status) == ((0,), 0)
    assert done.out.splitlines()[0] == "1 move off broker 1 in progress: orders-0"


def test_moves_that_have_begun_count_among_those_at_a_time(klamm: Klamm, scripted: ScriptedCluster) -> None:
    others = [TopicPartition("orders", number) for number in (1, 2, 3)]
    for tp in (*others, TopicPartition("orders", 4)):
        scripted.replicas[tp] = scripted.isr[tp] = (1,)
    for tp in (ORDERS, *others):
        scripted.begin(tp, (0,))
    most: list[int] = []

    def end_one() -> None:
        most.append(len(scripted.ongoing))
        scripted.end(next(iter(scripted.ongoing)))

    scripted.steps = [end_one]
    done = klamm("cluster", "drain", "1", "--moves", "2")
    assert (done.status, most) == (0, [4, 3, 2, 2, 1])


def test_a_drain_whose_broker_got_a_replica_meanwhile_fails(klamm: Klamm, scripted: ScriptedCluster) -> None:
    late = TopicPartition("late", 0)

    def begin_another() -> None:
        scripted.end()
        scripted.replicas[late] = scripted.isr[late] = (2,)
        scripted.begin(late, (1,))

    scripted.steps = [begin_another]
    done = klamm("cluster", "drain", "1")
    assert (done.status, done.err) == (
        1,
        "klamm: broker 1 still has replicas, or got new ones: late-0; drain it again\n",
    )


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        (ScriptedCluster.cancel, "its reassignment was cancelled, or another one followed; it has 1"),
        (ScriptedCluster.delete, "its topic was deleted"),
        (lambda made: made.begin(ORDERS, (2, 1)), "another reassignment, to 2,1, has followed"),
        (
            lambda made: in_turn(lambda: made.begin(ORDERS, (2,)), made.end)(),
            "its reassignment was cancelled, or another one followed; it has 2",
        ),
    ],
)
def test_a_reassignment_that_others_ended_is_no_success(
    klamm: Klamm, scripted: ScriptedCluster, meanwhile: Callable[[ScriptedCluster], object], why: str
) -> None:
    other = TopicPartition("other", 0)
    scripted.replicas[other] = scripted.isr[other] = (2,)
    scripted.steps = [wait, in_turn(lambda: meanwhile(scripted), lambda: scripted.end(other)), wait]
    done = klamm("cluster", "reassign", "orders:0=0", "other:0=0")
    assert (done.status, done.out.splitlines()[-1]) == (1, "other-0: reassigned")
    assert done.err == f"klamm: orders-0 does not have the replicas 0: {why}\n"


def test_a_drain_whose_move_was_cancelled_fails(klamm: Klamm, scripted: ScriptedCluster) -> None:
    scripted.begin(ORDERS, (0,))
    scripted.steps = [wait, scripted.cancel]
    done = klamm("cluster", "drain", "1")
    why = "its reassignment was cancelled, or another one followed; it has 1"
    assert (done.status, done.err) == (1, f"klamm: orders-0 does not have the replicas 0: {why}\n")
    assert "it can be stopped" not in done.out


def test_a_broker_that_is_behind_is_asked_again(
    klamm: Klamm, scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = scripted.view
    late: list[int] = []

    def old_view() -> ClusterView:
        if scripted.ongoing or not scripted.polls or len(late) == 2:
            return view()
        late.append(1)
        scripted.replicas[ORDERS] = (0, 1)
        shown = view()
        scripted.replicas[ORDERS] = (0,)
        return shown

    monkeypatch.setattr(scripted, "view", old_view)
    scripted.steps = [scripted.end]
    done = klamm("cluster", "reassign", "orders:0=0")
    assert (done.status, done.out.splitlines()[-1]) == (0, "1 partition reassigned")
    assert len(late) == 2


@pytest.mark.parametrize(
    ("replicas", "isr", "words"),
    [
        ((1,), (1,), "waits for broker 1, which is not running and has the only copy: start it"),
        ((1, 2), (1,), "waits for broker 1, which is not running: no live replica is in sync; start it"),
        ((1, 3), (1, 3), "waits for broker 1 or 3, which are not running: no live replica is in sync; start them"),
        ((1, 2), (), "waits for a replica in sync: there is none"),
    ],
)
def test_a_move_without_a_live_replica_in_sync_says_what_it_waits_for(
    klamm: Klamm, scripted: ScriptedCluster, replicas: tuple[int, ...], isr: tuple[int, ...], words: str
) -> None:
    scripted.live = {0, 2}
    scripted.replicas[ORDERS], scripted.isr[ORDERS] = replicas, isr

    def come_back() -> None:
        scripted.live = {0, 1, 2}
        scripted.end()

    scripted.steps = [wait, wait, come_back]
    done = klamm("cluster", "drain", "1")
    assert (done.status, done.err) == (0, f"klamm: orders-0 {words}\n"), "once"


def test_partitions_that_wait_for_the_same_broker_share_a_line(klamm: Klamm, scripted: ScriptedCluster) -> None:
    scripted.live = {0, 2}
    every = [TopicPartition("orders", number) for number in range(5)]
    for tp in every:
        scripted.replicas[tp] = scripted.isr[tp] = (1,)
    scripted.steps = [wait, *(partial(scripted.end, tp) for tp in every), wait]
    done = klamm("cluster", "drain", "1")
    who = "orders-0, orders-1, orders-2 and 2 more wait for broker 1"
    assert (done.status, done.err) == (0, f"klamm: {who}, which is not running and has the only copy: start it\n")


def test_a_move_to_a_broker_that_went_away_says_so(klamm: Klamm, scripted: ScriptedCluster) -> None:
    def leave() -> None:
        scripted.live = {1, 2}

    scripted.steps = [leave, wait, scripted.end]
    done = klamm("cluster", "reassign", "orders:0=0")
    assert (done.status, done.err) == (
        0,
        "klamm: broker 0 is offline: moves to it wait until it is back; --cancel ends them\n",
    )


RATES = "leader.replication.throttled.rate,follower.replication.throttled.rate"


def test_a_throttle_is_set_while_partitions_move(klamm: Klamm, scripted: ScriptedCluster) -> None:
    configs = scripted.client.configs
    configs |= {"0": {moves._RATES[0]: "7"}, "orders": {moves._REPLICAS[0]: "0:1"}}
    before = {name: dict(own) for name, own in configs.items()}
    seen: list[dict[str, dict[str, str]]] = []
    scripted.steps = [lambda: seen.append(dict(configs)), scripted.end]
    assert klamm("cluster", "reassign", "orders:0=0", "--throttle", "1000").status == 0
    rates, every = dict.fromkeys(moves._RATES, "1000"), dict.fromkeys(moves._REPLICAS, "*")
    assert seen == [{"0": rates, "1": rates, "2": rates, "orders": every}]
    assert {name: own for name, own in configs.items() if own} == before


def test_a_throttle_that_cannot_be_removed_hides_no_other(klamm: Klamm, scripted: ScriptedCluster) -> None:
    other = TopicPartition("other", 0)
    scripted.replicas[other] = scripted.isr[other] = (1,)
    scripted.client.configs["0"] = {moves._RATES[1]: "7"}

    def lose() -> None:
        scripted.client.unreachable = {"0", "other"}
        scripted.end()
        scripted.end(other)

    scripted.steps = [lose]
    done = klamm("cluster", "reassign", "orders:0=0", "other:0=0", "--throttle", "1000")
    assert (done.status, done.out.splitlines()[-1]) == (1, "2 partitions reassigned")
    assert done.err.splitlines() == [
        "klamm: broker 0 keeps its throttle (0 does not answer); when it is back, remove it with: "
        "kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --entity-type brokers --entity-name 0 --alter "
        "--delete-config leader.replication.throttled.rate --add-config follower.replication.throttled.rate=7",
        "klamm: topic 'other' keeps its throttle (other does not answer); remove it with: klamm topics alter other "
        "--unset leader.replication.throttled.replicas --unset follower.replication.throttled.replicas",
    ]
    assert {name for name, own in scripted.client.configs.items() if own} == {"0", "other"}


def test_a_throttle_that_is_refused_is_not_set(
    klamm: Klamm, scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, changes: Mapping[str, str | None], *, resource: int = TOPIC_RESOURCE) -> None:
        if name == "1":
            raise BrokerError(ErrorCode.cluster_authorization_failed, "broker 1")
        alter(name, changes, resource=resource)

    alter = scripted.client.alter_configs
    monkeypatch.setattr(scripted.client, "alter_configs", refuse)
    done = klamm("cluster", "reassign", "orders:0=0", "--throttle", "1000")
    assert (done.status, done.err) == (1, "klamm: CLUSTER_AUTHORIZATION_FAILED: broker 1\n")
    assert not any(scripted.client.configs.values())


def test_a_deleted_topic_has_no_throttle_to_remove(klamm: Klamm, scripted: ScriptedCluster) -> None:
    scripted.steps = [scripted.delete]
    done = klamm("cluster", "reassign", "orders:0=0", "--throttle", "1000")
    assert (done.status, done.err) == (
        1,
        "klamm: orders-0 does not have the replicas 0: its topic was deleted\n",
    )
    assert not any(own for name, own in scripted.client.configs.items() if name != "orders")


def test_a_drain_whose_throttle_stays_fails_after_its_last_line(klamm: Klamm, scripted: ScriptedCluster) -> None:
    scripted.steps = [in_turn(scripted.end, lambda: scripted.client.unreachable.add("1"))]
    done = klamm("cluster", "drain", "1", "--throttle", "1000")
    assert (done.status, done.out.splitlines()[-1]) == (1, "broker 1 has no replicas: it can be stopped")
    assert done.err.endswith(f"--entity-name 1 --alter --delete-config {RATES}\n")


def test_ctrl_c_removes_the_throttle(klamm: Klamm, scripted: ScriptedCluster) -> None:
    def interrupt() -> None:
        scripted.client.unreachable = {"2"}
        raise KeyboardInterrupt

    scripted.steps = [interrupt]
    done = klamm("cluster", "reassign", "orders:0=0", "--throttle", "1000")
    assert done.status == 130
    assert [line.split(";")[0] for line in done.err.splitlines()] == [
        "klamm: moves in progress continue",
        "klamm: broker 2 keeps its throttle (2 does not answer)",
    ]
    assert {name for name, own in scripted.client.configs.items() if own} == {"2"}
