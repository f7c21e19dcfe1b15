"""The demo from beginning to end, as a story: read this first.

    flights ─▶ 2 producers ─▶ broker ─▶ group of 3 members, one of them killed with -9
                                │
                                └─▶ load job in increments, one of them killed and run again ─▶ lake on HDFS

Producers send a month when they are told to, so that producing goes on while the first three loads run. Then comes the
late day, and at the end everything is counted against everything.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from klamm.plugins.demo.flights import load_flights, split_late
from klamm.plugins.demo.processes import DemoError, Processes
from klamm.plugins.demo.show import Show
from klamm.plugins.demo.steps.audit import audit_table, completeness
from klamm.plugins.demo.steps.cluster import running_cluster
from klamm.plugins.demo.steps.consume import GROUP, MEMBERS, Group
from klamm.plugins.demo.steps.hdfs import Lake, await_hdfs, served_by, start_hdfs
from klamm.plugins.demo.steps.load import Loads, Published
from klamm.plugins.demo.steps.plant import Plant, double_one, lose_one
from klamm.plugins.demo.steps.produce import MONTHS, PRODUCERS, Producers
from klamm.plugins.demo.steps.readback import lake_keys
from klamm.plugins.demo.verdict import Verdict, acknowledged_keys, differences
from klamm.plugins.demo.workspace import Workspace

STEP_S = 0.2
MONTH_S = 2.0
"""Pause between two months: producing goes on while the first loads run."""
MONTHS_ALLOWED = (2, 5, 7, 9, MONTHS)
"""How many months may be asked for by the time of each start of the load job: every increment finds something new, and
the last months wait for its fourth start, the third increment."""
PATIENCE_S = 120.0
AUDIT_WAIT_S, PLANTED_WAIT_S = 30.0, 5.0


@dataclass(frozen=True)
class Size:
    """Flights in the data, and how many of them are held back."""

    all: int
    late: int

    @property
    def in_time(self) -> int:
        return self.all - self.late

    @classmethod
    def of(cls, limit: int) -> Size:
        flights = load_flights(limit)
        return cls(flights.num_rows, split_late(flights)[1].num_rows)


class Story:
    """One run over `limit` flights of each month (0: all)."""

    def __init__(self, workspace: Workspace, show: Show, plant: Plant, lake: Lake, limit: int, size: Size) -> None:
        self._workspace = workspace
        self._show = show
        self._plant = plant
        self._lake = lake
        self._limit = limit
        self._size = size
        self._acknowledged = 0
        self._starts = 0
        self._lost = 0
        self._ended = threading.Event()

    def run(self) -> Verdict:
        """`DemoError` when a step cannot be done; what was counted is in the verdict."""
        with Processes(self._workspace.logs) as processes:
            hdfs = start_hdfs(self._workspace, processes) if self._lake is Lake.HDFS else None
            with running_cluster(self._workspace, processes):
                self._show.say(f"ZooKeeper and a broker run; topic flights has 6 partitions ({self._workspace.config})")
                if hdfs is not None:
                    self._workspace = await_hdfs(hdfs, self._workspace, self._show)
                return self._flow(processes)

    def lake_left(self) -> str:
        """Where the lake is, and how it is reached again."""
        served = served_by(self._workspace)
        return f"{self._workspace.lake}; `{served}` serves it" if served else self._workspace.lake

    def _flow(self, processes: Processes) -> Verdict:
        if self._plant is Plant.LOST:
            self._show.say(f"planted: the broker loses {lose_one(self._workspace, self._limit)}")
            self._lost = 1
        consumed = self._stream(processes)
        self._show.say("all is produced, consumed and loaded; `klamm audit --by month` compares what was counted:")
        wait_s = AUDIT_WAIT_S if self._plant is Plant.NONE else PLANTED_WAIT_S
        self._show.print(audit_table(self._workspace, processes, wait_s))
        lowest, audited = completeness(self._workspace, processes)
        self._show.say(f"Spark reads the lake back: {self._workspace.lake}")
        lake = lake_keys(self._workspace, processes)
        return self._verdict(consumed, lake, lowest, audited)

    def _stream(self, processes: Processes) -> int:
        """All that happens at once; how many positions were consumed."""
        producers = Producers(self._workspace, processes, self._limit, self._plant)
        group = Group(self._workspace, processes)
        loads = Loads(self._workspace, processes)
        self._show.say(f"{PRODUCERS} producers send; {MEMBERS} members of the group {GROUP!r} consume")
        with self._show, ThreadPoolExecutor(1) as pool:
            loading = pool.submit(self._load, producers, loads)
            try:
                self._follow(producers, group, loads, loading)
            except BaseException:
                self._ended.set()
                processes.close()  # a load that runs ends, and its thread with it
                raise
        group.finish()
        return group.consumed()

    def _load(self, producers: Producers, loads: Loads) -> None:
        """The increments, in a thread of their own: three while producing goes on, one of them killed first."""
        self._await_news(loads)
        self._loaded(loads.run())
        self._await_news(loads)
        left = loads.run_killed()
        self._show.say(f"a load is killed with -9 between staging and publishing: {left} staged, nothing published")
        self._await_news(loads)
        self._loaded(loads.run(), ", which loads what the killed one staged")
        self._await_news(loads)
        self._loaded(loads.run())
        self._await(self._size.in_time)
        producers.release()
        self._await(self._size.all)
        self._show.say(f"the {self._size.late} flights of 3 January have arrived late")
        if self._plant is Plant.DOUBLED:
            self._show.say(f"planted: the broker stores {double_one(self._workspace, self._limit)} a second time")
        self._loaded(loads.run(), ", the late day among them")
        producers.finish()

    def _await_news(self, loads: Loads) -> None:
        """Until there is something to load, for which more months may be sent."""
        self._starts += 1
        self._await(loads.rows() + self._lost + 1)

    def _await(self, count: int) -> None:
        """Until so many flights are acknowledged."""
        deadline = time.monotonic() + PATIENCE_S
        while self._acknowledged < count:
            if self._ended.wait(STEP_S):
                raise DemoError("the demo is ending")
            if time.monotonic() > deadline:
                raise DemoError(f"{self._acknowledged} of {count} flights were acknowledged in {PATIENCE_S:g} s")

    def _loaded(self, load: Published, what: str = "") -> None:
        self._show.say(f"load {load.number} is published: {load.rows:,} rows in {load.files} files{what}")

    def _follow(self, producers: Producers, group: Group, loads: Loads, loading: Future[None]) -> None:
        """The rest, until the loads are done and the group has seen what is stored: months, the kill, the bars."""
        month_at = done_at = 0.0
        while True:
            self._acknowledged = producers.acknowledged() + self._lost
            consumed = group.consumed()
            self._show.counts(self._acknowledged, consumed, loads.rows())
            now = time.monotonic()
            if loading.done():
                loading.result()
                done_at = done_at or now
                if consumed >= self._stored() or now - done_at > PATIENCE_S:
                    return
            else:
                producers.check()
            group.check()
            if producers.released < MONTHS_ALLOWED[self._starts] and now - month_at > MONTH_S:
                producers.release()
                month_at = now
            if group.killed is None and consumed > self._size.all // 5:
                self._show.say(f"{group.kill_one()} is killed with -9 after {consumed:,} records of the group")
            time.sleep(STEP_S)

    def _stored(self) -> int:
        """Records that the group has to see: one is lost or doubled where that was planted."""
        return self._size.all - self._lost + (self._plant is Plant.DOUBLED)

    def _verdict(self, consumed: int, lake: Counter[str], lowest: float | None, audited: bool) -> Verdict:
        acknowledged = acknowledged_keys(self._workspace.root.glob("acknowledged-*.txt"))
        missing, duplicated = differences(acknowledged, lake)
        return Verdict(
            expected=self._size.all,
            produced=acknowledged.total(),
            consumed=consumed,
            loaded=lake.total(),
            missing=missing,
            duplicated=duplicated,
            lowest=lowest,
            audited=audited,
            seconds=self._show.seconds,
        )
