"""Real brokers of one cluster, each with a log directory of its own, and the state that the coordination has of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from klamm.core.cluster.tree import paths
from klamm.core.config.settings import load_settings
from klamm.core.errors import CoordinationError, ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.broker import KLAMM, RunningBroker
from klammtest.history import ReplicaLog, read_replica
from klammtest.ports import free_port
from klammtest.requests import create_topic, fetch, produce
from klammtest.waiting import eventually, within
from klammtest.wire import WireClient, part

from .network import Network

SESSION_MS: Final = 2_000
REPLICAS: Final = 3
MIN_INSYNC: Final = 2
STEADY_S: Final = 120.0
_STARTS: Final = 3
_NO_ANSWER: Final = (
    "no response from ZooKeeper",
    "was unreachable for",
    "the session has expired",
    "no etcd responds at",
)
_AGAIN: Final = frozenset({ErrorCode.request_timed_out, ErrorCode.not_controller, ErrorCode.invalid_replication_factor})
"""Errors of CreateTopics while brokers register again, as after sessions that a busy machine has let expire."""


@dataclass(frozen=True)
class State:
    """A partition's state in the coordination; `elr` is empty in a state of version 1."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()


@dataclass
class BrokerCluster:
    """Use `running_cluster`. Broker ids are places in `brokers`."""

    folder: Path
    brokers: list[RunningBroker]
    tree: Coordination
    advertised: list[str]
    network: Network | None = None
    factor: int = REPLICAS
    """Replicas of each partition."""

    @property
    def bootstrap(self) -> str:
        """Returns all advertised addresses."""
        return ",".join(self.advertised)

    @property
    def ids(self) -> range:
        return range(len(self.brokers))

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, ids: Iterable[int] | None = None, *arguments: str) -> None:
        """Starts these brokers, or all, at the same time; returns when they are ready. `arguments`: those of this start
        alone.
        """
        chosen = list(self.ids if ids is None else ids)
        with ThreadPoolExecutor(len(chosen)) as threads:
            list(threads.map(lambda i: self._start(i, arguments), chosen))

    def _start(self, i: int, arguments: tuple[str, ...]) -> None:
        """Starts one broker; again, as a supervisor does, if it ends because the coordination was silent too long."""
        for _ in range(_STARTS):
            try:
                return self.brokers[i].start(*arguments)
            except RuntimeError as error:
                if not any(said in str(error) for said in _NO_ANSWER):
                    raise
        return self.brokers[i].start(*arguments)

    def kill(self, ids: Iterable[int] | None = None) -> None:
        for i in self.ids if ids is None else ids:
            self.brokers[i].kill()

    def stop(self, ids: Iterable[int] | None = None) -> None:
        chosen = list(self.ids if ids is None else ids)
        with ThreadPoolExecutor(len(chosen)) as threads:
            list(threads.map(lambda i: self.brokers[i].stop(), chosen))

    # -- what the coordination knows ---------------------------------------------------------------------------------

    def state(self, tp: TopicPartition) -> State | None:
        """Returns None while the coordination does not answer, or the topic is not there."""
        try:
            data, _ = self.tree.get(paths.partition_state(tp.topic, tp.partition))
        except CoordinationError:
            return None
        found = json.loads(data)
        return State(found["leader"], found["leader_epoch"], tuple(found["isr"]), tuple(found.get("elr", ())))

    def states(self, topic: str, partitions: int) -> dict[TopicPartition, State]:
        every = [TopicPartition(topic, n) for n in range(partitions)]
        return {tp: state for tp in every if (state := self.state(tp)) is not None}

    def controller(self) -> int:
        """Returns the controller's id, -1 while there is none."""
        try:
            return int(json.loads(self.tree.get(paths.CONTROLLER)[0])["brokerid"])
        except CoordinationError:
            return -1

    def registered(self) -> set[int]:
        try:
            return {int(name) for name in self.tree.children(paths.BROKER_IDS)}
        except CoordinationError:
            return set()

    def session_over(self, broker: int) -> bool:
        """Returns True if the coordination answers, and has no registration of the broker."""
        try:
            return self.tree.exists(paths.broker(broker)) is None
        except CoordinationError:
            return False

    def session(self, broker: int) -> int:
        """Returns the id of the session of the broker's registration; 0 while there is none."""
        try:
            stat = self.tree.exists(paths.broker(broker))
        except CoordinationError:
            return 0
        return 0 if stat is None else stat.ephemeral_owner

    # -- topics ------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic with `factor` replicas, of which `MIN_INSYNC` must have an acknowledged record."""
        config = {"min.insync.replicas": str(MIN_INSYNC), "retention.ms": "-1", **(config or {})}
        deadline = time.monotonic() + STEADY_S
        timed_out = False
        while True:
            with self._wire() as wire:
                answer = create_topic(wire, name, partitions, config, replication_factor=self.factor)
            code = answer.error_code
            if code is ErrorCode.none or (timed_out and code is ErrorCode.topic_already_exists):
                return
            if code not in _AGAIN or time.monotonic() > deadline:
                raise RuntimeError(f"topic {name}: {code.name}: {answer.error_message}")
            timed_out = timed_out or code is ErrorCode.request_timed_out  # it may have been created all the same
            time.sleep(0.2)

    def _wire(self) -> WireClient:
        """Connects to the controller, for requests that it alone answers."""
        within(lambda: self.controller() >= 0, STEADY_S)
        return WireClient(self.brokers[self.controller()].bootstrap)

    def config(self, topic: str) -> str:
        """Returns the topic's own configuration, as it is stored."""
        return self.tree.get(paths.topic_config(topic))[0].decode()

    def delete_topic(self, name: str) -> None:
        with self._wire() as wire:
            wire.call(ApiKey.DELETE_TOPICS, 4, topic_names=(name,), timeout=timedelta(seconds=20))

    def assignment(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Returns the replicas by partition; empty while the coordination does not answer."""
        try:
            data, _ = self.tree.get(paths.topic(topic))
        except CoordinationError:
            return {}
        return {int(number): tuple(replicas) for number, replicas in json.loads(data)["partitions"].items()}

    def reassign(self, topic: str, targets: Mapping[int, tuple[int, ...]]) -> None:
        """Asks for other replicas of these partitions; raises `RuntimeError` if a request is refused."""
        api = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        wanted = tuple(
            part(api, 0, "ReassignablePartition", partition_index=number, replicas=replicas)
            for number, replicas in targets.items()
        )
        asked = (part(api, 0, "ReassignableTopic", name=topic, partitions=wanted),)
        with self._wire() as wire:
            answer = wire.call(api, 0, topics=asked, timeout=timedelta(seconds=20))
        refused = [p for t in answer.responses for p in t.partitions if p.error_code is not ErrorCode.none]
        if answer.error_code is not ErrorCode.none or refused:
            raise RuntimeError(f"the reassignment of {topic} was refused: {answer}")

    def in_sync(self, topic: str, partitions: int) -> bool:
        """Returns True if every partition has a leader and all of its replicas in its ISR."""
        states = self.states(topic, partitions)
        return len(states) == partitions and all(s.leader >= 0 and len(s.isr) == self.factor for s in states.values())

    def await_in_sync(self, topic: str, partitions: int, limit_s: float = STEADY_S) -> bool:
        return within(lambda: self.in_sync(topic, partitions), limit_s)

    # -- records of partition 0 --------------------------------------------------------------------------------------

    def append(self, topic: str, records: bytes, *, acks: int = -1) -> int:
        """Produces a batch until it is acknowledged, as a producer does; returns the leader epoch of that."""
        epochs: list[int] = []

        def stored() -> bool:
            state = self.state(TopicPartition(topic, 0))
            if state is None or state.leader < 0:
                return False
            try:
                with WireClient(self.brokers[state.leader].bootstrap, timeout_s=10) as wire:
                    code: ErrorCode = produce(wire, topic, records, acks=acks).error_code
            except (OSError, IndexError):
                return False
            epochs.append(state.leader_epoch)
            return code is ErrorCode.none

        eventually(stored, f"{records!r} is acknowledged")
        return epochs[-1]

    def records(self, topic: str) -> bytes:
        """Returns the batches that the leader shows."""
        state = self.state(TopicPartition(topic, 0))
        assert state is not None
        with WireClient(self.brokers[state.leader].bootstrap) as wire:
            return bytes(fetch(wire, topic, 0).records)

    # -- logs --------------------------------------------------------------------------------------------------------

    def replicas(self, tp: TopicPartition) -> list[ReplicaLog]:
        """Reads the partition's log from the directory of every broker that has one."""
        found = []
        for i, broker in enumerate(self.brokers):
            directory = broker.log_dir / str(tp)
            if directory.is_dir():
                found.append(read_replica(directory, i))
        return found


@contextmanager
def running_cluster(
    folder: Path,
    coordination: Mapping[str, Any],
    *,
    size: int = 3,
    broker: Mapping[str, Any] | None = None,
    network: Network | None = None,
    fronts: Mapping[int, str] | None = None,
    environments: Mapping[int, Mapping[str, str]] | None = None,
    disks: Mapping[int, Path] | None = None,
    seen_from: Mapping[str, Any] | None = None,
    sections: Mapping[int, Mapping[str, Any]] | None = None,
    command: str = KLAMM,
    factor: int = REPLICAS,
    first_host: int = 0,
    more: Mapping[str, Any] | None = None,
) -> Iterator[BrokerCluster]:
    """Runs brokers 0 to `size` - 1, on loopback ports or each in a namespace of `network`, from its `first_host` on.

    `coordination`: the section of the brokers' files, where `sections` has none for a broker; `seen_from`: that of this
    process, if it is another one.
    `broker`: keys of all brokers; `fronts`: the addresses that brokers advertise, of proxies in front of them;
    `environments`: variables of a broker's process; `disks`: log directories; `command`: their `klamm`; `factor`:
    replicas of a partition; `more`: further sections of the brokers' files. All are killed at the end.
    """
    brokers, advertised = [], []
    for i in range(size):
        own = folder / f"broker-{i}"
        own.mkdir(parents=True, exist_ok=True)
        host, port = (network.hosts[first_host + i], 9092) if network else ("127.0.0.1", free_port())
        advertised.append((fronts or {}).get(i, f"{host}:{port}"))
        config = {
            "broker": {
                "broker.id": i,
                "listeners": f"PLAINTEXT://{host}:{port}",
                "advertised.listeners": f"PLAINTEXT://{advertised[i]}",
                "log.dirs": str((disks or {}).get(i, own / "data")),
                "auto.create.topics.enable": False,
                "group.initial.rebalance.delay.ms": 0,
                **(broker or {}),
            },
            "coordination": dict((sections or {}).get(i, coordination)),
            **(more or {}),
        }
        inside = network.inside(first_host + i) if network else ()
        one = RunningBroker(own, config, port, (environments or {}).get(i), host=host, inside=inside, command=command)
        one.log_dir = Path(config["broker"]["log.dirs"])
        brokers.append(one)
    tree = load_settings({"coordination": dict(seen_from or coordination)}).make_coordination()
    cluster = BrokerCluster(folder, brokers, tree, advertised, network, factor)
    try:
        cluster.start()
        tree.start()
        yield cluster
    finally:
        cluster.kill()
        tree.close()
