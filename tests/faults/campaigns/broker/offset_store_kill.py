"""A real broker with the topic offset store dies at a fault point of the log while groups commit."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from harness import Result, Run
from klamm.core.errors import ErrorCode
from klamm.core.faults import VARIABLE
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.grouping import commit, stored
from klammtest.wire import WireClient

TOPIC, GROUPS = "read", [f"group-{n}" for n in range(5)]
FEW = 12
POINTS = {
    "log.append.before_write": 200, "log.append.after_write": 200, "log.index.write": 10, "files.write": FEW,
    "files.fsync": FEW, "files.rename": FEW, "files.unlink": 4, "compaction.write": FEW, "compaction.fsync": 4,
    "compaction.swap": FEW, "compaction.swapped": 4, "compaction.remove_old": FEW, "compaction.finish": 4,
    "compaction.finished": 4, "compaction.checkpoint": 4,
}  # fmt: skip
"""Fault points, with the highest pass of each that may be chosen; if that pass is never reached, the broker is killed
with -9.
"""
COMMITS = 400
DEATH_S = 10.0
LOADED_S = 60.0
LOADING = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available)
STORE = {"plugin": "topic", "offsets.topic.num.partitions": 2, "offsets.topic.segment.bytes": 2_048}
CLEANING = {"log.cleaner.backoff.ms": 20, "log.cleaner.min.cleanable.ratio": 0.1, "log.segment.delete.delay.ms": 0}


@dataclass
class Committed:
    """One group: the last offset that was acknowledged, and the last that was sent."""

    acknowledged: int = -1
    sent: int = -1


@dataclass
class Groups:
    of: dict[str, Committed] = field(default_factory=lambda: {name: Committed() for name in GROUPS})
    next: int = 0


class OffsetStoreKill:
    name = "offset-store-kill"
    injects = (
        "SIGKILL at a random pass of the fault points of log and compaction in a real broker whose groups commit to "
        "__consumer_offsets, in segments of 2 KB that are compacted meanwhile"
    )
    asserts = "each group finds the last offset that was acknowledged to it, or one that it sent after that"
    plants = "one offset too many is treated as acknowledged"
    tools = ()

    def run(self, run: Run) -> Result:
        rounds = 2 if run.quick else 60
        total = Result(wanted=rounds)
        groups = Groups()
        with running_broker(
            run.folder / "broker", topics={TOPIC: {"partitions": 1}}, broker=CLEANING, offsets=STORE
        ) as broker:
            for i, chance in run.injections(2, rounds):
                _round(i, chance, broker, groups, total)
                if run.plant:
                    groups.of[GROUPS[0]].acknowledged += 1
                _check(i, broker, groups, total)
        return total


def _round(i: int, chance: random.Random, broker: RunningBroker, groups: Groups, total: Result) -> None:
    """Commits until the broker dies, then starts it again."""
    point = list(POINTS)[i % len(POINTS)]
    broker.stop()
    broker.environment[VARIABLE] = f"{point}@{chance.randint(1, POINTS[point])}=kill"
    try:
        broker.start()
    except RuntimeError:
        total.count("killed-at-start")
    else:
        broken = _commit(i, chance, broker, groups, total)
        total.count("plain-kills", not broker.died(DEATH_S if broken else 0))
    total.injected += 1
    broker.kill()
    broker.environment.clear()
    broker.start()


def _commit(i: int, chance: random.Random, broker: RunningBroker, groups: Groups, total: Result) -> bool:
    """Commits once; returns whether the connection broke."""
    try:
        with WireClient(broker.bootstrap) as wire:
            for _ in range(COMMITS):
                name = chance.choice(GROUPS)
                groups.next += 1
                groups.of[name].sent = groups.next
                (error,) = commit(wire, name, {(TOPIC, 0): groups.next}).values()
                if error is ErrorCode.none:
                    groups.of[name].acknowledged = groups.next
                    total.acknowledged += 1
                elif error in LOADING:
                    time.sleep(0.05)
                elif not broker.died(DEATH_S):  # a dying broker may answer that it cannot store
                    total.wrong(i, f"a commit is answered with {error.name}")
    except (OSError, AssertionError):
        return True
    return False


def _check(i: int, broker: RunningBroker, groups: Groups, total: Result) -> None:
    with WireClient(broker.bootstrap) as wire:
        for name, group in groups.of.items():
            found = _found(wire, name)
            if found is None:
                total.wrong(i, f"{name}: its offset cannot be fetched within {LOADED_S:.0f} s of the start")
            elif found.error_code is not ErrorCode.none:
                total.wrong(i, f"{name}: its offset cannot be fetched: {found.error_code.name}")
            elif found.committed_offset < group.acknowledged:
                total.lose(i, f"{name}: {group.acknowledged} was acknowledged, {found.committed_offset} is stored")
            elif found.committed_offset > group.sent:
                total.corrupt(i, f"{name}: {found.committed_offset} is stored, {group.sent} was sent last")
    if "Traceback" in broker.log():
        total.wrong(i, "a traceback in the broker's log")


def _found(wire: WireClient, group: str) -> Any:
    """Returns the stored offset, None if there is none; tries again while a broker that has just started loads its
    groups.
    """
    deadline = time.monotonic() + LOADED_S
    while time.monotonic() < deadline:
        found = stored(wire, group, TOPIC, (0,)).get(0)
        if found is not None and found.error_code not in LOADING:
            return found
        time.sleep(0.05)
    return None


CAMPAIGNS = [OffsetStoreKill()]
