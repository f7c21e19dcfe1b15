"""OffsetCommit and OffsetDelete where a client may tell this broker from Apache Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from klamm.core.broker.coordinator.coordinated_offsets import CoordinatedOffsets
from klamm.core.broker.coordinator.group_deletions import GroupDeletions
from klamm.core.broker.server import Broker
from klamm.core.cluster.tree import paths
from klamm.core.errors import CoordinationError, ErrorCode
from klamm.core.groups.membership.consumer_protocol import encode_subscription
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC
from klamm.core.groups.records import batches as in_topic
from klamm.core.groups.records.kafka_format import encode_value
from klamm.core.interfaces.coordination import CoordinationUnavailableError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.plugins.offsets import coordination as in_coordination
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.grouping import SESSION, commit, describe, joined, leave, stored, sync
from klammtest.guarantees import guarantee
from klammtest.requests import new_topic
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

PATIENT = {"offsets.topic.num.partitions": 2, "offsets.commit.timeout.ms": 60_000}


@pytest.fixture(scope="module", params=["coordination", "topic"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    offsets = {"plugin": request.param, **(PATIENT if request.param == "topic" else {})}
    with broker_thread(folder, {"plugin": "embedded", "path": str(folder / "tree.db")}, offsets=offsets) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as client:
        yield client


def refuse_what_kafka_stores(patch: pytest.MonkeyPatch) -> None:
    """The empty id made a path that is none, and negative offsets were no offsets: both answered a retriable error."""

    def checked(value: CommittedOffset) -> None:
        if value.offset < 0:
            raise CoordinationError(f"offset {value.offset} is no offset")

    def in_tree(tp: TopicPartition, value: CommittedOffset) -> bytes:
        checked(value)
        return encode(tp, value)

    def in_log(value: CommittedOffset) -> bytes:
        checked(value)
        return encode_value(value)

    encode = in_coordination._encode
    patch.setattr(paths, "_EMPTY", "")
    patch.setattr(in_coordination, "_encode", in_tree)
    patch.setattr(in_topic, "encode_value", in_log)


@guarantee("E20", "offsets -1 and -2 are stored, as in Kafka", plant=refuse_what_kafka_stores)
def test_negative_offsets_are_stored(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=2)
    codes = commit(wire, "negative", {(topic, 0): -1, (topic, 1): -2})
    assert set(codes.values()) == {ErrorCode.none}
    found = stored(wire, "negative", topic, (0, 1))
    assert [found[p].committed_offset for p in (0, 1)] == [-1, -2]


def only_named_groups(patch: pytest.MonkeyPatch) -> None:
    """As it was with the coordination's store; with the topic's only the coordinator was not found."""
    patch.setattr(paths, "_EMPTY", "")


@guarantee("E20", "the empty group id commits, as in Kafka", plant=only_named_groups)
def test_the_empty_group_commits(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, key="", key_type=0).error_code is ErrorCode.none
    assert commit(wire, "", {(topic, 0): 7}) == {(topic, 0): ErrorCode.none}
    assert stored(wire, "", topic, (0,))[0].committed_offset == 7
    assert "" in {g.group_id for g in wire.call(ApiKey.LIST_GROUPS, 4).groups}
    assert wire.call(ApiKey.DELETE_GROUPS, 2, groups_names=("",)).results[0].error_code is ErrorCode.none
    assert stored(wire, "", topic, (0,))[0].committed_offset == -1


def reader_of(wire: WireClient, group: str, topic: str) -> str:
    """A member that reads this topic, alone in its group."""
    metadata = encode_subscription([topic])
    asked = part(ApiKey.JOIN_GROUP, 3, "JoinGroupRequestProtocol", name="range", metadata=metadata)
    member = wire.call(
        ApiKey.JOIN_GROUP, 3, group_id=group, session_timeout=SESSION, rebalance_timeout=SESSION, member_id="",
        protocol_type="consumer", protocols=(asked,),
    )  # fmt: skip
    assert sync(wire, group, member).error_code is ErrorCode.none
    return str(member.member_id)


def delete_offsets(wire: WireClient, group: str, *topics: str) -> dict[str, ErrorCode] | ErrorCode:
    asked = tuple(
        part(
            ApiKey.OFFSET_DELETE, 0, "OffsetDeleteRequestTopic", name=topic,
            partitions=(part(ApiKey.OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=0),),
        )
        for topic in topics
    )  # fmt: skip
    answer = wire.call(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=asked)
    if answer.error_code is not ErrorCode.none:
        return answer.error_code  # type: ignore[no-any-return]
    return {t.name: p.error_code for t in answer.topics for p in t.partitions}


def refuse_live_groups(patch: pytest.MonkeyPatch) -> None:
    async def delete(
        deletions: GroupDeletions, group: str, names: Collection[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        return (
            ErrorCode.non_empty_group
            if deletions._coordinator.populated(group)
            else await kept(deletions, group, names)
        )

    kept = GroupDeletions.delete_offsets
    patch.setattr(GroupDeletions, "delete_offsets", delete)


@guarantee("E27", "OffsetDelete of a live group refuses only what is read", plant=refuse_live_groups)
def test_offsets_of_a_live_group_are_deleted_but_for_the_topics_it_reads(wire: WireClient) -> None:
    read, left = new_topic(wire), new_topic(wire)
    assert set(commit(wire, "live", {(read, 0): 1, (left, 0): 2}).values()) == {ErrorCode.none}
    member = reader_of(wire, "live", read)
    assert delete_offsets(wire, "live", read, left) == {
        read: ErrorCode.group_subscribed_to_topic,
        left: ErrorCode.none,
    }
    assert stored(wire, "live", read, (0,))[0].committed_offset == 1
    assert stored(wire, "live", left, (0,))[0].committed_offset == -1
    leave(wire, "live", member)
    assert describe(wire, "live").protocol_type == "consumer"
    assert delete_offsets(wire, "live", read) == {read: ErrorCode.none}
    assert stored(wire, "live", read, (0,))[0].committed_offset == -1


def test_offsets_of_groups_that_are_no_consumers_or_not_there(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert delete_offsets(wire, "nobody", topic) is ErrorCode.group_id_not_found
    member = joined(wire, "unreadable")  # its subscription is no subscription: every topic counts as read
    assert sync(wire, "unreadable", member).error_code is ErrorCode.none
    assert delete_offsets(wire, "unreadable", topic) == {topic: ErrorCode.group_subscribed_to_topic}
    leave(wire, "unreadable", member.member_id)


def test_a_group_is_not_called_dead_while_its_offsets_cannot_be_read(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(wire)
    commit(wire, "unread", {(topic, 0): 7})
    member = joined(wire, "known")
    sync(wire, "known", member)

    async def away(_: CoordinatedOffsets) -> list[str]:
        raise CoordinationUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatedOffsets, "groups", away)
        assert describe(wire, "unread").error_code is ErrorCode.coordinator_not_available
        found = describe(wire, "known")
        assert (found.error_code, found.group_state) == (ErrorCode.none, "Stable")
    found = describe(wire, "unread")
    assert (found.error_code, found.group_state) == (ErrorCode.none, "Empty")
    leave(wire, "known", member.member_id)


def test_offsets_are_found_after_an_attempt_to_grow_their_topic(wire: WireClient) -> None:
    topic, groups = new_topic(wire), [f"placed-{number}" for number in range(8)]
    for group in groups:
        assert set(commit(wire, group, {(topic, 0): 7}).values()) == {ErrorCode.none}
    more = part(ApiKey.CREATE_PARTITIONS, 1, "CreatePartitionsTopic", name=OFFSETS_TOPIC, count=50, assignments=None)
    grown = wire.call(ApiKey.CREATE_PARTITIONS, 1, topics=(more,), timeout=SESSION, validate_only=False).results[0]
    assert grown.error_code is ErrorCode.invalid_partitions
    assert "a group is in the one that this number and the group's name give" in grown.error_message
    for group in groups:
        eventually(lambda group=group: stored_now(wire, group, topic) == 7, f"{group} has its offset")


def stored_now(wire: WireClient, group: str, topic: str) -> int:
    """-1 while the group's new partition is not served yet."""
    found = stored(wire, group, topic, (0,))
    return found[0].committed_offset if found else -1
