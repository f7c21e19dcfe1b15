"""Carries out reassignments for `klamm cluster`, a few at a time, and shows their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...config.section import ConfigSource
from ...errors import BrokerError, ErrorCode, KlammError
from ...records.partition import TopicPartition, some_of
from ..output import console, say

if TYPE_CHECKING:
    from ...client.cluster_admin import ClusterAdmin, OngoingReassignment
    from ...client.cluster_client import ClusterClient, ConfigEntry

_POLL_S: Final = 0.5
_QUERIES: Final = 4
"""How many times the replicas are read at the end of the moves before a partition counts as not moved."""
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

Targets = Mapping[TopicPartition, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`left`: partitions that do not have their new replicas, since they were refused, their reassignment was
    cancelled or replaced, or their topic was deleted. `throttles_stay`: a throttle that was set could not be
    removed."""

    left: frozenset[TopicPartition] = frozenset()
    throttles_stay: bool = False

    @property
    def is_success(self) -> bool:
        return not self.left and not self.throttles_stay


def carry_out(
    client: ClusterClient,
    admin: ClusterAdmin,
    targets: Targets,
    most: int,
    throttle: int | None = None,
    *,
    begun: Targets | None = None,
) -> Outcome:
    """Reassigns the partitions, `most` at a time, and returns when no reassignment of them is in progress.

    Prints a line on stderr for each partition that does not have its new replicas, and for each throttle that stays.

    `throttle`: the bytes per second that each broker sends to and receives for replicas that are not in sync
    (KIP-73). `begun`: reassignments already in progress that are waited for, too; they count among the `most`.
    """
    begun = begun or {}
    wanted = {**begun, **targets}
    if not wanted:
        return Outcome()
    throttles = _Throttles(client)
    try:
        if throttle is not None:
            throttles.set(wanted, throttle)
        try:
            left = _carry_out(client, admin, targets, begun, most)
        except KeyboardInterrupt:
            _say("moves in progress continue; klamm cluster reassign --list shows them, --cancel ends them")
            raise
    finally:
        throttles.restore()
    return Outcome(frozenset(left), throttles.stay)


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
    progress = Progress(*columns, TimeElapsedColumn(), console=console())
    copied = progress.add_task("moving", total=len(wanted))
    with ExitStack() as shown:
        while waiting or moving:
            starting = dict(waiting[: max(most - len(moving), 0)])
            if starting:
                del waiting[: len(starting)]
                for tp, error in sorted(admin.alter_reassignments(starting).items()):
                    _say(str(error))
                    refused.append(tp)
                    del starting[tp]
                    del wanted[tp]
                moving.update(starting)
            if moving and not progress.live.is_started:
                shown.enter_context(progress)  # not before: all may be refused
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

    It reads them several times: while the controller changes, another broker answers, which may be behind.
    """
    for attempt in range(_QUERIES):
        if attempt:
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
            continue  # it has just stopped, or this client may not ask it: its replicas count as empty
    parts = 0.0
    for tp, found in ongoing.items():
        whole = max((sizes.get(replica, {}).get(tp, 0) for replica in found.replicas), default=0)
        for replica in found.adding:
            part = sizes.get(replica, {}).get(tp, 0)
            parts += (part / whole if whole else 0.0) / len(found.adding)
    return min(parts, len(ongoing) * 0.99)


class _Waits:
    """Prints what moves wait for that needs an action: a line for each broker that is to get replicas and is not
    live, and one for partitions without a live replica in sync, with the brokers that have their records."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._away: set[int] = set()
        self._stuck: set[TopicPartition] = set()

    def say(self, ongoing: Mapping[TopicPartition, OngoingReassignment]) -> None:
        view = self._client.metadata()
        for broker in sorted({new for found in ongoing.values() for new in found.adding} - view.nodes.keys()):
            if broker not in self._away:
                self._away.add(broker)
                _say(f"broker {broker} is offline: moves to it wait until it is back; --cancel ends them")
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
    """Returns the line for partitions whose replicas in sync are on these brokers, none of which is live."""
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
    say(f"klamm: {line}", err=True)


class _Throttles:
    """Sets throttles on the replication of partitions and resets them. Not thread-safe."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._before: dict[_Resource, dict[str, str | None]] = {}
        """The earlier values on each resource whose throttle is not reset yet."""

    def set(self, targets: Targets, rate: int) -> None:
        from ...client.cluster_client import BROKER_RESOURCE, TOPIC_RESOURCE

        nodes = self._client.metadata().nodes
        brokers = [_Resource(BROKER_RESOURCE, str(broker), str(nodes[broker].address)) for broker in sorted(nodes)]
        topics = [_Resource(TOPIC_RESOURCE, topic) for topic in sorted({tp.topic for tp in targets})]
        before = {resource: self._own(resource, _RATES) for resource in brokers}
        before |= {resource: self._own(resource, _REPLICAS) for resource in topics}
        for resource, own in before.items():
            self._before[resource] = own
            value = str(rate) if resource.type == BROKER_RESOURCE else "*"
            try:
                self._client.alter_configs(resource.name, dict.fromkeys(own, value), resource=resource.type)
            except BrokerError:  # refused, so that nothing is set; without an answer it may be
                del self._before[resource]
                raise

    def restore(self) -> None:
        """Resets the throttles, and prints a line for each topic and broker that keeps its throttle."""
        why: dict[_Resource, str] = {}
        try:
            for resource, own in reversed(list(self._before.items())):
                try:
                    self._client.alter_configs(resource.name, own, resource=resource.type)
                except KlammError as error:
                    if not (resource.is_topic and error.code is ErrorCode.unknown_topic_or_partition):
                        why[resource] = f" ({error})"
                        continue
                del self._before[resource]
        finally:
            for resource, own in self._before.items():
                when = "remove it with" if resource.is_topic else "when it is back, remove it with"
                _say(f"{resource} keeps its throttle{why.get(resource, '')}; {when}: {resource.command(own)}")

    @property
    def stay(self) -> bool:
        return bool(self._before)

    def _own(self, resource: _Resource, names: Iterable[str]) -> dict[str, str | None]:
        return _own(self._client.describe_configs(resource.name, resource=resource.type), names)


@dataclass(frozen=True, slots=True)
class _Resource:
    """A topic, or a broker with its address, on which a throttle is set."""

    type: int
    name: str
    address: str | None = None

    def __str__(self) -> str:
        return f"topic {self.name!r}" if self.is_topic else f"broker {self.name}"

    @property
    def is_topic(self) -> bool:
        return self.address is None

    def command(self, configs: Mapping[str, str | None]) -> str:
        """Returns the command that sets these configs; None: to their defaults."""
        unset = [name for name, value in configs.items() if value is None]
        given = [f"{name}={value}" for name, value in configs.items() if value is not None]
        if self.is_topic:
            options = [f"--unset {name}" for name in unset] + [f"--set '{pair}'" for pair in given]
            return f"klamm topics alter {self.name} {' '.join(options)}"
        each = (("--delete-config", unset), ("--add-config", given))
        options = [f"{option} {','.join(names)}" for option, names in each if names]
        where = f"kafka-configs.sh --bootstrap-server {self.address} --entity-type brokers --entity-name {self.name}"
        return f"{where} --alter {' '.join(options)}"


def _own(configs: Mapping[str, ConfigEntry], names: Iterable[str]) -> dict[str, str | None]:
    """Returns the values that are set on this topic or broker itself; None for the others."""
    return {
        name: configs[name].value if configs[name].source in (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER) else None
        for name in names
    }
