"""The demo from beginning to end, as a story: read this first.

    flights ─▶ 2 producers ─▶ 3 live brokers ─▶ group of 3 members, one of them killed with -9
                                    │
                                    ├─▶ schema registry, used by REST from confluent-kafka
                                    └─▶ 1 offline broker, a mirror, killed with -9 and started again
                                            │
                                            ├─▶ audit, of both clusters
                                            └─▶ load job, killed in one run and started again ─▶ lake on HDFS

Each partition has three replicas at the live cluster. A live broker is killed with -9 while the producers send a month:
the others lead its partitions, and later it starts again and catches up. The offline cluster has a coordination of its
own and copies the same bytes.

Producers send a month on request, so that producing continues while the load job is killed and restarted. Then the late
day follows, and at the end all counts are compared.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ..audit.query import Answer
from .flights import TOPIC, load_flights, split_late
from .outage import MirrorOutage, Outage
from .processes import DemoError, Processes
from .report.report import Report
from .report.timeline import MarkKind, Timeline
from .show import Show
from .steps.audit import ask_audit, lowest, table
from .steps.cluster import PARTITIONS, Brokers, create_topics, differing_partitions, running_brokers
from .steps.consume import GROUP, MEMBERS, Group
from .steps.hdfs import LakeFileSystem, StartingHdfs, await_hdfs, served_by, start_hdfs
from .steps.load import Loads, PeriodicLoad
from .steps.mirror import Mirror
from .steps.plant import Plant, double_one, lose_one
from .steps.produce import MONTHS, PRODUCERS, Producers
from .steps.readback import Readback
from .steps.registry import RegisteredVersions, Registry
from .verdict import Verdict, acknowledged_keys, differences
from .workspace import BROKERS, Workspace

STEP_S = 0.2
MONTH_S = 1.5
"""Pause between two months, so that producing continues while the first loads run."""
MONTHS_ALLOWED = (3, 6, 8, MONTHS)
"""The months that may be requested at the start, after the first load, after the kill, and after the load that
follows it, so that each of these has records to load."""
PATIENCE_S = 120.0
LOAD_S = 600.0
AUDIT_WAIT_S, PLANTED_WAIT_S = 30.0, 8.0


@dataclass(frozen=True)
class Size:
    """The number of flights in the data, and of those that are held back."""

    all: int
    late: int

    @property
    def in_time(self) -> int:
        return self.all - self.late

    @classmethod
    def of(cls, limit: int) -> Size:
        flights = load_flights(limit)
        return cls(flights.num_rows, split_late(flights)[1].num_rows)


@dataclass(frozen=True)
class _Parts:
    """What runs beside each other."""

    processes: Processes
    brokers: Brokers
    producers: Producers
    mirror: Mirror
    hdfs: StartingHdfs | None
    registry: Registry


class Story:
    """One run over `limit` flights of each month (0: all)."""

    def __init__(
        self, workspace: Workspace, show: Show, plant: Plant, lake: LakeFileSystem, limit: int, size: Size
    ) -> None:
        self._workspace = workspace
        self._show = show
        self._plant = plant
        self._lake = lake
        self._limit = limit
        self._size = size
        self._timeline = Timeline(lambda: show.seconds)
        self._acknowledged = 0
        self._mirrored = 0
        self._allowed = 0
        self._lost = 0
        self._planted = ""
        self._begun_s = show.seconds
        self._ended = threading.Event()

    def run(self) -> Report:
        """Runs the demo. Raises `DemoError` if a step cannot be carried out; the counts are in the report's verdict."""
        with Processes(self._workspace.logs) as processes:
            hdfs = start_hdfs(self._workspace, processes) if self._lake is LakeFileSystem.HDFS else None
            mirror = Mirror(self._workspace, processes)
            with running_brokers(self._workspace, processes, self._timeline) as brokers:
                producers = Producers(self._workspace, processes, self._limit, self._plant)
                with self._timeline.phase("klamm topics create"):
                    create_topics(self._workspace, processes)
                self._show.say(
                    f"ZooKeeper and {BROKERS} brokers run; topic {TOPIC} has {PARTITIONS} partitions with {BROKERS} "
                    f"replicas each ({self._workspace.config})"
                )
                registry = Registry(self._workspace, processes)
                return self._flow(_Parts(processes, brokers, producers, mirror, hdfs, registry))

    def lake_left(self) -> str:
        """Returns the lake's path, and the command to serve it again."""
        served = served_by(self._workspace)
        return f"{self._workspace.lake}; `{served}` serves it" if served else self._workspace.lake

    def _flow(self, parts: _Parts) -> Report:
        if self._plant is Plant.LOST:
            self._tell_planted(f"the brokers lose {lose_one(self._workspace, self._limit)}")
            self._lost = 1
        parts.mirror.await_start()
        parts.mirror.follow()
        self._show.say(f"the offline cluster, one broker, mirrors {TOPIC} ({self._workspace.offline})")
        group = Group(self._workspace, parts.processes)
        self._show.say(f"{PRODUCERS} producers send; {MEMBERS} members of the group {GROUP!r} consume")
        outages: list[Outage | MirrorOutage] = [Outage(parts.brokers, self._tell, lambda: self._show.seconds)]
        if self._plant is not Plant.LOST:  # a log that starts again does not know the planted batch's transaction
            outages.append(MirrorOutage(parts.mirror, self._tell, lambda: self._show.seconds))
        with ThreadPoolExecutor(2) as pool, self._threads_end(parts.processes):
            registering = pool.submit(self._register, parts.registry)
            loads = self._stream(parts, group, outages, pool)
            registered = registering.result()
        differing = self._compare_replicas()
        self._show.say(f"all is produced, consumed and loaded; Spark reads the lake back: {self._workspace.lake}")
        with self._timeline.phase("Spark reads the lake back"):
            readback = Readback(self._workspace, parts.processes)
            answer = self._audit(group)
            lake = readback.keys()
        verdict = self._verdict(group.consumed(), lake, answer, differing, registered)
        return Report(verdict, self._timeline, loads.published, self._workspace.lake, answer, self._planted)

    def _register(self, registry: Registry) -> RegisteredVersions:
        """Uses the registry, in a thread of its own."""
        registered = registry.use()
        self._tell(
            f"the registry has {registered.schemas} versions of the flights' schema, by REST from confluent-kafka; "
            f"{registered.refused} incompatible one was refused"
        )
        return registered

    def _compare_replicas(self) -> int:
        """Returns the number of partitions whose replicas, or whose mirror, differ."""
        differing = differing_partitions([*self._workspace.broker_logs, self._workspace.mirror_log])
        if differing:
            self._tell(
                f"the replicas of partitions {', '.join(map(str, differing))} of {TOPIC}, or their mirrors, differ"
            )
        else:
            self._tell(f"{BROKERS} live brokers and the mirror hold the same bytes of each partition of {TOPIC}")
        return len(differing)

    def _audit(self, group: Group) -> Answer:
        """Runs the audit, once the members have committed the offsets of all records that they have consumed."""
        with self._timeline.phase("the group commits and ends"):
            group.finish()
        for taken in group.taken_over():
            partitions = ", ".join(map(str, taken.partitions))
            self._timeline.mark(MarkKind.REBALANCE, f"{taken.member} takes over partitions {partitions}", taken.at_s)
        self._show.say("`klamm audit --by month` compares what was counted:")
        with self._timeline.phase("audit"):
            answer = ask_audit(self._workspace, AUDIT_WAIT_S if self._plant is Plant.NONE else PLANTED_WAIT_S)
        self._show.print(table(answer))
        return answer

    # -- all that happens at once

    @contextmanager
    def _threads_end(self, processes: Processes) -> Iterator[None]:
        """Ends the threads that the block has started, and what they run, if the block ends by an exception: Ctrl-C may
        come anywhere in it, also while a thread starts."""
        try:
            yield
        except BaseException:
            self._ended.set()
            processes.close()
            raise

    def _stream(
        self, parts: _Parts, group: Group, outages: Sequence[Outage | MirrorOutage], pool: ThreadPoolExecutor
    ) -> Loads:
        self._allowed = MONTHS_ALLOWED[0]
        started: Future[Loads] = Future()
        with self._show:
            loading = pool.submit(self._load, parts, started)
            self._follow(parts, group, outages, started, loading)
        return started.result()

    def _load(self, parts: _Parts, started: Future[Loads]) -> None:
        """Runs the loads, in a separate thread: the job is killed in its second load, and the one after it loads the
        rest.
        """
        if parts.hdfs is not None:
            self._workspace = await_hdfs(parts.hdfs, self._workspace, self._show)
            self._timeline.add_phase("HDFS, beside all else", self._begun_s, self._show.seconds)
        self._look_until(lambda: self._mirrored > 0 and parts.mirror.schemas() > 0, "the mirror")
        loads = Loads(self._workspace, parts.processes)
        started.set_result(loads)
        self._until_killed(loads)
        self._allowed = MONTHS_ALLOWED[2]
        begun_s = self._show.seconds
        job = loads.start()
        self._look_until(lambda: bool(self._look(loads, job, begun_s)), "a load after the killed one")
        self._allowed = MONTHS_ALLOWED[3]
        self._look_until(lambda: self._all_in_time(loads, job), "the last month")
        parts.producers.release()
        self._await(self._size.all)
        self._tell(f"the {self._size.late} flights of 3 January have arrived late")
        if self._plant is Plant.DOUBLED:
            self._tell_planted(f"the brokers store {double_one(self._workspace, self._limit)} a second time")
        all_s = time.time()
        self._look_until(lambda: self._has_all(loads, job, all_s), "the load of the late day")
        job.stop()
        parts.producers.finish()
        job.end()

    def _until_killed(self, loads: Loads) -> None:
        begun_s = self._show.seconds
        doomed = loads.start_doomed()
        loads.find()  # the NameNode's first WebHDFS response takes seconds: Spark starts meanwhile
        self._look_until(lambda: bool(self._look(loads, doomed, begun_s)), "the first load")
        self._allowed = MONTHS_ALLOWED[1]
        published_s = self._show.seconds
        self._look_until(doomed.has_died, "the kill of the load job")
        self._timeline.add_phase("the load that is killed", published_s, self._show.seconds)
        doomed.clear()
        if loads.find():
            raise DemoError("a load that was killed before publishing has published something")
        self._tell(
            f"a load is killed with -9 between staging and publishing: {loads.staged()} staged, nothing published",
            MarkKind.KILL,
        )

    def _look(self, loads: Loads, job: PeriodicLoad, begun_s: float | None = None) -> bool:
        """Reports loads that have become visible since the last call; returns whether there are any. `begun_s`: the
        start of the job, if this is its first load."""
        runs = {run.load: run for run in job.take_runs() if run.status == "loaded"}
        new = loads.find() if runs else []
        for load in new:
            self._tell(
                f"load {load.number} is published: {load.rows:,} rows in {load.files} files",
                MarkKind.LOAD,
            )
            run = runs.get(load.number)
            if run is not None:
                from_s = self._timeline.seconds_of(run.from_s) if begun_s is None else begun_s
                what = f"load {load.number}" + ("" if begun_s is None else ", with the start of Spark")
                self._timeline.add_phase(what, from_s, self._timeline.seconds_of(run.to_s))
        return bool(new)

    def _all_in_time(self, loads: Loads, job: PeriodicLoad) -> bool:
        """Returns True if everything except the late day is acknowledged; follows the loads meanwhile."""
        self._look(loads, job)
        return self._acknowledged >= self._size.in_time

    def _has_all(self, loads: Loads, job: PeriodicLoad, since_s: float) -> bool:
        """Returns True if the lake has everything stored, or a run that began since then has found nothing new."""
        self._look(loads, job)
        return loads.rows() >= self._stored() or any(run.status == "empty" and run.from_s > since_s for run in job.runs)

    def _look_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LOAD_S
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"{what} did not come about within {LOAD_S:g} s")
            self._pause()

    def _await(self, count: int) -> None:
        """Waits until that many flights are acknowledged."""
        deadline = time.monotonic() + PATIENCE_S
        while self._acknowledged < count:
            self._pause()
            if time.monotonic() > deadline:
                raise DemoError(f"{self._acknowledged} of {count} flights were acknowledged in {PATIENCE_S:g} s")

    def _pause(self) -> None:
        if self._ended.wait(STEP_S):
            raise DemoError("the demo is ending")

    def _follow(
        self,
        parts: _Parts,
        group: Group,
        outages: Sequence[Outage | MirrorOutage],
        started: Future[Loads],
        loading: Future[None],
    ) -> None:
        """Carries out the remaining events (months, kills, progress bars) until the loads are done, the group has
        read everything and all replicas are in sync."""
        producers, month_at, done_at = parts.producers, 0.0, 0.0
        producing_s = self._show.seconds
        while True:
            self._acknowledged = producers.acknowledged() + self._lost
            consumed = group.consumed()
            self._mirrored = parts.mirror.flights()
            loaded = started.result().rows() if started.done() else 0
            self._timeline.sample(self._acknowledged, consumed, loaded)
            self._show.counts(self._acknowledged, consumed, self._mirrored, loaded)
            now = time.monotonic()
            if producing_s and self._acknowledged >= self._size.in_time:
                self._timeline.add_phase("producing", producing_s, self._show.seconds)
                producing_s = 0.0
            if loading.done():
                loading.result()
                done_at = done_at or now
                if (consumed >= self._stored() and all(each.over for each in outages)) or now - done_at > PATIENCE_S:
                    return
            else:
                producers.check()
            group.check()
            for outage in outages:
                outage.advance(producers.released)
            if producers.released < self._allowed and now - month_at > MONTH_S:
                producers.release()
                month_at = now
            if group.killed is None and consumed > self._size.all // 5:
                self._tell(
                    f"{group.kill_one()} is killed with -9 after {consumed:,} records of the group", MarkKind.KILL
                )
            time.sleep(STEP_S)

    # -- what it says

    def _tell(self, text: str, kind: MarkKind = MarkKind.NEWS) -> None:
        self._show.say(text)
        self._timeline.mark(kind, text)

    def _tell_planted(self, text: str) -> None:
        self._planted = text
        self._tell(f"planted: {text}")

    def _stored(self) -> int:
        """Returns how many records the group must read: one less or more if an anomaly was planted."""
        return self._size.all - self._lost + (self._plant is Plant.DOUBLED)

    def _verdict(
        self, consumed: int, lake: Counter[str], answer: Answer, differing: int, registered: RegisteredVersions
    ) -> Verdict:
        acknowledged = acknowledged_keys(self._workspace.root.glob("acknowledged-*.txt"))
        missing, duplicated = differences(acknowledged, lake)
        return Verdict(
            expected=self._size.all,
            produced=acknowledged.total(),
            consumed=consumed,
            mirrored=self._mirrored,
            loaded=lake.total(),
            missing=missing,
            duplicated=duplicated,
            lowest=lowest(answer),
            audited=answer.complete,
            seconds=self._show.seconds,
            differing=differing,
            registered=registered,
        )
