"""Step 1: a real ZooKeeper and a broker, and the topic of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...coordination.zookeeper_server import ZooKeeperServer
from ..processes import KLAMM, Child, Processes, wait_for
from ..report.timeline import Timeline
from ..workspace import Workspace

START_S = 180.0


@contextmanager
def running_broker(workspace: Workspace, processes: Processes, timeline: Timeline) -> Iterator[Child]:
    """The broker and its ZooKeeper, while the block runs."""
    with ExitStack() as stack:
        with timeline.phase("ZooKeeper"):
            stack.enter_context(ZooKeeperServer(workspace.root / "zookeeper", workspace.zookeeper_port))
        broker = processes.start("broker", [*KLAMM, "broker", "--config", str(workspace.config)])
        try:
            with timeline.phase("the broker"):
                wait_for(lambda: "ready" in broker.output(), "the broker's start", START_S, broker)
            yield broker
        finally:
            broker.stop()


def create_topics(workspace: Workspace, processes: Processes) -> None:
    """`klamm topics create --all-from-config`."""
    command = [*KLAMM, "topics", "create", "--all-from-config", "--config", str(workspace.config)]
    created = processes.run("topics", command, START_S)
    if created.process.returncode != 0:
        raise created.failed()
