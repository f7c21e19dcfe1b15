"""The group APIs on the wire; the rules of a group are tested where they are, in tests/core/groups."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from uuid import uuid4

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.groups.group_protocol_lock import GroupProtocol, acquire
from klamm.core.protocol.apis import ApiKey
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.clients.grouping import SESSION, commit, describe, heartbeat, join, joined, leave, stored, sync
from klammtest.requests import create_topic, metadata, new_topic, topic_id
from klammtest.wire import WireClient, part

_GROUPS = count()
OFFSET_COMMIT = range(SERVED[ApiKey.OFFSET_COMMIT][0], SERVED[ApiKey.OFFSET_COMMIT][1] + 1)
OFFSET_FETCH = range(SERVED[ApiKey.OFFSET_FETCH][0], SERVED[ApiKey.OFFSET_FETCH][1] + 1)


@pytest.fixture
def group() -> str:
    return f"group-{next(_GROUPS)}"


@pytest.mark.parametrize("version", range(SERVED[ApiKey.FIND_COORDINATOR][1] + 1))
def test_the_broker_is_the_coordinator(broker: RunningBroker, wire: WireClient, version: int) -> None:
    keys = {"coordinator_keys": ("g", "h")} if version >= 4 else {"key": "g"}
    answer = wire.call(ApiKey.FIND_COORDINATOR, version, **keys)
    for found in answer.coordinators if version >= 4 else (answer,):
        assert found.error_code is ErrorCode.none
        assert (found.node_id, found.host, found.port) == (0, "127.0.0.1", broker.port)


def test_there_is_no_coordinator_of_transactions(wire: WireClient) -> None:
    answer = wire.call(ApiKey.FIND_COORDINATOR, 3, key="tx", key_type=1)
    assert answer.error_code is ErrorCode.transactional_id_authorization_failed
    assert "transactions" in answer.error_message


def test_there_is_no_coordinator_of_share_groups(wire: WireClient) -> None:
    found = wire.call(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=("g:0:0",)).coordinators[0]
    assert found.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(SERVED[ApiKey.LEAVE_GROUP][1] + 1))
def test_a_member_leaves_with_every_version(wire: WireClient, group: str, version: int) -> None:
    member = joined(wire, group)
    assert leave(wire, group, member.member_id, version).error_code is ErrorCode.none
    assert heartbeat(wire, group, member) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(SERVED[ApiKey.JOIN_GROUP][1] + 1))
def test_a_member_joins_with_every_version(wire: WireClient, group: str, version: int) -> None:
    member = joined(wire, group, version)
    assert member.leader == member.member_id
    assert [m.metadata for m in member.members] == [b"topics"]
    assert sync(wire, group, member).assignment == b"all"
    assert heartbeat(wire, group, member) is ErrorCode.none
    assert leave(wire, group, member.member_id).members[0].error_code is ErrorCode.none
    assert heartbeat(wire, group, member) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(SERVED[ApiKey.SYNC_GROUP][1] + 1))
def test_every_version_of_sync_heartbeat_and_leave(wire: WireClient, group: str, version: int) -> None:
    member = joined(wire, group)
    assert sync(wire, group, member, version).error_code is ErrorCode.none
    assert heartbeat(wire, group, member, min(version, 4)) is ErrorCode.none
    assert leave(wire, group, member.member_id, min(version, 4)).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_member_that_leads_and_rejoins_assigns_nothing(wire: WireClient, group: str, version: int) -> None:
    """Version 9 tells it so (KIP-814); an earlier one hides from it that it leads."""
    first = join(wire, group, version, instance_id="i")
    sync(wire, group, first)
    again = join(wire, group, version, instance_id="i")
    assert (again.error_code, again.generation_id) == (ErrorCode.none, first.generation_id)
    assert (again.leader == again.member_id) is (version >= 9)
    assert [m.member_id for m in again.members] == ([again.member_id] if version >= 9 else [])
    assert getattr(again, "skip_assignment", False) is (version >= 9)


def test_a_second_member_makes_the_first_join_again(broker: RunningBroker, wire: WireClient, group: str) -> None:
    first = joined(wire, group)
    sync(wire, group, first)
    with WireClient(broker.bootstrap) as other:
        promised = join(other, group)
        other.send(
            ApiKey.JOIN_GROUP, 7, group_id=group, session_timeout=SESSION, rebalance_timeout=SESSION,
            member_id=promised.member_id, protocol_type="consumer",
            protocols=(part(ApiKey.JOIN_GROUP, 7, "JoinGroupRequestProtocol", name="range", metadata=b"b"),),
        )  # fmt: skip
        while heartbeat(wire, group, first) is not ErrorCode.rebalance_in_progress:
            pass
        again = join(wire, group, member_id=first.member_id)
        second = other.receive(ApiKey.JOIN_GROUP, 7)
        assert again.generation_id == second.generation_id == first.generation_id + 1
        assert sorted(m.member_id for m in again.members) == sorted([first.member_id, promised.member_id])


def test_bad_joins(wire: WireClient, group: str) -> None:
    assert join(wire, "").error_code is ErrorCode.invalid_group_id
    assert join(wire, group, member_id="nobody").error_code is ErrorCode.unknown_member_id
    protocol = part(ApiKey.JOIN_GROUP, 7, "JoinGroupRequestProtocol", name="range", metadata=b"")
    answer = wire.call(
        ApiKey.JOIN_GROUP, 7, group_id=group, session_timeout=timedelta(milliseconds=1), rebalance_timeout=SESSION,
        member_id="", protocol_type="consumer", protocols=(protocol,),
    )  # fmt: skip
    assert answer.error_code is ErrorCode.invalid_session_timeout


@pytest.mark.parametrize("version", OFFSET_COMMIT)
def test_offsets_are_committed_with_every_version(wire: WireClient, group: str, version: int) -> None:
    topic = new_topic(wire, partitions=2)
    ids = {topic: metadata(wire, [topic], 12).topics[0].topic_id, "nowhere": uuid4()}
    offsets = {(topic, 0): 5, (topic, 1): 6, (topic, 2): 7, ("nowhere", 0): 8}
    codes = commit(wire, group, offsets, version=version, ids=ids)
    unknown = ErrorCode.unknown_topic_or_partition
    nowhere = ErrorCode.unknown_topic_id if version >= 10 else unknown
    assert list(codes.values()) == [ErrorCode.none, ErrorCode.none, unknown, nowhere]
    found = stored(wire, group, topic, (0, 1, 2))
    assert [found[p].committed_offset for p in (0, 1, 2)] == [5, 6, -1]


@pytest.mark.parametrize("version", OFFSET_FETCH)
def test_offsets_are_fetched_with_every_version(wire: WireClient, group: str, version: int) -> None:
    topic = new_topic(wire)
    commit(wire, group, {(topic, 0): 5}, metadata="a note")
    found = stored(wire, group, topic, (0,), version, topic_id(wire, topic))[0]
    assert (found.error_code, found.committed_offset, found.metadata) == (ErrorCode.none, 5, "a note")
    assert version < 5 or found.committed_leader_epoch == 3


def test_offsets_are_fetched_by_topic_id(wire: WireClient, group: str) -> None:
    """An id names one topic, though another one had its name and an offset; that of a deleted topic is unknown."""
    topic = new_topic(wire)
    commit(wire, group, {(topic, 0): 5})
    former = topic_id(wire, topic)
    wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(topic,), timeout=SESSION)
    create_topic(wire, topic)
    now = topic_id(wire, topic)
    assert stored(wire, group, topic, (0,), 10, former)[0].error_code is ErrorCode.unknown_topic_id
    found = stored(wire, group, topic, (0,), 10, now)[0]
    assert (found.error_code, found.committed_offset) == (ErrorCode.none, -1)
    commit(wire, group, {(topic, 0): 3})
    assert stored(wire, group, topic, (0,), 10, now)[0].committed_offset == 3
    everything = part(ApiKey.OFFSET_FETCH, 10, "OffsetFetchRequestGroup", group_id=group, topics=None)
    (answer,) = wire.call(ApiKey.OFFSET_FETCH, 10, groups=(everything,)).groups
    assert [(t.topic_id, [p.committed_offset for p in t.partitions]) for t in answer.topics] == [(now, [3])]


@pytest.mark.parametrize("version", [2, 5, 7])
def test_all_offsets_of_a_group(wire: WireClient, group: str, version: int) -> None:
    topics = [new_topic(wire), new_topic(wire)]
    commit(wire, group, {(topic, 0): 5 for topic in topics})
    answer = wire.call(ApiKey.OFFSET_FETCH, version, group_id=group, topics=None)
    assert sorted(t.name for t in answer.topics) == sorted(topics)
    several = part(ApiKey.OFFSET_FETCH, 8, "OffsetFetchRequestGroup", group_id=group, topics=None)
    answer = wire.call(ApiKey.OFFSET_FETCH, 8, groups=(several,))
    assert sorted(t.name for t in answer.groups[0].topics) == sorted(topics)


def test_a_commit_of_a_lost_generation_is_refused(wire: WireClient, group: str) -> None:
    topic = new_topic(wire)
    member = joined(wire, group)
    sync(wire, group, member)
    assert commit(wire, group, {(topic, 0): 1}, member) == {(topic, 0): ErrorCode.none}
    again = join(wire, group, member_id=member.member_id)
    assert again.generation_id > member.generation_id
    assert commit(wire, group, {(topic, 0): 2}, member) == {(topic, 0): ErrorCode.illegal_generation}
    outsider = commit(wire, group, {(topic, 0): 3})
    assert outsider[topic, 0] is not ErrorCode.none
    leave(wire, group, member.member_id)
    assert commit(wire, group, {(topic, 0): 4}, again)[topic, 0] is not ErrorCode.none
    assert stored(wire, group, topic, (0,))[0].committed_offset == 1


def test_long_metadata_is_refused(wire: WireClient, group: str) -> None:
    topic = new_topic(wire)
    codes = commit(wire, group, {(topic, 0): 1}, metadata="x" * 5000)
    assert codes == {(topic, 0): ErrorCode.offset_metadata_too_large}


def test_offsets_outlive_kill_9(broker: RunningBroker, group: str) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        commit(wire, group, {(topic, 0): 7})
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        assert stored(wire, group, topic, (0,))[0].committed_offset == 7


def test_groups_forget_a_deleted_topic_and_nothing_else(wire: WireClient, group: str) -> None:
    gone, kept = new_topic(wire, partitions=2), new_topic(wire)
    member = joined(wire, group)
    sync(wire, group, member)
    commit(wire, group, {(gone, 0): 5, (gone, 1): 6, (kept, 0): 7}, member)
    commit(wire, group + "-idle", {(gone, 0): 8})
    wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(gone,), timeout=SESSION)
    assert {p: found.committed_offset for p, found in stored(wire, group, gone, (0, 1)).items()} == {0: -1, 1: -1}
    assert stored(wire, group + "-idle", gone, (0,))[0].committed_offset == -1
    assert stored(wire, group, kept, (0,))[0].committed_offset == 7
    assert heartbeat(wire, group, member) is ErrorCode.none
    leave(wire, group, member.member_id)


@pytest.mark.parametrize("version", range(SERVED[ApiKey.DESCRIBE_GROUPS][1] + 1))
def test_groups_are_described(wire: WireClient, group: str, version: int) -> None:
    unknown = describe(wire, group, version)
    assert unknown.group_state == "Dead"
    if version >= 6:
        assert (unknown.error_code, group in unknown.error_message) == (ErrorCode.group_id_not_found, True)
    else:
        assert unknown.error_code is ErrorCode.none
    member = joined(wire, group)
    sync(wire, group, member)
    found = describe(wire, group, version)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (described,) = found.members
    assert (described.client_id, described.client_host) == ("wire", "/127.0.0.1")
    assert (described.member_metadata, described.member_assignment) == (b"topics", b"all")


@pytest.mark.parametrize("version", range(SERVED[ApiKey.LIST_GROUPS][1] + 1))
def test_groups_are_listed(wire: WireClient, group: str, version: int) -> None:
    sync(wire, group, joined(wire, group))
    only_offsets = f"{group}-offsets"
    commit(wire, only_offsets, {(new_topic(wire), 0): 1})
    listed = {g.group_id: g for g in wire.call(ApiKey.LIST_GROUPS, version).groups}
    assert {group, only_offsets} <= set(listed)
    assert listed[group].protocol_type == "consumer"
    if version >= 4:
        stable = wire.call(ApiKey.LIST_GROUPS, version, states_filter=("Stable",)).groups
        assert only_offsets not in {g.group_id for g in stable}
        assert listed[only_offsets].group_state == "Empty"
    if version >= 5:
        assert listed[group].group_type == listed[only_offsets].group_type == "classic"
        for types, is_listed in ((("classic",), True), (("CONSUMER", "Classic"), True), (("consumer",), False)):
            found = wire.call(ApiKey.LIST_GROUPS, version, types_filter=types).groups
            assert (group in {g.group_id for g in found}) is is_listed


@pytest.mark.parametrize("version", range(SERVED[ApiKey.DELETE_GROUPS][1] + 1))
def test_groups_are_deleted_once_they_are_empty(wire: WireClient, group: str, version: int) -> None:
    topic = new_topic(wire)
    member = joined(wire, group)
    sync(wire, group, member)
    commit(wire, group, {(topic, 0): 7}, member)

    def delete() -> list[ErrorCode]:
        answer = wire.call(ApiKey.DELETE_GROUPS, version, groups_names=(group, "nobody"))
        return [result.error_code for result in answer.results]

    assert delete() == [ErrorCode.non_empty_group, ErrorCode.group_id_not_found]
    leave(wire, group, member.member_id)
    assert delete() == [ErrorCode.none, ErrorCode.group_id_not_found]
    assert stored(wire, group, topic, (0,))[0].committed_offset == -1
    assert group not in {g.group_id for g in wire.call(ApiKey.LIST_GROUPS, 4).groups}


@pytest.mark.parametrize("version", range(SERVED[ApiKey.INIT_PRODUCER_ID][1] + 1))
def test_producer_ids_are_never_given_twice(broker: RunningBroker, wire: WireClient, version: int) -> None:
    answers = [
        wire.call(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout=SESSION)
        for _ in range(3)
    ]
    ids = [answer.producer_id for answer in answers]
    assert len(set(ids)) == 3
    assert {answer.producer_epoch for answer in answers} == {0}
    refused = wire.call(ApiKey.INIT_PRODUCER_ID, version, transactional_id="tx", transaction_timeout=SESSION)
    assert refused.error_code is ErrorCode.transactional_id_authorization_failed


def test_a_group_of_the_other_kind_is_refused(broker: RunningBroker, wire: WireClient, group: str) -> None:
    """While the group has a registry member, classic members and commits from outside are refused."""
    topic = new_topic(wire)
    tree = EmbeddedCoordination(EmbeddedConfig(path=broker.folder / "coordination.db"))
    tree.start()
    try:
        acquire(tree, group, GroupProtocol.REGISTRY, "member-1")
        assert join(wire, group).error_code is ErrorCode.inconsistent_group_protocol
        assert commit(wire, group, {(topic, 0): 1}) == {(topic, 0): ErrorCode.inconsistent_group_protocol}
        assert wire.call(ApiKey.DELETE_GROUPS, 2, groups_names=(group,)).results[0].error_code is not ErrorCode.none
    finally:
        tree.close()
    assert commit(wire, group, {(topic, 0): 1}) == {(topic, 0): ErrorCode.none}
    assert joined(wire, group).leader
