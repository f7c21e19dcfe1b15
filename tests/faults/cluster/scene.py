"""The parts that the campaigns of `make faults-cluster` share: three brokers, clients under load, and what is asserted.

A campaign injects its faults into one cluster, in lives of a few injections. Each life has a topic and a history of its
own: clients run through all of its injections, then the cluster must heal, and the checker compares the history with
what consumers read and with each replica's log.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Partition

from cluster.coordinations import ETCD_TOOLS, CoordinationSite, coordination_for
from cluster.lives import BROKER, LIMIT_S, LivesCampaign, LivesScene, text_of
from harness import Result, Run
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker
from klammtest.history import History, Verdict, check
from klammtest.ports import free_port
from klammtest.replicated import java_client, network, senders
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.replicated.disk import Disk, build
from klammtest.replicated.watchers import (
    BrokerObserver,
    ConfluentConsumer,
    CoordinationObserver,
    KlammConsumer,
    Watcher,
    read_back,
)
from klammtest.replicated.weather import Weather, WeatherProxy
from klammtest.waiting import within
from skewed_clock import SkewedClock

PARTITIONS = 3
PROGRESS_S = 45.0
"""Within which every partition takes records of every producer again after a fault. On a machine without a free
processor 26 s have been seen; 58 s were a defect (`clock-skew`)."""
_FRONT_PORT = 9093
Inject = Callable[[int, random.Random, "Scene"], None]
"""Injects fault `at` and undoes it."""
ASSERTED = (
    "acks=all, idempotent: nothing acknowledged is lost, doubled or out of order; replicas are byte-equal; polled "
    "records stay; watermarks do not fall; one leader an epoch"
)


@dataclass(frozen=True)
class Site:
    """What a campaign's cluster stands on."""

    coordination: str = "zookeeper"
    """See `coordination_for`."""
    size: int = 3
    namespaces: bool = False
    """Each broker in a network namespace, with packets that can be dropped (`Scene.network`)."""
    weather: bool = False
    """A proxy in front of each broker, for replicas and clients (`Scene.weather`)."""
    disks: bool = False
    """Disks that fail, are slow and lose what is not synced (`Scene.disks`)."""
    clocks: bool = False
    """Wall clocks that can be set (`Scene.clocks`)."""
    own_coordination: bool = False
    """A proxy for each broker between it and ZooKeeper, of which the session can be read."""
    java: bool = False
    """The Java client instead of confluent-kafka."""
    topic: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the brokers, beside and before those of `BROKER`."""
    log_dirs: Mapping[int, Path] = field(default_factory=dict)

    @property
    def tools(self) -> tuple[str, ...]:
        found = network.TOOLS * self.namespaces + ("gcc=gcc",) * (self.disks or self.clocks)
        found += ETCD_TOOLS * (self.coordination == "etcd")
        return found + java_client.TOOLS * self.java

    @property
    def producers(self) -> Mapping[str, Callable[[str], senders.Client]]:
        if self.java:
            return {"klamm": senders.Klamm, "java": java_client.JavaProducer}
        return {"klamm": senders.Klamm, "confluent-kafka": senders.Confluent}

    @property
    def consumers(self) -> tuple[Callable[[str, str, int, History], Watcher], ...]:
        return (KlammConsumer, java_client.JavaConsumer if self.java else ConfluentConsumer)


class Scene(LivesScene):
    """One cluster of a campaign; `life` begins and ends a history."""

    partition_count, rate = PARTITIONS, 150.0

    def __init__(
        self, site: Site, cluster: BrokerCluster, total: Result, run: Run, coordination: CoordinationSite
    ) -> None:
        super().__init__(cluster, total, run, coordination)
        self.site = site
        self.network: network.Network | None = cluster.network
        self.weather = Weather()
        self.disks: dict[int, Disk] = {}
        self.clocks: dict[int, SkewedClock] = {}
        self.consumers: list[Watcher] = []
        self.ended_threads: Sequence[str] = ()
        """What ended threads of this process, a client's too."""

    @property
    def brokers(self) -> Mapping[str, RunningBroker]:
        return {f"broker-{i}": broker for i, broker in enumerate(self.cluster.brokers)}

    # -- whom to hurt ------------------------------------------------------------------------------------------------

    def leader(self, chance: random.Random) -> int:
        return self.leader_in(self.cluster, chance)

    def follower(self, chance: random.Random) -> int:
        """Returns a broker that follows in a random partition; the choice may lead others."""
        states = self.cluster.states(self.topic, PARTITIONS).values()
        followers = [member for s in states for member in s.isr if member != s.leader]
        return chance.choice(followers or self.cluster.ids)

    def controller(self, chance: random.Random) -> int:
        controller = self.cluster.controller()
        return controller if controller >= 0 else chance.choice(self.cluster.ids)

    # -- what must hold after a fault --------------------------------------------------------------------------------

    def require_progress(self, at: int, partitions: set[int] | None = None, limit_s: float | None = None) -> None:
        """Counts it as wrong if some producer's records, sent from now on to these partitions, or to all, are not
        acknowledged in time.
        """
        if limit_s is None:  # acknowledgements that wait for the disk leave a backlog
            limit_s = LIMIT_S if "flush.ms" in self.site.topic else PROGRESS_S
        for sender in self.senders:
            if not sender.await_progress(limit_s, partitions):
                states = self.cluster.states(self.topic, PARTITIONS)
                self.total.wrong(at, f"{sender.name} has no acknowledgement within {limit_s:.0f} s: {text_of(states)}")
                return

    def require_in_sync(self, at: int | str) -> None:
        if not self.cluster.await_in_sync(self.topic, PARTITIONS, LIMIT_S):
            states = self.cluster.states(self.topic, PARTITIONS)
            self.total.wrong(at, f"replicas are not in sync within {LIMIT_S:.0f} s: {text_of(states)}")

    def undergo(self, at: int, chance: random.Random, inject: Inject) -> None:
        """Injects a fault, after which all partitions must take records, and come in sync, again."""
        for sender in self.senders:
            sender.begin_gap()
        inject(at, chance, self)
        self.total.injected += 1
        healed = time.monotonic()
        self.require_progress(at)
        self.longest("again-ms", time.monotonic() - healed)
        self.require_in_sync(at)
        self.longest("in-sync-ms", time.monotonic() - healed)
        for sender in self.senders:
            self.longest(f"gap-{sender.name}-ms", sender.longest_gap_s)

    # -- a life ------------------------------------------------------------------------------------------------------

    @contextmanager
    def life(self, number: int, at: str, tamper: Callable[[Scene], None] | None) -> Iterator[None]:
        """Runs clients on a new topic meanwhile; then checks. `tamper` changes what the checker sees, before it
        does.
        """
        self.topic, self.history = f"life-{number}", History()
        self.cluster.create_topic(self.topic, PARTITIONS, self.site.topic)
        self.require_in_sync(at)
        bootstrap = self.cluster.bootstrap
        self.senders = self.started(bootstrap, self.site.producers)
        self.consumers = [kind(bootstrap, self.topic, PARTITIONS, self.history) for kind in self.site.consumers]
        watchers: list[Watcher] = [
            *self.consumers,
            *(BrokerObserver(self.cluster, i, self.topic, PARTITIONS, self.history) for i in self.cluster.ids),
            CoordinationObserver(self.cluster, self.topic, PARTITIONS, self.history),
        ]
        for watcher in watchers:
            watcher.start()
        self.require_progress(-1)
        yield
        self._end(at, watchers, tamper)

    def _end(self, at: str, watchers: list[Watcher], tamper: Callable[[Scene], None] | None) -> None:
        self.stop(at, self.senders)
        for sender in self.senders:
            for error_name, n in sender.errors.items():
                self.total.count(f"unanswered-{error_name.lower().lstrip('_')}", n)
        self.require_in_sync(at)
        ends = self.await_equal_ends(at, lambda: watermarks(self.cluster.bootstrap, self.partitions))
        read = read_back(self.cluster.bootstrap, ends)
        if not within(lambda: not any(self._behind(c.name, ends) for c in self.consumers), LIMIT_S):
            for consumer in self.consumers:
                if behind := self._behind(consumer.name, ends):
                    told = f"; it was told {consumer.errors}" if consumer.errors else ""
                    told += f"; threads have ended: {'; '.join(self.ended_threads)}" if self.ended_threads else ""
                    told += f"; its partitions: {progress}" if (progress := consumer.progress()) else ""
                    self.total.wrong(at, f"{consumer.name} did not come to the end: {', '.join(behind)}{told}")
        self.stop(at, watchers)
        if tamper is not None:
            tamper(self)
        replicas = {tp: self.cluster.replicas(tp) for tp in ends}
        if tamper is not None:
            read = {tp: list(replicas[tp][0].rows) for tp in ends}
        self.count(at, check(self.history, read, replicas))
        if tamper is None:
            self.check_brokers(at)
            self.cluster.delete_topic(self.topic)

    def _behind(self, consumer: str, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Returns, for each partition whose last record the consumer has not polled, how far it has come."""
        found = []
        for tp, end in ends.items():
            polled = (p.offset for p in reversed(self.history.partitions[tp].polls) if p.consumer == consumer)
            if end and (last := next(polled, -1)) < end - 1:
                found.append(f"{tp} at {last + 1} of {end}")
        return found

    def count(self, at: str, verdict: Verdict) -> None:
        self.total.count("unknown", verdict.unknown)
        if verdict.anomalies and not self.run.plant:
            self._keep_batches({anomaly.partition for anomaly in verdict.anomalies})
        super().count(at, verdict)

    def _keep_batches(self, partitions: Iterable[TopicPartition]) -> None:
        """Keeps the headers of all batches of the partitions, by replica: their files go with the topic."""
        folder = self.evidence()
        for tp in partitions:
            for broker in self.cluster.ids:
                directory = self.cluster.brokers[broker].log_dir / str(tp)
                headers = [h for path in sorted(directory.glob("*.log")) for _, h in iter_headers(path.read_bytes())]
                (folder / f"{tp}-of-{broker}.batches").write_text("".join(f"{header}\n" for header in headers))


def watermarks(bootstrap: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the high watermarks; none if the broker that was asked does not know the new leader yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0})
    try:
        return {
            tp: consumer.get_watermark_offsets(Partition(tp.topic, tp.partition), timeout=60)[1] for tp in partitions
        }
    except KafkaException:
        return {}
    finally:
        consumer.close()


@dataclass(frozen=True)
class ClusterCampaign(LivesCampaign):
    asserted: ClassVar[str] = ASSERTED

    site: Site = field(default_factory=Site)
    a_life: int = 10

    def scene(self, run: Run, total: Result) -> AbstractContextManager[Scene]:
        return scene_on(self.site, run, total)

    def life(
        self, scene: Scene, number: int, at: str, tamper: Callable[[Scene], None] | None
    ) -> AbstractContextManager[None]:
        return scene.life(number, at, tamper)


@contextmanager
def ended_threads(scene: Scene) -> Iterator[None]:
    """Keeps the exceptions that end threads, which otherwise only stderr has."""
    before, scene.ended_threads = threading.excepthook, (found := list[str]())

    def ended(args: threading.ExceptHookArgs) -> None:
        place = traceback.extract_tb(args.exc_traceback)[-1:]
        found.append(f"{args.thread and args.thread.name}: {args.exc_value!r} at {place}")
        before(args)

    threading.excepthook = ended
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def scene_on(site: Site, run: Run, total: Result) -> Iterator[Scene]:
    with ExitStack() as stack:
        if site.java:
            java_client.class_path()  # fetched before anything waits for the clients
        net = stack.enter_context(network.network_of(site.size)) if site.namespaces else None
        proxies = site.size if site.own_coordination else 0
        coordination = stack.enter_context(coordination_for(site.coordination, run.folder, net, proxies))
        disks, clocks, environments, log_dirs = _machines(site, run)
        fronts = {i: _front(i, net) for i in range(site.size)} if site.weather else {}
        cluster = stack.enter_context(
            running_cluster(
                run.folder / "brokers",
                coordination.section,
                size=site.size,
                broker={**BROKER, **site.broker},
                network=net,
                fronts=fronts,
                environments=environments,
                disks=log_dirs,
                seen_from=coordination.seen,
                sections=coordination.sections,
            )
        )
        scene = Scene(site, cluster, total, run, coordination)
        scene.disks, scene.clocks = disks, clocks
        for i, front in fronts.items():
            port, seed = int(front.rpartition(":")[2]), run.chance(f"proxy {i}").randrange(1 << 30)
            stack.enter_context(WeatherProxy(port, cluster.brokers[i].port, scene.weather, seed, net, i))
        stack.enter_context(ended_threads(scene))
        yield scene


def _front(i: int, net: network.Network | None) -> str:
    return f"127.0.0.1:{free_port()}" if net is None else f"{net.hosts[i]}:{_FRONT_PORT}"


def _machines(
    site: Site, run: Run
) -> tuple[dict[int, Disk], dict[int, SkewedClock], dict[int, dict[str, str]], dict[int, Path]]:
    disks: dict[int, Disk] = {}
    clocks: dict[int, SkewedClock] = {}
    environments: dict[int, dict[str, str]] = {}
    log_dirs = {i: run.folder / "disks" / str(i) / "data" for i in range(site.size)} | dict(site.log_dirs)
    library = build(run.folder) if site.disks else None
    for i in range(site.size):
        log_dirs[i].mkdir(parents=True, exist_ok=True)
        if library is not None:
            disks[i] = Disk(library, run.folder / f"disk-{i}", log_dirs[i])
        if site.clocks:
            clocks[i] = SkewedClock(run.folder / f"clock-{i}")
        own = [machine.environment for machine in (disks.get(i), clocks.get(i)) if machine is not None]
        environments[i] = {name: value for environment in own for name, value in environment.items()}
        if own:
            environments[i]["LD_PRELOAD"] = ":".join(environment["LD_PRELOAD"] for environment in own)
    return disks, clocks, environments, log_dirs
