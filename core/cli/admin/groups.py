"""`klamm groups`: lists, describes, resets and deletes consumer groups of both protocols."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cluster.tree import paths
from ...errors import BrokerError, ConfigError, CoordinationError, ErrorCode, KlammError, ProtocolError
from ...groups.coordinator.group_view import read_view
from ...groups.group_protocol_lock import GroupProtocol, active_protocol
from ...groups.membership.consumer_protocol import decode_assignment, decode_subscription
from ...interfaces.coordination import Coordination, NoNodeError
from ...protocol.apis import ApiKey
from ...records.partition import TopicPartition, counted
from ..options import (
    DEFAULT_CONFIG,
    Bootstrap,
    ConfigFile,
    cluster_client,
    settings_and_client,
    why_unserved,
)
from ..output import Json, say, say_json, say_rows
from ..record_io.positions import FORMS, parse_position, resolve

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient
    from ...config.settings import Settings

__all__ = ["app"]

app = typer.Typer(
    add_completion=False, help="List consumer groups, show their lag, reset and delete them.", no_args_is_help=True
)
GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
COORDINATION_TIMEOUT_S = 5.0


@app.command("list")
def list_groups(config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Print the name, protocol (registry or classic) and state of every group."""
    with settings_and_client(config, bootstrap) as (settings, client):
        states = _states(client)
        with _coordination(settings) as coordination:
            protocols = {} if coordination is None else _protocols(coordination, states)
    rows = []
    for group in sorted({*states, *protocols}):
        protocol = protocols.get(group)
        state = "Stable" if protocol is GroupProtocol.REGISTRY else states.get(group, "Empty")
        rows.append({"group": group, "protocol": protocol and protocol.value, "state": state})
    say_rows(("group", "protocol", "state"), rows, as_json)


@app.command()
def describe(
    group: GroupName,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show a group's committed offsets, its lag, and the owner of each partition.

    Lists all partitions of the topics that the group subscribes to or has offsets of; `-` stands for no committed
    offset.
    """
    from ...client.cluster_client import LATEST

    with settings_and_client(config, bootstrap) as (settings, client):
        committed = client.fetch_offsets(group)
        with _coordination(settings) as coordination:
            members = None if coordination is None else _registry_members(coordination, group)
        members = members or _classic_members(client, group)
        topics = {tp.topic for tp in (*committed, *members.owners)} | members.topics
        if not topics:
            raise _unknown_group(client, group, "group {} has neither offsets nor members")
        there = _partitions(client, topics)
        ends, problems = client.list_served_offsets(dict.fromkeys(there, LATEST))
        reasons = why_unserved(client, problems)
    rows: list[dict[str, Any]] = []
    for tp in sorted({*committed, *members.owners, *there}):
        end, offset = ends.get(tp), committed[tp].offset if tp in committed else None
        lag = None if end is None or offset is None else end - offset  # negative if the log lost records at its end
        owner = members.owners.get(tp)
        rows.append({**_named(tp), "committed": offset, "end": end, "lag": lag, "owner": owner})
    lags = [row["lag"] for row in rows]
    total, unknown = sum(max(lag or 0, 0) for lag in lags), lags.count(None)
    if as_json:
        say_json({"group": group, "lag": total, "partitions": rows})
    else:
        say_rows(("topic", "partition", "committed", "end", "lag", "owner"), rows)
    for line in reasons:
        say(f"klamm: {line}", err=True)
    if not as_json:
        without = f", unknown for {unknown} of {len(lags)} partitions" if unknown else ""
        say(f"total lag {total}{without}")


@app.command()
def offsets(
    group: GroupName,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write them to a new file, for `groups reset --file`."),
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Print a group's committed offsets, or save them as lines `topic,partition,offset`, as Kafka's tool does."""
    from .offset_reset import write_file

    with cluster_client(config, bootstrap) as client:
        committed = client.fetch_offsets(group)
        if not committed:
            raise _unknown_group(client, group, "group {} has no offsets")
    if save is not None:
        write_file(save, {tp: found.offset for tp, found in committed.items()})
        if not as_json:
            say(f"{save}: {counted(len(committed), 'offset')} of group {group} saved")
            return
    rows = ({**_named(tp), "offset": found.offset} for tp, found in sorted(committed.items()))
    say_rows(("topic", "partition", "offset"), rows, as_json)


@app.command()
def reset(
    group: GroupName,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help=f"Where the group reads on: {FORMS}."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move the committed offsets by N; -N: back.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="The offsets that `groups offsets --save` wrote.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:0,1]", help="Only this topic, or these partitions of it; may be repeated."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write the offsets; without it nothing is changed.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Move a group's committed offsets. A dry run, unless --yes is given.

    Prints for each partition how many offsets the group then skips (never reads), repeats (reads again), and how many
    are deleted (no longer in the log). Refused while the group has members, and if a commit arrives after the plan.
    """
    from .offset_reset import MEMBERS_LIVE, PartitionReset, compare_and_set, read_file

    if [to, shift_by, file].count(None) != 2:
        raise ConfigError("groups reset: give one of --to, --shift-by and --file")
    position = None if to is None else parse_position("--to", to, lambda: time.time_ns() // 1_000_000)
    saved = None if file is None else read_file(file)
    only = [_parsed_topic(text) for text in topic or ()]
    with settings_and_client(config, bootstrap) as (settings, client):
        committed = {tp: found.offset for tp, found in client.fetch_offsets(group).items()}
        if not committed and saved is None and not only:
            unknown = "group {} has no offsets; with --topic or --file it gets its first"
            raise _unknown_group(client, group, unknown)
        chosen = _chosen(client, only, saved if saved is not None else committed)
        starts, ends = _bounds(client, chosen)
        if position is not None:
            wanted = resolve(position, client, starts, ends)
        else:
            wanted = _saved(client, chosen, saved) if saved is not None else _shifted(chosen, committed, shift_by or 0)
        plan = [PartitionReset(tp, committed.get(tp), starts[tp], ends[tp], at) for tp, at in sorted(wanted.items())]
        live = _live_members(settings, client, group)
        columns = ("topic", "partition", "committed", "target", "skipped", "repeated", "deleted")
        say_rows(columns, (each.row() for each in plan), as_json)
        for each in plan:
            if each.wanted > each.end:
                say(f"klamm: {each.partition}: offset {each.wanted} is after the end, {each.end}", err=True)
        if live:
            raise KlammError(f"group {group!r} has live members ({', '.join(live)}): {MEMBERS_LIVE}")
        changes = [each for each in plan if each.target != each.committed]
        if yes and changes:
            compare_and_set(client, group, plan)
    result = (
        "nothing to change"
        if not changes
        else f"{counted(len(changes), 'offset')} of group {group} {'reset' if yes else 'to be reset'}"
    )
    say(result if yes or not changes else f"{result}; a dry run: --yes writes them", err=as_json)


def _parsed_topic(text: str) -> tuple[str, frozenset[int] | None]:
    """Returns the topic and the partitions of `TOPIC` or `TOPIC:0,1`; None for all of them."""
    name, mark, numbers = text.partition(":")
    if not name or (mark and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers, re.ASCII)):
        raise ConfigError(f"--topic {text}: expected TOPIC, or TOPIC:0,1 for some of its partitions")
    return name, frozenset(map(int, numbers.split(","))) if mark else None


def _chosen(
    client: ClusterClient, only: list[tuple[str, frozenset[int] | None]], known: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """Returns the partitions to reset: those that `--topic` names, else all of the topics of `known`. Raises for a
    topic or partition that does not exist."""
    chosen: set[TopicPartition] = set()
    for name, numbers in only or [(name, None) for name in sorted({tp.topic for tp in known})]:
        there = client.partitions(name)
        missing = sorted((numbers or set()) - {tp.partition for tp in there})
        if missing:
            raise ConfigError(f"--topic {name}:{missing[0]}: topic {name!r} has the partitions 0 to {len(there) - 1}")
        chosen.update(tp for tp in there if numbers is None or tp.partition in numbers)
    return sorted(chosen)


def _bounds(
    client: ClusterClient, chosen: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Returns the first and the end offsets. Raises `KlammError` with the partitions that no broker serves."""
    from ...client.cluster_client import EARLIEST, LATEST

    starts, problems = client.list_served_offsets(dict.fromkeys(chosen, EARLIEST))
    ends, late = client.list_served_offsets(dict.fromkeys(starts, LATEST))
    if problems or late:
        raise KlammError("; ".join(why_unserved(client, {**problems, **late})))
    return starts, ends


def _saved(
    client: ClusterClient, chosen: list[TopicPartition], saved: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns the file's offsets of the chosen partitions. Raises `ConfigError` for a partition that does not exist."""
    topics = {tp.topic for tp in chosen}
    missing = [tp for tp in sorted(saved) if tp.topic in topics and tp not in client.partitions(tp.topic)]
    if missing:
        raise ConfigError(f"--file: there is no partition {missing[0]}")
    return {tp: saved[tp] for tp in chosen if tp in saved}


def _shifted(
    chosen: list[TopicPartition], committed: Mapping[TopicPartition, int], by: int
) -> dict[TopicPartition, int]:
    """Returns the committed offsets plus `by`; each partition without one is named on stderr."""
    for tp in chosen:
        if tp not in committed:
            say(f"klamm: {tp} has no committed offset to shift; it is left as it is", err=True)
    return {tp: max(committed[tp] + by, 0) for tp in chosen if tp in committed}


def _live_members(settings: Settings, client: ClusterClient, group: str) -> list[str]:
    """Returns the names of the group's members, with their hosts if the broker knows them."""
    described = _described(client, group)
    if described:
        return [f"{member.client_id}{member.client_host}" for each in described for member in each.members]
    with _coordination(settings, "registry members are not seen; --yes is refused while there are any") as coordination:
        if coordination is None or active_protocol(coordination, group) is not GroupProtocol.REGISTRY:
            return []
        with contextlib.suppress(NoNodeError):
            return coordination.children(paths.group_ids(group))
    return []


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP…")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Delete only the group's offsets of this topic; may be repeated."),
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete groups that have no members, and their offsets. The audit does not compare them any more."""
    with settings_and_client(config, bootstrap) as (settings, client):
        for group in groups:
            try:
                topics = set(topic or ()) or {tp.topic for tp in client.fetch_offsets(group)}
                if topic:
                    _delete_offsets(client, group, topics)
                else:
                    client.delete_group(group)
            except BrokerError as error:
                unknown = "group {} has no offsets" if topic else "there is no group {}"
                raise _not_deleted(client, group, error, unknown) from error
            say(f"{group}: {'offsets ' if topic else ''}deleted")
            _end_audit(settings, client, group, topics)


def _end_audit(settings: Settings, client: ClusterClient, group: str, topics: Iterable[str]) -> None:
    """Publishes that the group's counts of these topics have ended."""
    from ...client.event_publisher import EventPublisher
    from ...interfaces.audit import AuditIdentity

    audit = settings.make_audit()
    audited = [] if audit is None else sorted(name for name in topics if audit.audits(name))
    if audit is None or not audited:
        return
    identity = AuditIdentity("consumer", group, socket.gethostname(), "klamm groups delete")
    events = EventPublisher(client, audit.topic, lambda: time.time_ns() // 1_000_000)
    try:
        audit.ranges(identity, events).end(audited, "the group was deleted")
    except KlammError as error:
        remedy = f"klamm audit retire consumer/{group} ends that"
        say(f"klamm: the audit still compares it: {error}; {remedy}", err=True)


def _delete_offsets(client: ClusterClient, group: str, topics: set[str]) -> None:
    committed = client.fetch_offsets(group)
    if not committed:
        raise BrokerError(ErrorCode.group_id_not_found, f"group {group!r}")
    there = [tp for tp in committed if tp.topic in topics]
    missing = sorted(topics - {tp.topic for tp in there})
    if missing:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"group {group!r} has no offset of {missing[0]!r}")
    client.delete_offsets(group, there)


def _not_deleted(client: ClusterClient, group: str, error: BrokerError, unknown: str) -> BrokerError:
    """Returns an error with a message, since the broker's response has only a code."""
    if error.code is ErrorCode.group_id_not_found:
        return _unknown_group(client, group, unknown)
    if error.code is ErrorCode.non_empty_group:
        return BrokerError(error.code, f"{error.words}: the group has active members; stop them first")
    if error.code is ErrorCode.group_subscribed_to_topic:
        return BrokerError(
            error.code, f"{error.words}: the group has active members that read the topic; stop them first"
        )
    return error


def _unknown_group(client: ClusterClient, group: str, words: str) -> BrokerError:
    from ...client.errors import nearest_of

    near = nearest_of(group, (name for name in _states(client) if name != group))
    return BrokerError(ErrorCode.group_id_not_found, words.format(repr(group)) + near)


def _states(client: ClusterClient) -> dict[str, str]:
    """Returns the states of the groups that brokers know: those with classic members or with offsets."""
    states: dict[str, str] = {}
    for node_id in client.metadata(()).nodes:
        message = client.call(ApiKey.LIST_GROUPS, node_id, states_filter=(), types_filter=())
        if message.error_code != ErrorCode.none:
            raise BrokerError(
                message.error_code, f"broker {node_id} cannot list its groups now; is its coordination unavailable?"
            )
        for found in message.groups:
            state = getattr(found, "group_state", "")
            if states.get(found.group_id, "Empty") == "Empty":
                states[found.group_id] = state or "Empty"
    return states


@contextlib.contextmanager
def _coordination(settings: Settings, without: str = "registry groups are not shown") -> Iterator[Coordination | None]:
    """Yields the coordination, or None if it cannot be reached: then a line on stderr says so, and only what brokers
    know is shown. `without`: the part of that line that names what is missing."""
    try:
        coordination = settings.make_coordination()
        coordination.start(COORDINATION_TIMEOUT_S)
    except CoordinationError as error:
        say(f"klamm: {without}: {error}", err=True)
        yield None
        return
    try:
        yield coordination
    finally:
        coordination.close()


def _protocols(coordination: Coordination, known: Mapping[str, str]) -> dict[str, GroupProtocol]:
    try:
        names = {paths.group_id(name) for name in coordination.children(paths.CONSUMERS)}
    except NoNodeError:
        names = set()
    protocols = {group: active_protocol(coordination, group) for group in {*names, *known}}
    return {group: protocol for group, protocol in protocols.items() if protocol is not None}


@dataclass(frozen=True, slots=True)
class _Members:
    """`topics`: the topics that the group's members subscribe to. `owners`: each partition's owner, by member name."""

    topics: set[str]
    owners: dict[TopicPartition, str]


def _registry_members(coordination: Coordination, group: str) -> _Members | None:
    """Returns None if the group has no registry members."""
    if active_protocol(coordination, group) is not GroupProtocol.REGISTRY:
        return None
    try:
        subscriptions = read_view(coordination, group, ()).subscriptions
    except NoNodeError:  # the group was deleted in the meantime
        return None
    return _Members({topic for topics in subscriptions.values() for topic in topics}, _owners(coordination, group))


def _owners(coordination: Coordination, group: str) -> dict[TopicPartition, str]:
    """Returns the owner of each partition, by the owner paths."""
    owners: dict[TopicPartition, str] = {}
    root = paths.group_owners(group)
    with contextlib.suppress(NoNodeError):  # no registry group, or its owners changed in the meantime
        for topic in coordination.children(root):
            for number in coordination.children(f"{root}/{topic}"):
                with contextlib.suppress(NoNodeError):
                    owners[TopicPartition(topic, int(number))] = coordination.get(f"{root}/{topic}/{number}")[
                        0
                    ].decode()
    return owners


def _described(client: ClusterClient, group: str) -> list[Any]:
    """Returns the group as its coordinator describes it; [] if the coordinator has no members of it."""
    node_id = client.coordinator(group)
    message = client.call(ApiKey.DESCRIBE_GROUPS, node_id, groups=(group,), include_authorized_operations=False)
    return [found for found in message.groups if found.members]


def _classic_members(client: ClusterClient, group: str) -> _Members:
    members = _Members(set(), {})
    for described in _described(client, group):
        for member in described.members:
            with contextlib.suppress(ProtocolError):  # not a consumer group: Kafka Connect, for example
                members.topics.update(decode_subscription(bytes(member.member_metadata)))
                for tp in decode_assignment(bytes(member.member_assignment)):
                    members.owners[tp] = member.member_id
    return members


def _named(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def _partitions(client: ClusterClient, topics: set[str]) -> list[TopicPartition]:
    """Returns all partitions of these topics; a deleted topic has none."""
    return [
        TopicPartition(topic.name, number)
        for topic in client.metadata(topics).topics.values()
        for number in topic.partitions
    ]
