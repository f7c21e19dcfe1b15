"""Step 1: a real ZooKeeper and three brokers, and the topic of the configuration. One of the brokers is killed while
producers send, and started again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from klamm import load_settings
from klamm.core.client.factory import open_client
from klamm.plugin import KlammError

from ...coordination.zookeeper.server import ZooKeeperServer
from ..flights import TOPIC
from ..processes import KLAMM, Child, DemoError, Processes, wait_for
from ..report.timeline import Timeline
from ..workspace import BROKERS, Workspace

START_S = 180.0
FAIL_OVER_S = 60.0
PARTITIONS = 6
"""The number of partitions, as in `klamm.yaml`."""
VICTIM_LEADS = 0
"""The partition whose leader is killed."""


class Killed(NamedTuple):
    """The broker that was killed, and the partitions that it led."""

    broker: int
    led: tuple[int, ...]


class Brokers:
    """The processes of the brokers. Use `running_brokers`."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._workspace = workspace
        self._processes = processes
        self._children: dict[int, Child] = {}
        settings = load_settings(workspace.config)
        self._client = open_client(settings, "demo", bootstrap_servers=workspace.bootstrap)
        self.killed: Killed | None = None

    def start(self) -> None:
        """Starts all of them; returns when they are ready."""
        for broker in range(BROKERS):
            self._start(broker, f"broker-{broker}")
        for broker, child in self._children.items():
            wait_for(partial(_ready, child), f"the start of broker {broker}", START_S, child)

    def kill_leader(self) -> Killed:
        """Kills the leader of a partition of the flights with -9."""
        leaders = self._leaders()
        victim = leaders[VICTIM_LEADS]
        if victim not in self._children:
            raise DemoError(f"partition {VICTIM_LEADS} of {TOPIC} has no leader that could be killed")
        self.killed = Killed(victim, tuple(number for number, leader in sorted(leaders.items()) if leader == victim))
        self._children.pop(victim).kill()
        return self.killed

    def await_new_leaders(self) -> None:
        """Waits until live brokers lead all partitions. Raises `DemoError` if they do not in time."""
        assert self.killed is not None
        what = f"a new leader of partitions {self.killed.led}"
        live = self._children
        wait_for(lambda: set(self._leaders().values()) <= live.keys(), what, FAIL_OVER_S, *live.values())

    def start_again(self) -> None:
        """Starts the killed broker again, and returns at once."""
        assert self.killed is not None
        self._start(self.killed.broker, f"broker-{self.killed.broker}-again")

    def all_in_sync(self) -> bool:
        """Returns True if each partition of the flights has all of its replicas in sync."""
        try:
            found = self._client.metadata([TOPIC]).topics[TOPIC].partitions.values()
        except KlammError:
            return False
        return all(len(each.isr) == len(each.replicas) == BROKERS for each in found)

    def check(self) -> None:
        """Raises `DemoError` if a broker has ended that should run."""
        for child in self._children.values():
            child.check()

    def close(self) -> None:
        """Stops all brokers at the same time."""
        self._client.close()
        for child in self._children.values():
            child.signal(signal.SIGTERM)
        for child in self._children.values():
            child.await_stop()

    def _start(self, broker: int, name: str) -> None:
        """Starts brokers. All have one file, in which ids, ports and directories count up from the first broker's."""
        command = [*KLAMM, "broker", "--config", str(self._workspace.config)]
        command += ["--brokers", str(BROKERS), "--only", str(broker)]
        self._children[broker] = self._processes.start(name, command)

    def _leaders(self) -> dict[int, int]:
        """Returns the leader of each partition of the flights, as a live broker knows it; -1: none now."""
        with suppress(KlammError):  # the broker that was asked is perhaps the one that was killed
            partitions = self._client.metadata([TOPIC]).topics[TOPIC].partitions
            return {number: each.leader for number, each in partitions.items()}
        return {VICTIM_LEADS: -1}


@contextmanager
def running_brokers(workspace: Workspace, processes: Processes, timeline: Timeline) -> Iterator[Brokers]:
    """A context in which the brokers and their ZooKeeper run."""
    with ExitStack() as stack:
        with timeline.phase("ZooKeeper"):
            stack.enter_context(ZooKeeperServer(workspace.root / "zookeeper", workspace.zookeeper_port))
        brokers = Brokers(workspace, processes)
        stack.callback(brokers.close)
        with timeline.phase("three brokers"):
            brokers.start()
        yield brokers


def create_topics(workspace: Workspace, processes: Processes) -> None:
    """Runs `klamm topics create --all-from-config`."""
    command = [*KLAMM, "topics", "create", "--all-from-config", "--config", str(workspace.config)]
    processes.run("topics", command, START_S)


def differing_partitions(logs: Sequence[Path]) -> list[int]:
    """Returns the partitions whose segments do not hold the same bytes in each of the brokers' log directories. Nothing
    may be written meanwhile."""
    return [
        number
        for number in range(PARTITIONS)
        if len({b"".join(_segments(log / f"{TOPIC}-{number}")) for log in logs}) > 1
    ]


def _segments(partition: Path) -> Iterator[bytes]:
    return (segment.read_bytes() for segment in sorted(partition.glob("*.log")))


def _ready(child: Child) -> bool:
    return "klamm broker ready" in child.output()
