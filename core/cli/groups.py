"""`klamm groups`: lists, describes and deletes consumer groups of both protocols."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..cluster.tree import paths
from ..config.settings import Settings
from ..errors import BrokerError, CoordinationError, ErrorCode, KlammError, ProtocolError
from ..groups.coordinator.group_view import read_view
from ..groups.group_protocol_lock import GroupProtocol, active_protocol
from ..groups.membership.consumer_protocol import decode_assignment, decode_subscription
from ..interfaces.coordination import Coordination, NoNodeError
from ..protocol.apis import ApiKey
from ..records.partition import TopicPartition
from .options import (
    DEFAULT_CONFIG,
    Bootstrap,
    ConfigFile,
    cell,
    cluster_client,
    console,
    table,
    why_unserved,
)
from .output import say

if TYPE_CHECKING:
    from ..client.cluster_client import ClusterClient

app = typer.Typer(add_completion=False, help="List consumer groups, show their lag, delete them.", no_args_is_help=True)
COORDINATION_TIMEOUT_S = 5.0


@app.command("list")
def list_groups(config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None) -> None:
    """Print the name, protocol (registry or classic) and state of every group."""
    with cluster_client(config, bootstrap) as (settings, client):
        states = _states(client)
        with _coordination(settings) as coordination:
            protocols = {} if coordination is None else _protocols(coordination, states)
    rows = table("group", "protocol", "state")
    for group in sorted({*states, *protocols}):
        protocol = protocols.get(group)
        state = "Stable" if protocol is GroupProtocol.REGISTRY else states.get(group, "Empty")
        rows.add_row(group, protocol.value if protocol else "-", state)
    console().print(rows)


@app.command()
def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Show a group's committed offsets, its lag, and the owner of each partition.

    Lists all partitions of the topics that the group subscribes to or has offsets of; `-` stands for no committed
    offset.
    """
    from ..client.cluster_client import LATEST

    with cluster_client(config, bootstrap) as (settings, client):
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
    rows = table("topic", "partition", "committed", "end", "lag", "owner", right=("committed", "end", "lag"))
    lags: list[int | None] = []
    for tp in sorted({*committed, *members.owners, *there}):
        end, offset = ends.get(tp), committed[tp].offset if tp in committed else None
        lag = None if end is None or offset is None else end - offset  # negative if the log lost records at its end
        lags.append(lag)
        rows.add_row(tp.topic, str(tp.partition), cell(offset), cell(end), cell(lag), members.owners.get(tp, "-"))
    console().print(rows)
    for line in reasons:
        say(f"klamm: {line}", err=True)
    unknown = lags.count(None)
    without = f", unknown for {unknown} of {len(lags)} partitions" if unknown else ""
    say(f"total lag {sum(max(lag or 0, 0) for lag in lags)}{without}")


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
    with cluster_client(config, bootstrap) as (settings, client):
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
    """Publishes that the group counts nothing more of these topics."""
    from ..client.event_publisher import EventPublisher
    from ..interfaces.audit import AuditIdentity

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
    """Returns an error with a message: the broker's response has only a code."""
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
    from ..client.errors import nearest_of

    near = nearest_of(group, _states(client))
    return BrokerError(ErrorCode.group_id_not_found, words.format(repr(group)) + near)


def _states(client: ClusterClient) -> dict[str, str]:
    """Returns the states of the groups that brokers know: those with classic members or with offsets."""
    states: dict[str, str] = {}
    for node_id in client.metadata(()).nodes:
        message = client.call(ApiKey.LIST_GROUPS, node_id, states_filter=(), types_filter=())
        if message.error_code != ErrorCode.none:
            raise BrokerError(
                message.error_code, f"broker {node_id} cannot list its groups now; is its coordination away?"
            )
        for found in message.groups:
            state = getattr(found, "group_state", "")
            if states.get(found.group_id, "Empty") == "Empty":
                states[found.group_id] = state or "Empty"
    return states


@contextlib.contextmanager
def _coordination(settings: Settings) -> Iterator[Coordination | None]:
    """Yields None, with a line on stderr, if the coordination cannot be reached: then only what brokers know is
    shown."""
    try:
        coordination = settings.make_coordination()
        coordination.start(COORDINATION_TIMEOUT_S)
    except CoordinationError as error:
        say(f"klamm: registry groups are not shown: {error}", err=True)
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
    """Returns the owner of each partition, as the owner paths name them."""
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


def _classic_members(client: ClusterClient, group: str) -> _Members:
    message = client.call(
        ApiKey.DESCRIBE_GROUPS,
        client.coordinator(group),
        groups=(group,),
        include_authorized_operations=False,
    )
    members = _Members(set(), {})
    for described in message.groups:
        for member in described.members:
            with contextlib.suppress(ProtocolError):  # not a consumer group: Kafka Connect, for example
                members.topics.update(decode_subscription(bytes(member.member_metadata)))
                for tp in decode_assignment(bytes(member.member_assignment)):
                    members.owners[tp] = member.member_id
    return members


def _partitions(client: ClusterClient, topics: set[str]) -> list[TopicPartition]:
    """Returns all partitions of these topics; a deleted topic has none."""
    return [
        TopicPartition(topic.name, number)
        for topic in client.metadata(topics).topics.values()
        for number in topic.partitions
    ]
