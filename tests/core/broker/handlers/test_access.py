"""An authenticator says who a client is, and an authorizer is asked for each resource of each request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.core.broker.server import Broker
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.apis import SERVED
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.grouping import coordinated
from klammtest.requests import batch, create_topic, fetch, metadata, produce, produce_fields
from klammtest.wire import WireClient, part

SECRET, OPEN, UNKNOWN = "secret-plans", "plans", "secret-unknown"
NO_TOPIC, NO_GROUP = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed
NO_CLUSTER, NONE = ErrorCode.cluster_authorization_failed, ErrorCode.none
LISTENERS = ("PLAINTEXT", "ADMIN", "CLOSED", "BROKEN")
TOPIC, BROKER = 2, 4
SOON = timedelta(seconds=20)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with guarded(tmp_path_factory.mktemp("broker")) as running:
        with client(running, "ADMIN") as admin:
            for topic in (SECRET, OPEN):
                assert create_topic(admin, topic, 2).error_code is NONE
                assert produce(admin, topic, batch(b"first")).error_code is NONE
        yield running


@contextmanager
def guarded(folder: Path, **more: object) -> Iterator[Broker]:
    """A broker with the access control of `klammtest.plugins.guarded`; `more` are further keys of it."""
    keys = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in LISTENERS),
        "authenticator": "by-listener",
        "authorizer": {"plugin": "keeps-secrets"},
        **more,
    }
    tree = {"plugin": "embedded", "path": str(folder / "tree.db")}
    with broker_thread(folder, tree, keys, plugins={"modules": ["klammtest.plugins.guarded"]}) as running:
        yield running


def client(broker: Broker, listener: str) -> WireClient:
    (found,) = (address for address in broker.advertised if address.name == listener)
    return WireClient(f"{found.host}:{found.port}")


@pytest.fixture
def guest(broker: Broker) -> Iterator[WireClient]:
    with client(broker, "PLAINTEXT") as wire:
        yield wire


@pytest.fixture
def admin(broker: Broker) -> Iterator[WireClient]:
    with client(broker, "ADMIN") as wire:
        yield wire


@pytest.mark.parametrize("version", range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1))
def test_produce_on_the_fast_path(guest: WireClient, admin: WireClient, version: int) -> None:
    for acks in (1, -1):
        assert produce(guest, SECRET, batch(b"x"), 0, acks, version, admin).error_code is NO_TOPIC
        nowhere = produce(guest, UNKNOWN, batch(b"x"), 0, acks, version).error_code
        assert nowhere is (NO_TOPIC if version < 13 else ErrorCode.unknown_topic_id)
        assert produce(guest, OPEN, batch(b"x"), version=version, acks=acks).error_code is NONE
        assert produce(admin, SECRET, batch(b"x"), version=version, acks=acks).error_code is NONE


def test_produce_on_the_general_path(guest: WireClient) -> None:
    batches = {(topic, number): batch(b"x") for topic in (SECRET, OPEN) for number in range(2)}
    answer = guest.call(ApiKey.PRODUCE, 9, **produce_fields(batches))
    codes = {topic.name: {p.error_code for p in topic.partition_responses} for topic in answer.responses}
    assert codes == {SECRET: {NO_TOPIC}, OPEN: {NONE}}
    assert produce(guest, SECRET, batch(*[b"x" * 1000] * 900)).error_code is NO_TOPIC


def test_produce_without_acknowledgement_ends_the_connection(guest: WireClient) -> None:
    guest.send(ApiKey.PRODUCE, 9, **produce_fields({(SECRET, 0): batch(b"x")}, acks=0))
    assert guest.receive_frame() is None


def test_fetch(guest: WireClient, admin: WireClient) -> None:
    refused = fetch(guest, SECRET, 0)
    assert (refused.error_code, refused.records, refused.high_watermark) == (NO_TOPIC, b"", -1)
    assert fetch(guest, OPEN, 0).error_code is NONE
    assert fetch(admin, SECRET, 0).records


def test_metadata(guest: WireClient, admin: WireClient) -> None:
    named = {topic.name: topic for topic in metadata(guest, [SECRET, OPEN, UNKNOWN], create=True).topics}
    assert {name: topic.error_code for name, topic in named.items()} == {
        SECRET: NO_TOPIC,
        OPEN: NONE,
        UNKNOWN: NO_TOPIC,
    }
    assert named[SECRET].partitions == ()
    assert {topic.name for topic in metadata(guest, None).topics} == {OPEN}
    everything = metadata(admin, None, 12)
    assert {topic.name for topic in everything.topics} == {OPEN, SECRET}
    (hidden,) = (topic.topic_id for topic in everything.topics if topic.name == SECRET)
    asked = part(ApiKey.METADATA, 12, "MetadataRequestTopic", name=None, topic_id=hidden)
    answer = guest.call(
        ApiKey.METADATA, 12, topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.unknown_topic_id]


def test_the_operations_that_a_client_may_do(guest: WireClient, admin: WireClient) -> None:
    everything = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
    for wire, expected in ((guest, 0), (admin, everything)):
        answer = wire.call(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
        assert answer.cluster_authorized_operations == expected


def test_topics_are_changed_by_those_who_may(guest: WireClient) -> None:
    assert create_topic(guest, "secret-two").error_code is NO_TOPIC
    assert create_topic(guest, "two", 1).error_code is NONE
    grown = {"count": 3, "assignments": None}
    asked = tuple(part(ApiKey.CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name=n, **grown) for n in (SECRET, "two"))
    answer = guest.call(ApiKey.CREATE_PARTITIONS, 3, topics=asked, timeout=SOON, validate_only=False)
    assert [row.error_code for row in answer.results] == [NO_TOPIC, NONE]
    doomed = tuple(part(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=n, topic_id=None) for n in (SECRET, "two"))
    answer = guest.call(ApiKey.DELETE_TOPICS, 6, topics=doomed, timeout=SOON)
    assert [row.error_code for row in answer.responses] == [NO_TOPIC, NONE]


def test_a_created_topic_is_described_to_those_who_may(guest: WireClient, admin: WireClient) -> None:
    answer = create_topic(guest, "blind-created", 2)
    assert (answer.error_code, answer.topic_config_error_code) == (NONE, NO_TOPIC.value)
    assert (answer.num_partitions, answer.replication_factor, answer.configs) == (-1, -1, ())
    assert answer.topic_id.int != 0
    answer = create_topic(admin, "blind-described", 2)
    assert (answer.error_code, answer.topic_config_error_code) == (NONE, NONE.value)
    assert (answer.num_partitions, answer.replication_factor, bool(answer.configs)) == (2, 1, True)
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    asked = (part(ApiKey.CREATE_TOPICS, 4, "CreatableTopic", name="blind-old", **topic),)
    (row,) = guest.call(ApiKey.CREATE_TOPICS, 4, topics=asked, timeout=SOON, validate_only=False).topics
    assert row.error_code is NONE


def by_id(wire: WireClient, *asked: UUID | str) -> list[tuple[str | None, UUID | None, ErrorCode, str | None]]:
    """Returns the answers of DeleteTopics for topics given by id or by name."""
    named = [(a, None) if isinstance(a, str) else (None, a) for a in asked]
    topics = tuple(part(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=n, topic_id=i) for n, i in named)
    answer = wire.call(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=SOON)
    return [(row.name, row.topic_id, row.error_code, row.error_message) for row in answer.responses]


def test_a_refused_deletion_by_id_names_only_what_the_client_may_describe(guest: WireClient, admin: WireClient) -> None:
    hidden = create_topic(admin, "secret-by-id").topic_id
    kept = create_topic(admin, "kept-by-id").topic_id
    (first, second) = by_id(guest, hidden, kept)
    assert first[:3] == (None, hidden, NO_TOPIC)
    assert "secret" not in (first[3] or "")
    assert second[:3] == ("kept-by-id", kept, NO_TOPIC)
    (named,) = by_id(guest, "secret-by-id")
    assert (named[0], named[2]) == ("secret-by-id", NO_TOPIC), "the client gave the name"


def test_an_id_that_is_asked_for_twice_is_answered_without_a_name(guest: WireClient, admin: WireClient) -> None:
    hidden, nowhere = create_topic(admin, "secret-twice").topic_id, UUID(int=7)
    for wire in (guest, admin):
        for asked in (hidden, nowhere):
            assert by_id(wire, asked, asked) == [(None, asked, ErrorCode.invalid_request, "Duplicate topic id.")]
    rows = by_id(guest, hidden, "secret-twice")
    assert [row[:3:2] for row in rows] == [(None, NO_TOPIC), ("secret-twice", NO_TOPIC)]
    assert "secret" not in (rows[0][3] or "")
    for many in ((hidden, "secret-twice"), (hidden, hidden, "secret-twice"), (hidden, "secret-twice", "secret-twice")):
        assert [row[2] for row in by_id(admin, *many)] == [ErrorCode.invalid_request] * 2


def test_a_topic_that_may_be_deleted_and_not_described_stays_without_a_name(
    guest: WireClient, admin: WireClient
) -> None:
    blind = create_topic(admin, "blind-by-id").topic_id
    (row, _) = by_id(guest, blind, "blind-by-id")
    assert row[:3] == (None, blind, ErrorCode.invalid_request)
    assert "blind" not in (row[3] or "")
    assert by_id(guest, blind) == [(None, blind, NONE, None)]


def test_where_no_topic_may_be_deleted_an_id_does_not_tell_its_name(tmp_path: Path) -> None:
    disabled = ErrorCode.topic_deletion_disabled
    with guarded(tmp_path, **{"delete.topic.enable": False}) as running:
        with client(running, "ADMIN") as admin:
            hidden = create_topic(admin, "secret-stays").topic_id
            assert by_id(admin, hidden)[0][:3] == ("secret-stays", hidden, disabled)
        with client(running, "PLAINTEXT") as guest:
            assert by_id(guest, hidden)[0][:3] == (None, hidden, disabled)


def test_records_are_deleted_by_those_who_may(guest: WireClient, admin: WireClient) -> None:
    one = part(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
    asked = (part(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsTopic", name=SECRET, partitions=(one,)),)
    for wire, expected in ((guest, NO_TOPIC), (admin, NONE)):
        answer = wire.call(ApiKey.DELETE_RECORDS, 2, topics=asked, timeout=SOON)
        assert answer.topics[0].partitions[0].error_code is expected


def test_offsets_of_a_topic(guest: WireClient, admin: WireClient) -> None:
    at = part(ApiKey.LIST_OFFSETS, 7, "ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=-1)
    listed = (part(ApiKey.LIST_OFFSETS, 7, "ListOffsetsTopic", name=SECRET, partitions=(at,)),)
    epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    of = part(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "OffsetForLeaderPartition", **epoch)
    ended = (part(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "OffsetForLeaderTopic", topic=SECRET, partitions=(of,)),)
    for wire, expected in ((guest, NO_TOPIC), (admin, NONE)):
        answer = wire.call(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=listed)
        assert answer.topics[0].partitions[0].error_code is expected
        answer = wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=ended)
        assert answer.topics[0].partitions[0].error_code is expected


@pytest.mark.parametrize(("kind", "name", "code"), [(TOPIC, SECRET, NO_TOPIC), (BROKER, "0", NO_CLUSTER)])
def test_configs(guest: WireClient, admin: WireClient, kind: int, name: str, code: ErrorCode) -> None:
    for wire, expected in ((guest, code), (admin, NONE)):
        api = ApiKey.DESCRIBE_CONFIGS
        asked = part(api, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)
        answer = wire.call(api, 4, resources=(asked,), include_synonyms=False, include_documentation=False)
        assert (answer.results[0].error_code, bool(answer.results[0].configs)) == (expected, expected is NONE)
        api = ApiKey.INCREMENTAL_ALTER_CONFIGS
        resource = part(api, 1, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=())
        answer = wire.call(api, 1, resources=(resource,), validate_only=True)
        assert (answer.responses[0].error_code is code) == (expected is code)


def test_groups(guest: WireClient) -> None:
    secret = "secret-group"
    found = guest.call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(secret, "group"))
    assert [row.error_code for row in found.coordinators] == [NO_GROUP, NONE]
    member: dict[str, Any] = {"group_id": secret, "member_id": "m", "generation_id": 1, "group_instance_id": None}
    assert guest.call(ApiKey.HEARTBEAT, 4, **member).error_code is NO_GROUP
    assert (
        guest.call(
            ApiKey.SYNC_GROUP, 5, **member, protocol_type="consumer", protocol_name="range", assignments=()
        ).error_code
        is NO_GROUP
    )
    assert guest.call(
        ApiKey.JOIN_GROUP, 7, group_id=secret, member_id="", group_instance_id=None, protocol_type="consumer",
        protocols=(), session_timeout=SOON, rebalance_timeout=SOON,
    ).error_code is NO_GROUP  # fmt: skip
    assert guest.call(ApiKey.LEAVE_GROUP, 4, group_id=secret, members=()).error_code is NO_GROUP
    described = guest.call(ApiKey.DESCRIBE_GROUPS, 5, groups=(secret,), include_authorized_operations=False)
    assert described.groups[0].error_code is NO_GROUP
    deleted = guest.call(ApiKey.DELETE_GROUPS, 2, groups_names=(secret,))
    assert deleted.results[0].error_code is NO_GROUP


def commit(wire: WireClient, group: str, topic: str) -> ErrorCode:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}
    at = part(ApiKey.OFFSET_COMMIT, 8, "OffsetCommitRequestPartition", **row)
    topics = (part(ApiKey.OFFSET_COMMIT, 8, "OffsetCommitRequestTopic", name=topic, partitions=(at,)),)
    who = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, group_id=group, topics=topics, **who)
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def test_committed_offsets(guest: WireClient, admin: WireClient) -> None:
    coordinated(admin, "group", "secret-group")
    assert commit(guest, "secret-group", OPEN) is NO_GROUP
    assert commit(guest, "group", SECRET) is NO_TOPIC
    assert commit(guest, "group", OPEN) is NONE
    assert commit(admin, "group", SECRET) is NONE
    for wire, topics in ((guest, {OPEN}), (admin, {OPEN, SECRET})):
        assert {
            topic.name for topic in wire.call(ApiKey.OFFSET_FETCH, 5, group_id="group", topics=None).topics
        } == topics
    named = part(ApiKey.OFFSET_FETCH, 5, "OffsetFetchRequestTopic", name=SECRET, partition_indexes=(0,))
    (hidden,) = guest.call(ApiKey.OFFSET_FETCH, 5, group_id="group", topics=(named,)).topics[0].partitions
    assert (hidden.error_code, hidden.committed_offset) == (NO_TOPIC, -1)
    assert guest.call(ApiKey.OFFSET_FETCH, 5, group_id="secret-group", topics=None).error_code is NO_GROUP
    gone = part(ApiKey.OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=0)
    asked = (part(ApiKey.OFFSET_DELETE, 0, "OffsetDeleteRequestTopic", name=SECRET, partitions=(gone,)),)
    assert guest.call(ApiKey.OFFSET_DELETE, 0, group_id="secret-group", topics=asked).error_code is NO_GROUP
    answer = guest.call(ApiKey.OFFSET_DELETE, 0, group_id="group", topics=asked)
    assert answer.topics[0].partitions[0].error_code is NO_TOPIC


def test_a_producer_id_is_for_those_who_may_write_anything(guest: WireClient) -> None:
    answer = guest.call(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=timedelta())
    assert answer.error_code is NONE, "it may write to a topic, though not to the cluster"


@pytest.mark.parametrize(
    ("listener", "line"),
    [
        ("CLOSED", "the client is not authenticated: CLOSED accepts nobody"),
        ("BROKEN", "the authenticator failed: ZeroDivisionError('a bug in the authenticator')"),
    ],
)
def test_a_client_that_is_refused_is_cut_off_with_one_line(
    broker: Broker, caplog: pytest.LogCaptureFixture, listener: str, line: str
) -> None:
    with client(broker, listener) as wire:
        wire.send(ApiKey.API_VERSIONS, 0)
        assert wire.receive_frame() is None
    assert [record.getMessage() for record in caplog.records if line in record.getMessage()]


def test_an_authorizer_that_fails_refuses(guest: WireClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert produce(guest, "bug", batch(b"x")).error_code is NO_TOPIC
    assert "so User:guest may not WRITE TOPIC 'bug': ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (ApiKey.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout": SOON}),
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            {"topics": (), "timeout": SOON, "allow_replication_factor_change": True},
        ),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None, "timeout": SOON}),
        (ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}),
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": (), "strict": False}),
        (ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": (4,)}),
    ],
)
def test_the_cluster_is_administered_by_those_who_may(
    guest: WireClient, admin: WireClient, api: ApiKey, fields: dict[str, Any]
) -> None:
    for wire, expected in ((guest, NO_CLUSTER), (admin, NONE)):
        assert wire.call(api, SERVED[api][1], **fields).error_code is expected


def test_acls_and_log_directories_are_the_business_of_those_who_may(guest: WireClient, admin: WireClient) -> None:
    acls = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    api = ApiKey.ALTER_REPLICA_LOG_DIRS
    topic = part(api, 2, "AlterReplicaLogDirTopic", name=OPEN, partitions=(0,))
    moved = part(api, 2, "AlterReplicaLogDir", path="/nowhere", topics=(topic,))
    for wire, described, altered in (
        (guest, NO_CLUSTER, NO_CLUSTER),
        (admin, ErrorCode.security_disabled, ErrorCode.log_dir_not_found),
    ):
        assert wire.call(ApiKey.DESCRIBE_ACLS, 3, **acls).error_code is described
        assert wire.call(api, 2, dirs=(moved,)).results[0].partitions[0].error_code is altered


def test_a_broker_is_unregistered_by_those_who_may(guest: WireClient, admin: WireClient) -> None:
    for wire, expected in ((guest, NO_CLUSTER), (admin, ErrorCode.broker_id_not_registered)):
        assert wire.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=77).error_code is expected


def test_partitions_of_a_topic_are_described_to_those_who_may(guest: WireClient, admin: WireClient) -> None:
    api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    for wire, expected, listed in ((guest, NO_TOPIC, False), (admin, NONE, True)):
        named = (part(api, 0, "TopicRequest", name=SECRET),)
        (topic,) = wire.call(api, 0, topics=named, response_partition_limit=10, cursor=None).topics
        assert (topic.error_code, bool(topic.partitions), topic.topic_id is not None) == (expected, listed, listed)
        every = wire.call(api, 0, topics=(), response_partition_limit=2000, cursor=None).topics
        assert (SECRET in {found.name for found in every}) is listed
