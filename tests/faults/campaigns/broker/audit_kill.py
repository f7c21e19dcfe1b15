"""Audited producers are killed at any time, and sometimes the log loses its end; the audit's report is checked.

Each injection has its own topic. A first producer, which closes cleanly, counts in the windows of a past day; the
victim counts in current windows. The victim writes the records acknowledged to it to a file; the stored records are
read from the log.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import klamm
from harness import Result, Run
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.records.header import iter_headers
from klamm.plugins.audit.comparison.compare import TopicAudit
from klamm.plugins.audit.comparison.tiers import State, TierCounts, WindowAudit
from klamm.plugins.audit.event import PRODUCER
from klamm.plugins.audit.query import AuditQuery, ask, audit_config
from klammtest.audits import read_audit_log
from klammtest.broker import RunningBroker, running_broker
from klammtest.waiting import within
from produced import stamped_values

LONG_AGO_MS = 1_356_998_400_000
WINDOW_MS = 60_000
LATENESS_MS = 300_000
INTERVAL_MS = 400
OTHERS = 20
"""Number of records of the producer that is not killed, two in each of its windows."""
LIMIT_S = 60.0
VICTIM = """
import random, sys, time
from klamm import Producer

config, topic, seed, idle = sys.argv[1:]
chance = random.Random(seed)
with Producer(config) as producer:
    for value in range(1000, 100_000):
        stamp = time.time_ns() // 1_000_000 - chance.choice((0, 0, 0, 120_000))
        producer.send(topic, b"%09d" % value, timestamp_ms=stamp).result(60)
        print(value, stamp, flush=True)
        time.sleep(chance.random() * 0.02)
        if value - 1000 == int(idle):
            time.sleep(3600)
"""
"""Sends records of one batch each, waiting for each acknowledgement; after `idle` of them it sends nothing more."""
DAMAGES = ("none", "to what was told", "below it", "above it")


class AuditKill:
    name = "audit-kill"
    injects = (
        "kill -9 of an audited producer at a random time, busy or idle; by chance the broker is killed too and the log "
        "cut, to just what the producer had told the audit, below or above that"
    )
    asserts = (
        "no window in which an acknowledged record is lost is complete; where none is lost nothing is missing or "
        "doubled; a topic with lost records is not complete; the windows of another producer of the topic are complete"
    )
    plants = (
        "a killed producer raises no doubt: its published counts are treated as everything that was acknowledged to it"
    )
    tools = ()

    def run(self, run: Run) -> Result:
        # The plant shows where the log ends at what was told, and not each time: two rounds found it in 2 of 3 runs.
        rounds = 4 if run.plant else 2 if run.quick else 12
        total = Result(wanted=rounds)
        audit = {
            "plugin": "klamm", "window.minutes": WINDOW_MS // 60_000, "publish.interval.ms": INTERVAL_MS,
            "broker.interval.ms": 50, "allowed.lateness.ms": LATENESS_MS,
        }  # fmt: skip
        with running_broker(run.folder / "broker", audit=audit) as broker, planted(run.plant):
            broker.config_path.write_text(
                f"{broker.config_path.read_text()}producer:\n  bootstrap.servers: {broker.bootstrap}\n"
            )
            for i, chance in run.injections(rounds, rounds):
                damage = "to what was told" if run.plant else DAMAGES[(i + 1) % len(DAMAGES)]
                _Round(i, chance, broker, run.folder, total, damage).go()
            if "Traceback" in broker.log():
                total.wrong("all", "a traceback in the broker's log")
        return total


@contextmanager
def planted(plant: bool) -> Iterator[None]:
    if not plant:
        yield
        return
    doubts = TierCounts.doubts
    with mock.patch.object(
        TierCounts, "doubts", lambda counts, start: counts.tier.tier != PRODUCER and doubts(counts, start)
    ):
        yield


@dataclass(frozen=True)
class _Acknowledged:
    value: int
    stamp_ms: int


class _Round:
    def __init__(
        self, i: int, chance: random.Random, broker: RunningBroker, folder: Path, total: Result, damage: str
    ) -> None:
        self._i, self._chance, self._broker, self._total = i, chance, broker, total
        self._topic = f"topic-{i}"
        self._output = folder / f"victim-{i}"
        self._damage = damage
        self._settings = load_settings(broker.config_path)

    def go(self) -> None:
        with self._client() as client:
            client.create_topics({self._topic: NewTopic(1, configs={"retention.ms": "-1", "segment.ms": str(2**62)})})
            with klamm.Producer(self._settings) as other:
                for n in range(OTHERS):
                    other.send(self._topic, b"%09d" % n, timestamp_ms=LONG_AGO_MS + n * WINDOW_MS // 2)
            acknowledged = self._victim()
            if self._damage != "none":
                told = self._told(client)
        self._total.acknowledged += OTHERS + len(acknowledged)
        if self._damage != "none":
            self._broker.kill()
            self._cut(told)
            self._broker.start()
        self._judge({a.value: a.stamp_ms for a in acknowledged})

    def _client(self) -> ClusterClient:
        return ClusterClient(self._broker.bootstrap, codecs=self._settings.codec_table())

    def _victim(self) -> list[_Acknowledged]:
        """Starts the victim, kills it, and returns what was acknowledged to it."""
        idle = self._chance.choice((-1, -1, self._chance.randint(0, 40)))
        command = [sys.executable, "-c", VICTIM, str(self._broker.config_path), self._topic, str(self._i), str(idle)]
        with self._output.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as victim:
            try:
                begun = within(lambda: len(self._lines()) > max(idle, 0))
                time.sleep(self._chance.random() * 3 * INTERVAL_MS / 1000)
            finally:
                os.kill(victim.pid, signal.SIGKILL)
        self._total.injected += 1
        if not begun:
            raise RuntimeError(f"the producer sends nothing: {self._output.read_text()[-500:]}")
        self._total.count("idle", idle >= 0)
        return [_Acknowledged(*map(int, line.split())) for line in self._lines()]

    def _lines(self) -> list[str]:
        """Returns the complete lines."""
        return self._output.read_text().splitlines()[: self._output.read_bytes().count(b"\n")]

    def _told(self, client: ClusterClient) -> int:
        """Returns how many of the topic's records the producers' events count."""
        events = read_audit_log(client, audit_config(self._settings).topic).events
        return sum(w.records for e in events if e.topic == self._topic and e.tier == PRODUCER for w in e.windows)

    def _cut(self, told: int) -> None:
        """Truncates the log at the number of records `told`, or below or above it."""
        by = {"to what was told": 0, "below it": -self._chance.randint(1, 5), "above it": self._chance.randint(1, 5)}
        keep = max(told + by[self._damage], OTHERS)
        (segment,) = (self._broker.log_dir / f"{self._topic}-0").glob("*.log")
        for position, header in iter_headers(segment.read_bytes()):
            if header.base_offset >= keep:
                with segment.open("r+b") as file:
                    file.truncate(position)
                self._total.count("cut")
                return

    def _judge(self, acknowledged: Mapping[int, int]) -> None:
        stored = stamped_values(self._broker.bootstrap, self._topic)
        in_log = Counter(_window(stamp) for stamp in stored.values())
        lost = Counter(_window(stamp) for value, stamp in acknowledged.items() if value not in stored)
        self._total.count("lost-by-cuts", lost.total())
        answer: TopicAudit | None = None
        states: dict[int, State] = {}

        def settled() -> bool:
            """Returns True if the broker tier has counted the stored records, except in windows that it reports as
            wrong.
            """
            nonlocal answer, states
            answer = self._ask()
            states = {window.start_ms: _state(window) for window in answer.windows}
            counted = _counted(answer)
            unlike = {start for start in counted | in_log if counted[start] != in_log[start]}
            said = {start for start in unlike if states.get(start) is State.UNKNOWN}
            said |= {start for start in unlike if lost[start] and states.get(start) is State.MISSING}
            return not answer.live_producers and unlike == said

        if not within(settled):
            assert answer is not None
            self._total.wrong(self._i, f"the audit counts {_counted(answer)} records by window, the log has {in_log}")
        assert answer is not None
        for start in {_window(LONG_AGO_MS + n * WINDOW_MS // 2) for n in range(OTHERS)}:
            if states.get(start) is not State.COMPLETE:
                self._total.wrong(self._i, f"a window of another producer is {states.get(start)}")
        for start in {_window(stamp) for stamp in acknowledged.values()}:
            state = states.get(start)
            self._total.count("not-listed" if state is None else str(state))
            if lost[start] and state is State.COMPLETE:
                what = f"{lost[start]} acknowledged records of a window are lost, but the audit calls it complete"
                self._total.lose(self._i, what, lost[start])
            if not lost[start] and state not in (State.COMPLETE, State.UNKNOWN):
                self._total.wrong(self._i, f"no record of a window is lost, but the audit calls it {state}")
        if lost and answer.complete:
            self._total.wrong(self._i, "records are lost, but the audit calls the topic complete")

    def _ask(self) -> TopicAudit:
        with self._client() as client:
            (answer,) = ask(client, audit_config(self._settings), AuditQuery(topics=(self._topic,))).audits
        return answer


def _window(stamp_ms: int) -> int:
    return stamp_ms - stamp_ms % WINDOW_MS


def _counted(answer: TopicAudit) -> Counter[int]:
    """Returns the broker tier's records by window."""
    cells = {w.start_ms: c.records for w in answer.windows for tier, c in w.cells.items() if tier.tier == "broker"}
    return Counter({start: records for start, records in cells.items() if records})


def _state(window: WindowAudit) -> State:
    """Returns the worst state of its cells."""
    order = list(State)
    return max((cell.state for cell in window.cells.values()), key=order.index)


CAMPAIGNS = [AuditKill()]
