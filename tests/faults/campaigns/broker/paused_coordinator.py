"""A coordinator is stopped (SIGSTOP) past its session, its group continues at another broker, then it continues."""

from __future__ import annotations

import random
import time
from typing import Any

from harness import Result, Run
from klamm.core.cluster.tree import paths
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import RunningBroker, pause_past_session, running_broker
from klammtest.clients.grouping import commit, commit_fields, joined, stored, sync
from klammtest.requests import metadata
from klammtest.waiting import within
from klammtest.wire import WireClient

TOPIC = "read"
SESSION_MS = 1500
LIMIT_S = 60.0
VERSION = 8
LATE = 3
"""Number of commits of the old member that wait in the socket of the stopped coordinator."""


class PausedCoordinator:
    name = "paused-coordinator"
    injects = (
        "SIGSTOP of a group's coordinator until its session is over; the group goes on at another broker and commits "
        "there, while commits of its old member wait at the first, which then wakes"
    )
    asserts = (
        "the offset that the group committed at the second broker is the one that is stored, whatever the first does"
    )
    plants = "late commits of the old member come to the second broker, which does not check who commits"
    tools = ()

    def run(self, run: Run) -> Result:
        total = Result(wanted=2 if run.quick else 20)
        tree = {
            "plugin": "embedded", "path": str(run.folder / "coordination.db"), "session.timeout.ms": SESSION_MS,
        }  # fmt: skip
        plugins = {"modules": ["klammtest.plugins.without_fence"]} if run.plant else {}
        run.folder.mkdir(parents=True, exist_ok=True)
        with (
            running_broker(
                run.folder / "0", topics={TOPIC: {"partitions": 1}}, coordination=tree, plugins=plugins
            ) as first,
            running_broker(
                run.folder / "1", broker={"broker.id": 1}, coordination=tree, plugins=plugins
            ) as second,
        ):  # fmt: skip
            coordination = load_settings(first.config_path).make_coordination()
            coordination.start()
            try:
                for i, chance in run.injections(2, 20):
                    self._once(i, chance, (first, second), coordination, total, plant=run.plant)
            finally:
                coordination.close()
            for broker in (first, second):
                if "Traceback" in broker.log():
                    total.wrong(0, "a traceback in a broker's log")
        return total

    def _once(
        self,
        i: int,
        chance: random.Random,
        brokers: tuple[RunningBroker, RunningBroker],
        tree: Coordination,
        total: Result,
        *,
        plant: bool,
    ) -> None:
        group = f"group-{i}"
        within(lambda: all(_knows(broker, len(brokers)) for broker in brokers))
        if not within(lambda: _coordinator(brokers[0], group) >= 0):
            total.wrong(i, "the group has no coordinator")
            return
        if not within(lambda: _in_sync(brokers[0])):  # the one that slept last must be able to take over
            total.wrong(i, "the replicas of __consumer_offsets are not in sync")
            return
        number = _coordinator(brokers[0], group)
        sleeper, other = brokers[number], brokers[1 - number]
        with WireClient(sleeper.bootstrap) as wire:
            old = _member(wire, group)
            if commit(wire, group, {(TOPIC, 0): 100}, old)[TOPIC, 0] is not ErrorCode.none:
                total.wrong(i, "the first commit was refused")
            pause_past_session(sleeper, number, tree)
            if not within(lambda: _coordinator(other, group) == 1 - number):
                total.wrong(i, "no broker took over the group")
            with WireClient(other.bootstrap) as successor:
                new = _member(successor, group)
                if commit(successor, group, {(TOPIC, 0): 150}, new)[TOPIC, 0] is not ErrorCode.none:
                    total.wrong(i, "the successor's commit was refused")
                if plant:
                    commit(successor, group, {(TOPIC, 0): 120}, old)
            for late in range(LATE):
                fields = commit_fields(group, {(TOPIC, 0): 120 + late}, old, VERSION)
                wire.send(ApiKey.OFFSET_COMMIT, VERSION, **fields)
            time.sleep(chance.random() * 0.05)
            sleeper.resume()
            total.injected += 1
            taken = 0
            for _ in range(LATE):
                frame = wire.receive_frame()
                if frame is None:
                    break
                taken += 1
            total.count("answered-late", taken)
        within(lambda: tree.exists(paths.broker(number)) is not None)
        found = _stored(brokers, group)
        total.acknowledged += 1
        if found != 150:
            total.lose(i, f"150 was acknowledged by the successor, {found} is stored")


def _member(wire: WireClient, group: str) -> Any:
    """Joins and syncs a member; asks again while the broker does not know yet that it is the coordinator."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            member = joined(wire, group)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        if sync(wire, group, member).error_code is ErrorCode.none:
            return member


def _knows(broker: RunningBroker, count: int) -> bool:
    """Returns True if the broker's metadata image has `count` brokers; with fewer it may soon name another
    coordinator.
    """
    with WireClient(broker.bootstrap) as wire:
        return len(metadata(wire, []).brokers) == count


def _in_sync(broker: RunningBroker) -> bool:
    """Returns True if both brokers are in sync in every partition of `__consumer_offsets`."""
    with WireClient(broker.bootstrap) as wire:
        return all(len(p.isr_nodes) == 2 for p in metadata(wire, ["__consumer_offsets"]).topics[0].partitions)


def _coordinator(broker: RunningBroker, group: str) -> int:
    with WireClient(broker.bootstrap) as wire:
        return int(wire.call(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0).node_id)


def _stored(brokers: tuple[RunningBroker, RunningBroker], group: str) -> int:
    """Returns the offset that the current coordinator answers."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        number = max(_coordinator(broker, group) for broker in brokers)
        if number >= 0:
            with WireClient(brokers[number].bootstrap) as wire:
                found = stored(wire, group, TOPIC, (0,)).get(0)
                if found is not None and found.error_code is ErrorCode.none:
                    return int(found.committed_offset)
        time.sleep(0.05)
    return -2


CAMPAIGNS = [PausedCoordinator()]
