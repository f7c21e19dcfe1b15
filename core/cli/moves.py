"""Carries out reassignments for `klamm cluster`, a few at a time, and shows their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from ..config.describe import ConfigSource
from ..errors import KlammError
from ..records.partition import TopicPartition
from .options import console

if TYPE_CHECKING:
    from ..client.cluster_admin import ClusterAdmin, OngoingReassignment
    from ..client.cluster_client import ClusterClient, ConfigEntry

__all__ = ["carry_out"]

_POLL_S: Final = 0.5
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
    """Reassigns the partitions, `most` at a time, and returns when all have their new replicas but those that were
    refused, which it returns; it prints the reason of each on stderr.

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
            typer.echo(
                "klamm: moves that have begun continue; klamm cluster reassign --list shows them, --cancel ends them",
                err=True,
            )
            raise


def _carry_out(
    client: ClusterClient, admin: ClusterAdmin, targets: Targets, begun: Targets, most: int
) -> list[TopicPartition]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    waiting = list(targets.items())
    moving: set[TopicPartition] = set(begun)
    total = len(targets) + len(begun)
    refused: list[TopicPartition] = []
    away: set[int] = set()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:.0f} %"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console()) as progress:
        copied = progress.add_task("moving", total=total)
        while waiting or moving:
            starting = dict(waiting[: max(most - len(moving), 0)])
            if starting:
                del waiting[: len(starting)]
                for tp, error in sorted(admin.alter_reassignments(starting).items()):
                    typer.echo(f"klamm: {error}", err=True)
                    refused.append(tp)
                    del starting[tp]
                total = len(targets) + len(begun) - len(refused)
                moving.update(starting)
            ongoing = admin.reassignments(moving) if moving else {}
            moving = set(ongoing)
            _say_away(client, ongoing, away)
            done = total - len(waiting) - len(moving)
            progress.update(copied, total=total, completed=done + _copied(client, admin, ongoing))
            if moving:
                time.sleep(_POLL_S)
    return refused


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


def _say_away(client: ClusterClient, ongoing: Mapping[TopicPartition, OngoingReassignment], said: set[int]) -> None:
    """Prints a line for each broker that is to get replicas and is not live."""
    live = client.metadata().nodes
    for broker in sorted({replica for found in ongoing.values() for replica in found.adding} - live.keys() - said):
        said.add(broker)
        typer.echo(f"klamm: broker {broker} is away: moves to it wait until it is back; --cancel ends them", err=True)


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
