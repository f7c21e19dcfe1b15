"""`klamm cluster`: shows brokers and replicas, evens them out, empties a broker, moves partitions."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...cluster.balance import (
    Move,
    PlacedPartition,
    Placement,
    plan_drain,
    plan_factor,
    plan_leaders,
    plan_moves,
)
from ...config.limits import INT_MAX, LONG_MAX, SHORT_MAX
from ...errors import BrokerError, ConfigError, KlammError
from ...records.partition import TopicPartition, counted, some_of
from ...transport.address import Address
from ..options import (
    DEFAULT_CONFIG,
    Bootstrap,
    ConfigFile,
    cluster_client,
    interval_s,
)
from ..output import Json, Shown, console, say, say_json, say_rows
from .moves import carry_out

if TYPE_CHECKING:
    from ...client.cluster_admin import ClusterAdmin, OngoingReassignment
    from ...client.cluster_client import ClusterClient
    from ...client.network.metadata import ClusterView

app = typer.Typer(
    add_completion=False, help="Show brokers and replicas, even them out, empty a broker.", no_args_is_help=True
)
Most = Annotated[int, typer.Option("--moves", min=1, metavar="N", help="Partitions that are moved at a time.")]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        max=LONG_MAX,
        metavar="BYTES",
        help="Bytes a second, for each broker, of replicas that move.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be moved, and move nothing.")]
_POLL_S: Final = 0.5
_SHOWN: Final = 20
_KEPT: Final = 3
"""The most partitions that keep their leaders and get a line each."""
_NAMED: Final = re.compile(r"(?P<topic>[^:=]+)(:(?P<partition>\d+))?(=(?P<replicas>\d+(,\d+)*))?", re.ASCII)
_MOST_SHOWN: Final = 40
"""The most characters of a wrong argument that an error shows."""


@dataclass(frozen=True, slots=True)
class Health:
    """`offline` have no leader, `under_replicated` fewer replicas in sync than they have, `moving` are reassigned."""

    partitions: int
    offline: tuple[TopicPartition, ...]
    under_replicated: tuple[TopicPartition, ...]
    moving: tuple[TopicPartition, ...]

    @property
    def is_well(self) -> bool:
        return not self.offline and not self.under_replicated

    def lines(self) -> Iterable[str]:
        yield (
            f"{counted(self.partitions, 'partition')}: {len(self.offline)} without a leader, "
            f"{len(self.under_replicated)} under-replicated, {len(self.moving)} being moved"
        )
        for what, found in (("without a leader", self.offline), ("under-replicated", self.under_replicated)):
            if found:
                yield f"{what}: {some_of(found)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "without_leader": list(map(str, self.offline)),
            "under_replicated": list(map(str, self.under_replicated)),
            "moving": list(map(str, self.moving)),
        }


@app.command()
def status(
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="Wait this long (90s, 10m) until no partition lacks a replica."),
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show the brokers, and the partitions that lack a leader or replicas.

    The exit status is 1 if any partition lacks one; with --wait, if one still does when the time is over.
    """
    limit_s = None if wait is None else interval_s("--wait", wait)
    with cluster_client(config, bootstrap) as client:
        admin = _admin(client)
        health = _health(admin)
        if limit_s is not None:
            health = _wait_until_well(admin, health, limit_s, quiet=as_json)
        rows = list(_broker_rows(admin, admin.view()))
    if as_json:
        say_json({**health.as_json(), "brokers": rows})
    else:
        columns = ("broker", "address", "rack", "leads", "replicas", "out_of_sync", "size", "free")
        say_rows(columns, ({**row, "address": _address(row)} for row in rows))
        for line in health.lines():
            say(line)
    if not health.is_well:
        since = "" if wait is None else f" still, after {wait}"
        raise KlammError(f"partitions lack a leader or replicas{since}")


@app.command()
def balance(
    moves: Most = 5,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Even out replicas and leaders over the brokers, and spread replicas over racks, a few partitions at a time."""
    _check_json(as_json, dry_run)
    with cluster_client(config, bootstrap) as client:
        admin = _admin(client)
        moved = 0
        while True:
            placement, racks = _placement(admin)
            planned = plan_moves(placement, racks, len(placement) if dry_run else moves)
            if dry_run:
                _show(planned, as_json)
                return
            if not planned:
                break
            _show(planned)
            moved += len(planned)
            targets = {move.partition: move.replicas for move in planned}
            if not carry_out(client, admin, targets, moves, throttle).is_success:
                raise typer.Exit(1)
        placement, racks = _placement(admin)
        ordered = plan_leaders(placement, racks)
        _refuse_none(admin.alter_reassignments({move.partition: move.replicas for move in ordered}))
        refused = admin.elect_preferred_leaders()
        say(f"{counted(moved, 'replica')} moved, {counted(len(ordered), 'preferred leader')} changed")
        for line in kept_leaders(refused):
            say(f"klamm: {line}", err=True)


def kept_leaders(refused: Mapping[TopicPartition, BrokerError]) -> list[str]:
    """Returns a line for each partition whose preferred replica was not elected; if there are many, one line with
    the first three."""
    why = {tp: error.words.removeprefix(f"{tp}: ") for tp, error in sorted(refused.items())}
    if len(why) <= _KEPT:
        return [f"{tp} keeps its leader: {words}" for tp, words in why.items()]
    first = "; ".join(f"{tp}: {words}" for tp, words in islice(why.items(), _KEPT))
    return [f"{len(why)} partitions keep their leaders: {first}; and {len(why) - _KEPT} more"]


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", max=INT_MAX, help="The broker to be emptied.")],
    moves: Most = 5,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Move every replica off a broker, which can be stopped for good afterwards."""
    _check_json(as_json, dry_run)
    with cluster_client(config, bootstrap) as client:
        admin = _admin(client)
        layout = _layout(admin)
        racks = layout.racks
        if broker not in racks and not _replicas_of(layout.view, broker):
            known = ", ".join(map(str, sorted(racks)))
            raise ConfigError(f"broker {broker} is not live and has no replicas (live brokers: {known})")
        planned = plan_drain(layout.placement, racks, broker)
        begun = {tp: found.target for tp, found in layout.ongoing.items() if broker in found.removing}
        if as_json:
            _show(planned, as_json)
            return
        if planned or not begun:
            _show(planned)
        if begun:
            say(f"{counted(len(begun), 'move')} off broker {broker} in progress: {some_of(begun)}")
        if dry_run:
            return
        targets = {move.partition: move.replicas for move in planned}
        outcome = carry_out(client, admin, targets, moves, throttle, begun=begun)
        if outcome.left:
            raise typer.Exit(1)
        left = _replicas_of(admin.view(), broker)
    if left:
        raise KlammError(f"broker {broker} still has replicas, or got new ones: {some_of(left)}; drain it again")
    say(f"broker {broker} has no replicas: it can be stopped")
    if not outcome.is_success:
        raise typer.Exit(1)


@app.command()
def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", max=INT_MAX, help="A broker that will not return.")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Remove what the cluster stores of a broker that will not return; it must have no replicas."""
    with cluster_client(config, bootstrap) as client:
        _admin(client).unregister_broker(broker)
    say(f"broker {broker}: unregistered")


@app.command()
def reassign(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC:PARTITION=BROKERS…", help="orders:0=1,2,3; with the options below also TOPIC."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=SHORT_MAX,
            help="Give every partition of these topics N replicas.",
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the reassignments of these, or of all.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the reassignments in progress.")] = False,
    moves: Most = 5,
    throttle: Throttle = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Move partitions to other brokers, change a topic's replication factor, or show and cancel what is in progress."""
    given = [_parsed(text) for text in partitions or ()]
    if as_json and not (show or cancel):
        raise ConfigError("cluster reassign: --json applies only with --list or --cancel")
    if show or cancel:
        _check_shown(given, replication_factor, cancel=cancel, show=show)
    with cluster_client(config, bootstrap) as client:
        admin = _admin(client)
        if show or cancel:
            if given:
                _check_there(_placement(admin)[0], given)
            ongoing = {tp: found for tp, found in admin.reassignments().items() if _chosen(tp, given)}
            if cancel:
                _refuse_none(admin.alter_reassignments(dict.fromkeys(ongoing)))
            rows = (
                {
                    "partition": str(tp),
                    "replicas": list(found.replicas),
                    "adding": list(found.adding),
                    "removing": list(found.removing),
                }
                for tp, found in sorted(ongoing.items())
            )
            say_rows(("partition", "replicas", "adding", "removing"), rows, as_json)
            if not as_json:
                say(f"{len(ongoing)} {'cancelled' if cancel else 'in progress'}")
            return
        placement, racks = _placement(admin)
        targets = _targets(placement, racks, given, replication_factor)
        outcome = carry_out(client, admin, targets, moves, throttle)
        done = sorted(targets.keys() - outcome.left)
        if outcome.left:
            for tp in done:
                say(f"{tp}: reassigned")
        else:
            say(f"{counted(len(done), 'partition')} reassigned")
        if not outcome.is_success:
            raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Named:
    """An argument of `reassign`: a topic, a partition, or either with its new replicas."""

    topic: str
    partition: int | None
    replicas: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.without_replicas + ("" if self.replicas is None else f"={_numbers(self.replicas)}")

    @property
    def without_replicas(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}:{self.partition}"


def _parsed(text: str) -> _Named:
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(f"{_short(text)!r}: expected TOPIC, TOPIC:PARTITION or TOPIC:PARTITION=BROKER,BROKER")
    partition, replicas = match["partition"], match["replicas"]
    return _Named(
        match["topic"],
        None if partition is None else _number(partition, text),
        None if replicas is None else tuple(_number(digits, text) for digits in replicas.split(",")),
    )


def _number(digits: str, text: str) -> int:
    """Returns the number of a partition or a broker; raises `ConfigError` for one that no request can carry."""
    significant = digits.lstrip("0") or "0"
    if len(significant) <= len(str(INT_MAX)) and int(significant) <= INT_MAX:
        return int(significant)
    raise ConfigError(
        f"{_short(text)}: {_short(digits)} is above {INT_MAX}, the largest number of a partition or a broker"
    )


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _check_shown(given: list[_Named], factor: int | None, *, cancel: bool, show: bool) -> None:
    """Raises `ConfigError` for arguments that --list and --cancel do not accept."""
    option = "--cancel" if cancel else "--list"
    if cancel and show:
        raise ConfigError("cluster reassign: give --list or --cancel, not both")
    if factor is not None:
        raise ConfigError(f"cluster reassign: give --replication-factor or {option}, not both")
    for each in given:
        if each.replicas is not None:
            raise ConfigError(f"{each}: name partitions beside {option} without brokers: {each.without_replicas}")


def _check_there(placement: Placement, given: list[_Named]) -> None:
    """Raises `ConfigError` for the first of the named topics and partitions that does not exist."""
    for each in given:
        if not any(_chosen(tp, [each]) for tp in placement):
            example = "; name partitions as in orders:0=1,2,3" if each.topic.endswith(".json") else ""
            raise ConfigError(f"{each.without_replicas}: there is no such topic or partition{example}")


def _chosen(tp: TopicPartition, given: list[_Named]) -> bool:
    return not given or any(tp.topic == each.topic and each.partition in (None, tp.partition) for each in given)


def _targets(
    placement: Placement, racks: Mapping[int, str | None], given: list[_Named], factor: int | None
) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the new replicas of the named partitions. Raises `ConfigError` for arguments that make no sense."""
    if not given:
        raise ConfigError("cluster reassign: name partitions (orders:0=1,2,3), or use --list or --cancel")
    _check_there(placement, given)
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for each in given:
        if (each.replicas is None) is (factor is None):
            raise ConfigError(
                f"{each.without_replicas}: name the brokers of a partition ({each.topic}:{each.partition or 0}=1,2,3), "
                "or give --replication-factor for topics, not both"
            )
        if each.replicas is not None:
            if each.partition is None:
                raise ConfigError(f"{each.topic}={_numbers(each.replicas)}: which partition? {each.topic}:0=…")
            partition = TopicPartition(each.topic, each.partition)
            if partition in targets:
                raise ConfigError(f"{each.without_replicas} is given twice; name each partition once")
            targets[partition] = each.replicas
    if factor is not None:
        chosen = {tp for tp in placement if _chosen(tp, given)}
        targets = {move.partition: move.replicas for move in plan_factor(placement, racks, chosen, factor)}
    return targets


def _admin(client: ClusterClient) -> ClusterAdmin:
    from ...client.cluster_admin import ClusterAdmin

    return ClusterAdmin(client)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The cluster as the controller shows it, and the reassignments in progress."""

    view: ClusterView
    ongoing: Mapping[TopicPartition, OngoingReassignment]

    @property
    def placement(self) -> dict[TopicPartition, PlacedPartition]:
        """Returns the partitions; those that are being reassigned with their target replicas."""
        placement = {}
        for name, topic in self.view.topics.items():
            for number, found in topic.partitions.items():
                tp = TopicPartition(name, number)
                replicas = self.ongoing[tp].target if tp in self.ongoing else found.replicas
                placement[tp] = PlacedPartition(found.leader, replicas, found.isr, tp in self.ongoing)
        return placement

    @property
    def racks(self) -> dict[int, str | None]:
        """Returns the live brokers' racks."""
        return {node.node_id: node.rack for node in self.view.nodes.values()}


def _layout(admin: ClusterAdmin) -> _Layout:
    """Reads the reassignments before and after the partitions, so that a partition whose reassignment starts or ends
    meanwhile has the replicas of its target, not the old and the new ones together."""
    before = admin.reassignments()
    view = admin.view()
    return _Layout(view, {**before, **admin.reassignments()})


def _placement(admin: ClusterAdmin) -> tuple[Placement, dict[int, str | None]]:
    """Returns the partitions (those that are being reassigned with their target replicas) and the live brokers'
    racks."""
    layout = _layout(admin)
    return layout.placement, layout.racks


def _replicas_of(view: ClusterView, broker: int) -> list[TopicPartition]:
    """Returns the partitions of which the broker has a replica now; a partition that is being moved off it counts
    until the move has ended."""
    return [
        TopicPartition(name, number)
        for name, topic in view.topics.items()
        for number, found in topic.partitions.items()
        if broker in found.replicas
    ]


def _health(admin: ClusterAdmin) -> Health:
    view = admin.view()
    ongoing = admin.reassignments()
    offline, under, count = [], [], 0
    for name, topic in sorted(view.topics.items()):
        for number, found in sorted(topic.partitions.items()):
            tp = TopicPartition(name, number)
            count += 1
            if found.leader not in view.nodes:
                offline.append(tp)
            adding = ongoing[tp].adding if tp in ongoing else ()
            if not set(found.replicas) - set(adding) <= set(found.isr) or found.leader not in view.nodes:
                under.append(tp)
    return Health(count, tuple(offline), tuple(under), tuple(sorted(ongoing)))


def _wait_until_well(admin: ClusterAdmin, health: Health, limit_s: float, *, quiet: bool) -> Health:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    deadline = time.monotonic() + limit_s
    lacking = len(health.under_replicated)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]} left"))
    with Progress(*columns, TimeElapsedColumn(), console=console(), transient=True, disable=quiet) as progress:
        task = progress.add_task("in sync", total=max(lacking, 1), left=lacking)
        while not health.is_well and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            health = _health(admin)
            left = len(health.under_replicated)
            progress.update(task, completed=max(lacking - left, 0), left=left)
    return health


def _broker_rows(admin: ClusterAdmin, view: ClusterView) -> Iterable[dict[str, Any]]:
    leads: Counter[int] = Counter()
    has: Counter[int] = Counter()
    lags: Counter[int] = Counter()
    for topic in view.topics.values():
        for found in topic.partitions.values():
            leads[found.leader] += 1
            has.update(found.replicas)
            lags.update(set(found.replicas) - set(found.isr))
    for broker in sorted(view.nodes.keys() | has.keys()):
        node = view.nodes.get(broker)
        size = free = None
        try:
            directory = None if node is None else admin.log_directory(broker)
        except KlammError as error:
            say(f"klamm: broker {broker}: {error}", err=True)
            directory = None
        if directory is not None:
            size = _bytes(sum(directory.sizes.values()))
            free = _bytes(directory.usable_bytes) if directory.usable_bytes >= 0 else None
        yield {
            "broker": broker,
            "address": None if node is None else str(Address(node.host, node.port)),
            "controller": broker == view.controller_id,
            "rack": None if node is None else node.rack,
            "leads": leads[broker],
            "replicas": has[broker],
            "out_of_sync": lags[broker],
            "size": size,
            "free": free,
        }


def _address(row: Mapping[str, Any]) -> str:
    """Returns the address as the table shows it; a broker without one is not live."""
    mark = " (controller)" if row["controller"] else ""
    return "offline" if row["address"] is None else f"{row['address']}{mark}"


def _bytes(number: int) -> Shown:
    from rich.filesize import decimal

    return Shown(number, decimal(number))


def _check_json(as_json: bool, dry_run: bool) -> None:
    if as_json and not dry_run:
        raise ConfigError("--json applies only with --dry-run: it prints what would be moved")


def _show(moves: list[Move], as_json: bool = False) -> None:
    if as_json:
        for move in moves:
            way = {"from": move.source, "to": move.destination, "replicas": list(move.replicas)}
            say_json({"topic": move.partition.topic, "partition": move.partition.partition, **way})
        return
    if not moves:
        say("nothing to move")
    for move in moves[:_SHOWN]:
        say(f"{move.partition}: from {move.source} to {move.destination} ({_numbers(move.replicas)})")
    if len(moves) > _SHOWN:
        say(f"… and {len(moves) - _SHOWN} more")


def _refuse_none(refused: Mapping[TopicPartition, KlammError]) -> None:
    """Prints why each of these was refused, and ends the command with status 1 if there are any."""
    for _, error in sorted(refused.items()):
        say(f"klamm: {error}", err=True)
    if refused:
        raise typer.Exit(1)


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, values)) or "-"
