"""The parts that the campaigns of `make faults-mirror` share: a source cluster, a cluster that mirrors it, producers at
the source, and what is asserted.

A campaign injects its faults in lives of a few injections. Each life has a topic: producers write it at the source
through all of its injections, then the mirror fails over while they go on, and producers write it at the target. What
both clusters have stored is then read from their directories and compared.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from typer.testing import CliRunner

from cluster.coordinations import CoordinationSite, coordination_for
from cluster.lives import BROKER, LIMIT_S, LivesCampaign, LivesScene, polled
from harness import Result, Run
from klamm.core.cli.mirror.commands import app
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.cluster.image_reader import read_image
from klamm.core.errors import CoordinationError, KlammError
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker
from klammtest.history import History, Outcome, Send, StoredBatch, check
from klammtest.logs import codec_table
from klammtest.replicated import network, senders
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.replicated.watchers import read_back
from mirror.compare import Range, below, differences
from skewed_clock import SkewedClock

LINK = "source"
PARTITIONS = 2
_LATEST = -1
_PRODUCERS: Mapping[str, Callable[[str], senders.Client]] = {
    "klamm": senders.Klamm,
    "confluent-kafka": senders.Confluent,
}
ASSERTED = (
    "below the mirror's end the batches of both clusters are equal, byte for byte, on every replica; what is missing "
    "is what `klamm mirror status` reports as gaps, no more and no less; after the fail-over each acknowledged record "
    "below the mirror's end is there once and in order, none behind it, and each one that the target has acknowledged"
)


@dataclass(frozen=True)
class MirrorSite:
    """`coordination`: the target's, see `coordination_for`; the source has an embedded one. Each broker of a cluster
    has a replica of each partition."""

    sources: int = 2
    targets: int = 2
    coordination: str = "embedded"
    namespaces: bool = False
    """Each broker in a network namespace; the target's are hosts `sources` and up."""
    clocks: bool = False
    """Wall clocks of both clusters' brokers that can be set (`MirrorScene.clocks`)."""
    load: bool = True
    """Producers at the source; without them a campaign writes itself, and the mirror is compared after each fault."""
    source_lost: float = 0.5
    """How often the source is killed before the fail-over, and not only left."""
    topic: Mapping[str, str] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tools(self) -> tuple[str, ...]:
        return network.TOOLS * self.namespaces + ("gcc=gcc",) * self.clocks


class MirrorScene(LivesScene):
    """`cluster` is the target; `life` begins and ends a history."""

    partition_count, rate = PARTITIONS, 25.0

    def __init__(self, site: MirrorSite, source: BrokerCluster, target: BrokerCluster, total: Result, run: Run,
                 coordination: CoordinationSite) -> None:  # fmt: skip
        super().__init__(target, total, run, coordination)
        self.site, self.source = site, source
        self.clocks: Mapping[str, Mapping[int, SkewedClock]] = {}
        """Of the clusters `source` and `target`, by broker."""
        self.clients: dict[str, ClusterClient] = {}
        self.known: dict[TopicPartition, dict[int, StoredBatch]] = {}
        """What `remember` has read at the source, by base offset."""
        self.reported_gaps: dict[TopicPartition, list[Range]] = {}
        """Those that the link has reported at the end of the life."""
        self.missed: dict[TopicPartition, list[Range]] = defaultdict(list)
        """What some replica of the mirror had not copied when the source deleted it."""
        self.begins: dict[TopicPartition, int | None] = {}
        """Where clients write from, as `klamm mirror fail-over` has printed it."""
        self.replaced = False
        """The topic of that name at the source is another one now."""

    @property
    def network(self) -> network.Network:
        assert self.source.network is not None
        return self.source.network

    @property
    def brokers(self) -> Mapping[str, RunningBroker]:
        clusters = {"source": self.source, "target": self.cluster}
        return {f"{name}-{i}": one for name, cluster in clusters.items() for i, one in enumerate(cluster.brokers)}

    # -- the link ----------------------------------------------------------------------------------------------------

    def mirror(self, *arguments: str) -> str:
        """Runs `klamm mirror` and returns what it prints; raises what it raises, after `LIMIT_S` of tries."""
        until = time.monotonic() + LIMIT_S
        while True:
            done = self._invoke(*arguments)
            if done.exception is None:
                return str(done.output)
            if time.monotonic() > until:
                raise done.exception
            time.sleep(0.2)

    def _invoke(self, *arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--config", str(self.cluster.brokers[0].config_path)])

    def status(self) -> dict[TopicPartition, dict[str, Any]]:
        """Returns the rows of `klamm mirror status --json` for the life's topic; none while it cannot be read."""
        text = self._invoke("status", LINK, "--json").stdout
        rows = json.loads(text)["partitions"] if text.startswith("{") else []
        return {tp: row for row in rows if (tp := TopicPartition(row["topic"], row["partition"])).topic == self.topic}

    def gaps(self) -> dict[TopicPartition, list[Range]]:
        return {tp: [(gap[0], gap[1]) for gap in row["gaps"]] for tp, row in self.status().items()}

    def ends(self, cluster: BrokerCluster) -> dict[TopicPartition, int]:
        """Returns the high watermarks of the life's partitions; none while one has no leader."""
        client = self.clients["target" if cluster is self.cluster else "source"]
        with suppress(KlammError):
            found = client.list_offsets(dict.fromkeys(self.partitions, _LATEST), timeout_s=10)
            return {tp: offset for tp, (offset, _) in found.items()}
        return {}

    # -- what must hold after a fault --------------------------------------------------------------------------------

    def require_progress(self, at: int | str) -> None:
        """Counts it as wrong if the source does not take records of every producer in time."""
        for sender in self.senders:
            if not sender.await_progress(LIMIT_S):
                self.total.wrong(at, f"{sender.name} has no acknowledgement at the source within {LIMIT_S:.0f} s")

    def require_follows(self, at: int | str) -> None:
        """Counts it as wrong if the mirror does not show in time what the source has now."""
        began, wanted, shown = time.monotonic(), dict[TopicPartition, int](), dict[TopicPartition, int]()

        def reached() -> bool:
            if not wanted:
                wanted.update(self.ends(self.source))
            shown.update(self.ends(self.cluster))
            return bool(wanted) and all(shown.get(tp, -1) >= end for tp, end in wanted.items())

        if not polled(reached):
            rows = list(self.status().values())
            self.total.wrong(at, f"the mirror shows {shown} and not {wanted} after {LIMIT_S:.0f} s: {rows}")
        self.longest("follows-again-ms", time.monotonic() - began)

    def undergo(self, at: int, chance: random.Random, inject: Inject) -> None:
        """Injects a fault, after which the source takes records, and the mirror has them."""
        inject(at, chance, self)
        self.total.injected += 1
        self.require_progress(at)
        if not self.replaced:
            self.require_follows(at)
        if not self.site.load:
            self.require_equal(at)

    def require_equal(self, at: int | str) -> None:
        """Counts it as wrong if not all replicas of both clusters come to have the same batches; nobody may write."""

        def equal() -> bool:
            logs = {tp: (*self.source.replicas(tp), *self.cluster.replicas(tp)) for tp in self.partitions}
            wanted = self.source.factor + self.cluster.factor
            return all(
                len(found) == wanted and len({tuple(log.batches) for log in found}) == 1 for found in logs.values()
            )

        if not polled(equal):
            self.total.wrong(at, f"the mirror is not equal to its source after {LIMIT_S:.0f} s: {self.status()}")

    def remember(self) -> None:
        """Keeps what the source has stored, before it deletes it."""
        for tp in self.partitions:
            for log in self.source.replicas(tp):
                self.known.setdefault(tp, {}).update({batch.base: batch for batch in log.batches})

    # -- a life ------------------------------------------------------------------------------------------------------

    @contextmanager
    def life(
        self, number: int, at: str, fail_over: Inject, tamper: Callable[[MirrorScene], None] | None
    ) -> Iterator[None]:
        """Runs producers on a new topic meanwhile; then fails over and checks. `tamper` changes what the checker sees,
        before it does.
        """
        self.topic, self.history, self.replaced = f"life-{number}", History(), False
        self.known, self.missed, self.begins = {}, defaultdict(list), {}
        self.source.create_topic(self.topic, PARTITIONS, {"min.insync.replicas": "1", **self.site.topic})
        self.source.await_in_sync(self.topic, PARTITIONS)
        if self.site.load:
            self.senders = self.producers(self.source)
            self.require_progress("the start")
        self.require_follows("the start")
        yield
        self._end(number, at, fail_over, tamper)

    def producers(self, cluster: BrokerCluster) -> list[senders.Sender]:
        """Starts producers on the life's topic in one of the clusters."""
        return self.started(cluster.bootstrap, _PRODUCERS)

    def _end(
        self, number: int, at: str, fail_over: Inject, tamper: Callable[[MirrorScene], None] | None
    ) -> None:  # fmt: skip
        chance = self.run.chance(f"end {number}")
        self.reported_gaps = self.gaps()
        lost = chance.random() < self.site.source_lost
        if lost:
            self.source.kill()
        began = time.monotonic()
        fail_over(at, chance, self)
        self.longest("fail-over-ms", time.monotonic() - began)
        self.total.count("fail-overs")
        before, at_source = self.senders, self.history
        self.history = History()
        after = self.producers(self.cluster)
        for sender in after:
            if not sender.await_progress(LIMIT_S):
                self.total.wrong(at, f"{sender.name} has no acknowledgement at the target within {LIMIT_S:.0f} s")
        if lost:
            self.source.start()
        self.stop(at, [*before, *after])
        self.senders = []
        if not self.source.await_in_sync(self.topic, PARTITIONS, LIMIT_S):
            self.total.wrong(at, "the source's replicas are not in sync")
        if not self.replaced:
            self.remember()
        self.await_equal_ends(at, self._ends_in_sync)
        self._judge(at, at_source, tamper)
        self.check_brokers(at)
        if tamper is None:
            self.source.delete_topic(self.topic)
            self.cluster.delete_topic(self.topic)

    def fail_over(self) -> None:
        """Promotes the life's topic, and returns when it is promoted."""
        polled(lambda: self.promoted() or self._failed_over())
        if not self.promoted():
            raise RuntimeError(f"{self.topic} is not promoted after {LIMIT_S:.0f} s")

    def _failed_over(self) -> bool:
        done = self._invoke("fail-over", LINK, "--topic", self.topic, "--json")
        if done.exception is None:
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            self.begins = {TopicPartition(row["topic"], row["partition"]): row["begins"] for row in rows}
        return done.exception is None

    def promoted(self) -> bool:
        """Returns True if no partition of the life's topic is a mirror any more."""
        with suppress(CoordinationError):
            partitions = read_image(self.cluster.tree).topics[self.topic].partitions.values()
            return not any(partition.state.mirror for partition in partitions)
        return False

    def _ends_in_sync(self) -> dict[TopicPartition, int]:
        return self.ends(self.cluster) if self.cluster.in_sync(self.topic, PARTITIONS) else {}

    # -- the judgement -----------------------------------------------------------------------------------------------

    def _judge(self, at: str, at_source: History, tamper: Callable[[MirrorScene], None] | None) -> None:
        epochs = self._promoted_epochs()
        ends = {}
        for tp in self.partitions:
            copied = below(self.cluster.replicas(tp)[0], epochs[tp])
            ends[tp] = copied[-1].next if copied else 0
            if (begins := self.begins.get(tp)) is not None and begins != ends[tp]:
                self.anomaly(at, "begins", f"{tp}: printed {begins}, the mirror ends at {ends[tp]}")
            self.total.count("copied", sum(batch.next - batch.base for batch in copied))
            for send in at_source.partitions[tp].sends:
                if kept := _as_copied(send, ends[tp], self.reported_gaps.get(tp, ())):
                    self.history.send(tp, kept)
        if tamper is not None:
            tamper(self)
        gaps = self.reported_gaps
        replicas = {tp: self.cluster.replicas(tp) for tp in self.partitions}
        for tp, logs in replicas.items():
            copies = {log.broker: below(log, epochs[tp]) for log in logs}
            for kind, text in differences(self.known[tp], copies, ends[tp], gaps.get(tp, ()), self.missed[tp]):
                self.anomaly(at, kind, f"{tp}: {text}")
        read = {tp: list(logs[0].rows) for tp, logs in replicas.items()}
        if tamper is None:
            read = read_back(self.cluster.bootstrap, {tp: logs[0].end for tp, logs in replicas.items()})
        verdict = check(self.history, read, replicas)
        # `differences` has compared what lies around gaps
        anomalies = [one for one in verdict.anomalies if one.kind != "broken-chain" or not gaps.get(one.partition)]
        self.count(at, replace(verdict, anomalies=anomalies))

    def _promoted_epochs(self) -> dict[TopicPartition, int]:
        epochs: dict[TopicPartition, int] = {}

        def read() -> bool:
            with suppress(CoordinationError):
                topic = read_image(self.cluster.tree).topics[self.topic]
                epochs.update(
                    (TopicPartition(self.topic, n), one.state.promoted_epoch) for n, one in topic.partitions.items()
                )
            return bool(epochs)

        polled(read)
        return epochs


Inject = Callable[[int, random.Random, MirrorScene], None]
"""Injects fault `at` and undoes it."""


def _as_copied(send: Send, end: int, gaps: Sequence[Range]) -> Send | None:
    """Returns what a record of a producer at the source is for the mirror that ends at `end`: one that may be there or
    not in a gap, None if it must not be there."""
    if send.outcome is not Outcome.OK:
        return send
    if any(a <= send.offset < b for a, b in gaps):
        return send._replace(outcome=Outcome.UNKNOWN)
    return send if send.offset < end else None


@dataclass(frozen=True)
class MirrorCampaign(LivesCampaign):
    """`fail_over` ends the mirror of a life."""

    asserted: ClassVar[str] = ASSERTED

    site: MirrorSite = field(default_factory=MirrorSite)
    fail_over: Inject = lambda at, chance, scene: scene.fail_over()

    def scene(self, run: Run, total: Result) -> AbstractContextManager[MirrorScene]:
        return mirror_scene_on(self.site, run, total)

    def life(
        self, scene: MirrorScene, number: int, at: str, tamper: Callable[[MirrorScene], None] | None
    ) -> AbstractContextManager[None]:
        return scene.life(number, at, self.fail_over, tamper)


@contextmanager
def mirror_scene_on(site: MirrorSite, run: Run, total: Result) -> Iterator[MirrorScene]:
    with ExitStack() as stack:
        net = stack.enter_context(network.network_of(site.sources + site.targets)) if site.namespaces else None
        folders = {name: run.folder / name for name in ("source", "target")}
        for folder in folders.values():
            folder.mkdir()
        at_source = stack.enter_context(coordination_for("embedded", folders["source"], None, 0))
        at_target = stack.enter_context(coordination_for(site.coordination, folders["target"], net, 0))
        sizes = {"source": site.sources, "target": site.targets} if site.clocks else {}
        clocks = {
            name: {i: SkewedClock(folders[name] / f"clock-{i}") for i in range(size)} for name, size in sizes.items()
        }
        environments = {name: {i: one.environment for i, one in found.items()} for name, found in clocks.items()}
        source = stack.enter_context(
            running_cluster(
                folders["source"], at_source.section, size=site.sources, factor=site.sources, broker=BROKER,
                network=net, environments=environments.get("source"), seen_from=at_source.seen,
            )
        )  # fmt: skip
        link = {
            "bootstrap.servers": source.bootstrap, "topics.regex": "life-.*", "retention": "own",
            "metadata.interval.ms": 200, "fetch.max.wait.ms": 100, **site.link,
        }  # fmt: skip
        target = stack.enter_context(
            running_cluster(
                folders["target"], at_target.section, size=site.targets, factor=site.targets, network=net,
                broker={**BROKER, "default.replication.factor": site.targets}, first_host=site.sources,
                environments=environments.get("target"), seen_from=at_target.seen, sections=at_target.sections,
                more={"mirrors": {LINK: link}},
            )
        )  # fmt: skip
        scene = MirrorScene(site, source, target, total, run, at_target)
        scene.clocks = clocks
        for name, bootstrap in (("source", source.bootstrap), ("target", target.bootstrap)):
            scene.clients[name] = stack.enter_context(ClusterClient(bootstrap, codecs=codec_table()))
        scene.mirror("create", LINK)
        yield scene
