"""Carries out reassignments for `klamm cluster`, a few at a time, and shows their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from ..config.describe import ConfigSource
from ..errors import KlammError
from ..records.partition import TopicPartition, some_of
from .options import console

if TYPE_CHECKING:
    from ..client.cluster_admin import ClusterAdmin, OngoingReassignment
    from ..client.cluster_client import ClusterClient, ConfigEntry

__all__ = ["carry_out"]

_POLL_S: Final = 0.5
_LOOKS: Final = 4
"""Times that the replicas at the end of the moves are read before a partition counts as not moved."""
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

Targets = Mapping[TopicPartition, tuple[int, ...]]


def carry_out(
    client: ClusterClient,
    admin: ClusterAdmin,
    targets: Targets,
    most: int,
    throttle: int | None = None,
    *,
    begun: Targets | None = None,
) -> list[TopicPartition]:
    """Reassigns the partitions, `most` at a time, and returns when no reassignment of them is in progress.

    Returns the partitions that do not have their new replicas: those that were refused, and those whose reassignment
    was cancelled or replaced, or whose topic was deleted. It prints the reason of each on stderr.

    `throttle`: bytes per second that each broker sends to, and takes by, replicas that are not in sync (KIP-73).
    `begun`: reassignments in progress that are waited for, too; they count among the `most`.
    """
    begun = begun or {}
    wanted = {**begun, **targets}
    if not wanted:
        return []
    with _throttled(client, wanted, throttle):
        try:
            return _carry_out(client, admin, targets, begun, most)
        except KeyboardInterrupt:
            _say("moves that have begun continue; klamm cluster reassign --list shows them, --cancel ends them")
            raise


def _carry_out(
    client: ClusterClient, admin: ClusterAdmin, targets: Targets, begun: Targets, most: int
) -> list[TopicPartition]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    wanted = {**begun, **targets}
    waiting = list(targets.items())
    moving: set[TopicPartition] = set(begun)
    refused: list[TopicPartition] = []
    waits = _Waits(client)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:.0f} %"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console()) as progress:
        copied = progress.add_task("moving", total=len(wanted))
        while waiting or moving:
            starting = dict(waiting[: max(most - len(moving), 0)])
            if starting:
                del waiting[: len(starting)]
                for tp, error in sorted(admin.alter_reassignments(starting).items()):
                    _say(f"{error}")
                    refused.append(tp)
                    del starting[tp]
                    del wanted[tp]
                moving.update(starting)
            ongoing = admin.reassignments(moving) if moving else {}
            ongoing = {tp: found for tp, found in ongoing.items() if found.target == wanted[tp]}
            moving = set(ongoing)
            waits.say(ongoing)
            done = len(wanted) - len(waiting) - len(moving)
            progress.update(copied, total=len(wanted), completed=done + _copied(client, admin, ongoing))
            if moving:
                time.sleep(_POLL_S)
    return refused + _not_moved(admin, wanted)


def _not_moved(admin: ClusterAdmin, targets: Targets) -> list[TopicPartition]:
    """Returns the partitions that do not have these replicas, and prints a line for each on stderr.

    It looks again before that: while the controller changes, another broker answers, which may be behind.
    """
    for look in range(_LOOKS):
        if look:
            time.sleep(_POLL_S)
        topics = admin.view().topics
        there = {tp: topics[tp.topic].partitions.get(tp.partition) for tp in targets if tp.topic in topics}
        found = {tp: None if (partition := there.get(tp)) is None else partition.replicas for tp in targets}
        left = sorted(tp for tp, target in targets.items() if found[tp] != target)
        if not left:
            return []
    ongoing = admin.reassignments()
    for tp in left:
        replicas = found[tp]
        if replicas is None:
            why = "its topic was deleted"
        elif tp in ongoing:
            why = f"another reassignment, to {_listed(ongoing[tp].target)}, has followed"
        else:
            why = f"its reassignment was cancelled, or another one followed; it has {_listed(replicas)}"
        _say(f"{tp} does not have the replicas {_listed(targets[tp])}: {why}")
    return left


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _copied(client: ClusterClient, admin: ClusterAdmin, ongoing: Mapping[TopicPartition, OngoingReassignment]) -> float:
    """Returns how many of the reassignments are done, by the bytes that their added replicas have."""
    brokers = {replica for found in ongoing.values() for replica in found.replicas}
    sizes: dict[int, Mapping[TopicPartition, int]] = {}
    for broker in brokers & client.cluster.view.nodes.keys():
        try:
            sizes[broker] = admin.log_directory(broker, ongoing).sizes
        except KlammError:
            continue  # it has just gone, or may not be asked: its replicas count as empty
    parts = 0.0
    for tp, found in ongoing.items():
        whole = max((sizes.get(replica, {}).get(tp, 0) for replica in found.replicas), default=0)
        for replica in found.adding:
            part = sizes.get(replica, {}).get(tp, 0)
            parts += (part / whole if whole else 0.0) / len(found.adding)
    return min(parts, len(ongoing) * 0.99)


class _Waits:
    """Prints what moves wait for that does not pass by itself: a line for each broker that is to get replicas and is
    not live, and one for partitions without a live replica in sync, by the brokers that have their records."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._away: set[int] = set()
        self._stuck: set[TopicPartition] = set()

    def say(self, ongoing: Mapping[TopicPartition, OngoingReassignment]) -> None:
        view = self._client.metadata()
        for broker in sorted({new for found in ongoing.values() for new in found.adding} - view.nodes.keys()):
            if broker not in self._away:
                self._away.add(broker)
                _say(f"broker {broker} is away: moves to it wait until it is back; --cancel ends them")
        stuck: dict[tuple[tuple[int, ...], bool], list[TopicPartition]] = {}
        for tp, found in ongoing.items():
            topic = view.topics.get(tp.topic)
            partition = None if topic is None else topic.partitions.get(tp.partition)
            if partition is None or tp in self._stuck or view.nodes.keys() & set(partition.isr):
                continue
            is_only = set(found.replicas) - set(found.adding) == set(partition.isr)
            stuck.setdefault((partition.isr, is_only and len(partition.isr) == 1), []).append(tp)
            self._stuck.add(tp)
        for (brokers, is_only), partitions in sorted(stuck.items()):
            _say(_why_stuck(partitions, brokers, is_only=is_only))


def _why_stuck(partitions: list[TopicPartition], brokers: tuple[int, ...], *, is_only: bool) -> str:
    """Returns the line for partitions whose replicas in sync are on these brokers, of which none is live."""
    waits = f"{some_of(partitions)} {'waits' if len(partitions) == 1 else 'wait'}"
    if not brokers:
        return f"{waits} for a replica in sync: there is none"
    if is_only:
        return f"{waits} for broker {brokers[0]}, which is not running and has the only copy: start it"
    if len(brokers) == 1:
        return f"{waits} for broker {brokers[0]}, which is not running: no live replica is in sync; start it"
    names = " or ".join(map(str, brokers))
    return f"{waits} for broker {names}, which are not running: no live replica is in sync; start them"


def _say(line: str) -> None:
    typer.echo(f"klamm: {line}", err=True)


@contextmanager
def _throttled(client: ClusterClient, targets: Targets, throttle: int | None) -> Iterator[None]:
    """Limits the replication of these partitions while the block runs."""
    if throttle is None:
        yield
        return
    from ..client.cluster_client import BROKER_RESOURCE

    rates = {
        str(broker): _own(client.describe_configs(str(broker), resource=BROKER_RESOURCE), _RATES)
        for broker in client.metadata().nodes
    }
    replicas = {
        topic: _own(client.describe_configs(topic), _REPLICAS) for topic in sorted({tp.topic for tp in targets})
    }
    for broker in rates:
        client.alter_configs(broker, dict.fromkeys(_RATES, str(throttle)), resource=BROKER_RESOURCE)
    for topic in replicas:
        client.alter_configs(topic, dict.fromkeys(_REPLICAS, "*"))
    try:
        yield
    finally:
        for topic, before in replicas.items():
            client.alter_configs(topic, before)
        for broker, before in rates.items():
            client.alter_configs(broker, before, resource=BROKER_RESOURCE)


def _own(configs: Mapping[str, ConfigEntry], names: Iterable[str]) -> dict[str, str | None]:
    """Returns the values that were set for this topic or broker itself; None for the others."""
    return {
        name: configs[name].value if configs[name].source in (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER) else None
        for name in names
    }
