"""Answers held against those of Apache Kafka 4.4, request by request (bench/compare_protocol.py shows both)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest

from klamm.core.broker import handlers, topic_creation
from klamm.core.broker.access import NOT_ASKED, AccessControl
from klamm.core.broker.handlers import fetch
from klamm.core.broker.handlers.configs import describe_configs as configs
from klamm.core.broker.handlers.table import APIS
from klamm.core.broker.request import Request
from klamm.core.broker.server import Broker
from klamm.core.broker.services import Services
from klamm.core.cluster.image import ClusterImage
from klamm.core.cluster.topics import TopicChanges
from klamm.core.config.sections.topic import TOPIC_DEFINITIONS
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klamm.core.replication.fetch_sessions import FetchSessionRequest
from klammtest.apis import SERVED
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.grouping import coordinated
from klammtest.guarantees import guarantee
from klammtest.logs import codec_table
from klammtest.requests import batch, create_topic, fetch_fields, new_topic, produce, produce_fields
from klammtest.wire import WireClient, part

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    with broker_thread(folder, coordination) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as client:
        yield client


def every_request_is_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchSessionRequest, "is_full", True)


@guarantee("E21", "Fetch is whole at session epochs 0 and -1, and error 70 at any other", plant=every_request_is_whole)
def test_a_fetch_of_an_unknown_session(wire: WireClient) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"a"))

    def answer(session_id: int, epoch: int, version: int) -> tuple[ErrorCode, int, int]:
        fields = fetch_fields({(topic, 0): 0}, version=version, session_id=session_id, session_epoch=epoch)
        found = wire.call(ApiKey.FETCH, version, **fields)
        return found.error_code, int(found.session_id > 0), len(found.responses)

    for version in range(7, SERVED[ApiKey.FETCH][1] + 1):
        for session_id in (0, 1234):
            assert answer(session_id, 0, version) == (ErrorCode.none, 1, 1)
            assert answer(session_id, -1, version) == (ErrorCode.none, 0, 1)
            assert answer(session_id, 4, version) == (ErrorCode.fetch_session_id_not_found, 0, 0)


def an_empty_fetch_waits(patch: pytest.MonkeyPatch) -> None:
    """Sends a Fetch without topics the way of those that cannot be answered from the page cache."""
    real = APIS[ApiKey.FETCH].handler

    def waiting(services: Services, request: Request) -> Any:
        if request.message.topics:
            return real(services, request)
        whole: Any = FetchSessionRequest(0, -1, {})
        context = services.fetch_sessions.context(whole, from_follower=False, now_ms=0)
        return fetch._wait(services, request, context, [], None, request.message.max_wait.total_seconds())

    patch.setitem(APIS, ApiKey.FETCH, replace(APIS[ApiKey.FETCH], handler=waiting))


@guarantee("E22", "a Fetch without topics does not wait", plant=an_empty_fetch_waits)
def test_an_empty_fetch_does_not_wait(broker: Broker, wire: WireClient) -> None:
    """`min_bytes` is above what the event loop reads itself, as after much was read on the connection."""
    waits = broker.metrics.waits[ApiKey.FETCH].buckets
    before = sum(waits)
    answer = wire.call(ApiKey.FETCH, 12, **fetch_fields({}, max_wait_ms=300, min_bytes=1_000_000))
    assert answer.error_code is ErrorCode.none
    assert sum(waits) == before


def no_record_is_named(patch: pytest.MonkeyPatch) -> None:
    class Nothing(Exception):
        """A type that no error has."""

    patch.setattr(handlers.produce, "RecordValidationError", Nothing)


@guarantee("E19", "a batch refused for some of its records names them (KIP-467)", plant=no_record_is_named)
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_that_spoil_their_batch_are_named(wire: WireClient, codec: str | None) -> None:
    topic = new_topic(wire, cleanup_policy="compact")
    keyless = range(7, 100, 10)
    records = [(NOW_MS, None if i in keyless else b"k", b"v", ()) for i in range(100)]
    answer = produce(wire, topic, encode_batch(records, codec=codec_table().by_name(codec) if codec else None))
    assert answer.error_code is ErrorCode.invalid_record
    assert [e.batch_index for e in answer.record_errors] == list(keyless)
    assert {e.batch_index_error_message for e in answer.record_errors} == {"a record of a compacted topic needs a key"}
    assert "10 of 100 records have no key" in answer.error_message
    assert (answer.base_offset, answer.log_append_time) == (-1, None)
    good = [record for i, record in enumerate(records) if i not in keyless]
    answer = produce(wire, topic, encode_batch(good))
    assert (answer.error_code, answer.base_offset, answer.record_errors) == (ErrorCode.none, 0, ())


@guarantee("E19", "a batch refused for some of its timestamps names their records", plant=no_record_is_named)
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_with_wrong_timestamps_are_named(wire: WireClient, codec: str | None) -> None:
    topic = new_topic(wire, message_timestamp_before_max_ms=3_600_000)
    wrong = {2: NOW_MS - 2 * DAY_MS, 5: NOW_MS + DAY_MS}
    records = [(wrong.get(i, NOW_MS), None, b"v", ()) for i in range(9)]
    answer = produce(wire, topic, encode_batch(records, codec=codec_table().by_name(codec) if codec else None))
    assert answer.error_code is ErrorCode.invalid_timestamp
    assert [e.batch_index for e in answer.record_errors] == list(wrong)
    assert all(str(wrong[e.batch_index]) in e.batch_index_error_message for e in answer.record_errors)


def test_an_answer_names_a_bounded_number_of_records(wire: WireClient) -> None:
    """A thousand of a batch, ten thousand of a request: an answer stays small beside what was sent."""
    topic = new_topic(wire, partitions=11, cleanup_policy="compact")
    spoiled = encode_batch([(NOW_MS, None, b"", ())] * 1500)
    batches = {(topic, partition): spoiled for partition in range(11)}
    answer = wire.call(ApiKey.PRODUCE, 9, **produce_fields(batches))
    outcomes = answer.responses[0].partition_responses
    assert [len(o.record_errors) for o in outcomes] == [1000] * 10 + [0]
    assert all("1500 of 1500 records have no key" in o.error_message for o in outcomes)


def describe(wire: WireClient, name: str, keys: tuple[str, ...] | None, kind: int = TOPIC, **more: Any) -> Any:
    api, version = ApiKey.DESCRIBE_CONFIGS, 4
    asked = part(
        api, version, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return wire.call(api, version, resources=(asked,), **more).results[0]


def no_names_mean_no_configs(patch: pytest.MonkeyPatch) -> None:
    def described(services: Services, request: Request) -> Any:
        answer = configs.describe_configs(services, request)
        asked = [resource.configuration_keys for resource in request.message.resources]
        results = zip(answer.results, asked, strict=True)
        return replace(answer, results=tuple(replace(r, configs=()) if keys == () else r for r, keys in results))

    patch.setitem(APIS, ApiKey.DESCRIBE_CONFIGS, replace(APIS[ApiKey.DESCRIBE_CONFIGS], handler=described))


@guarantee("E23", "DescribeConfigs with an empty list of names means all", plant=no_names_mean_no_configs)
def test_an_empty_list_of_names_means_all(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert describe(wire, topic, ()).configs == describe(wire, topic, None).configs != ()
    assert len(describe(wire, "0", (), BROKER).configs) > 50
    assert [c.name for c in describe(wire, topic, ("retention.ms",)).configs] == ["retention.ms"]


def nobody_may_do_anything(patch: pytest.MonkeyPatch) -> None:
    """Leaves every bit field as it is when nobody asked."""
    patch.setattr(AccessControl, "operations", lambda *_: NOT_ASKED)


@guarantee("E25", "a client that asks for its operations is told all that Kafka knows", plant=nobody_may_do_anything)
def test_authorized_operations(wire: WireClient) -> None:
    """The numbers are those of a Kafka 4.4 without an authorizer."""
    check_operations(wire, asked=True)


def test_operations_are_not_told_unasked(wire: WireClient) -> None:
    check_operations(wire, asked=False)


def check_operations(wire: WireClient, *, asked: bool) -> None:
    topic = new_topic(wire)
    names = (topic, "nowhere")
    for version in range(8, SERVED[ApiKey.METADATA][1] + 1):
        more = {"include_cluster_authorized_operations": asked} if version <= 10 else {}
        topics = tuple(part(ApiKey.METADATA, version, "MetadataRequestTopic", name=n, topic_id=None) for n in names)
        answer = wire.call(
            ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=False,
            include_topic_authorized_operations=asked, **more,
        )  # fmt: skip
        found = {t.name: t.topic_authorized_operations for t in answer.topics}
        assert found == dict.fromkeys(names, 3576 if asked else NOT_ASKED)
        if version <= 10:
            assert answer.cluster_authorized_operations == (8096 if asked else NOT_ASKED)
    cluster = wire.call(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=asked, endpoint_type=1)
    assert cluster.cluster_authorized_operations == (8096 if asked else NOT_ASKED)
    coordinated(wire, "g")
    groups = wire.call(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=asked)
    assert groups.groups[0].authorized_operations == (3400 if asked else NOT_ASKED)


def alter(wire: WireClient, kind: int, name: str, version: int = 2, validate_only: bool = False, **keys: Any) -> Any:
    """AlterConfigs of one resource; keys with underscores for dots."""
    api = ApiKey.ALTER_CONFIGS
    given = tuple(part(api, version, "AlterableConfig", name=k.replace("_", "."), value=v) for k, v in keys.items())
    resource = part(api, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=given)
    return wire.call(api, version, resources=(resource,), validate_only=validate_only).responses[0]


ACCEPTED = {
    "compression.gzip.level": ("9", "10"),
    "compression.lz4.level": ("1", "-1"),
    "compression.zstd.level": ("-131072", "23"),
    "errors.deadletterqueue.group.enable": ("TRUE", "yes"),
    "local.retention.bytes": ("-1", "-3"),
    "local.retention.ms": ("5", "-3"),
    "max.decompressed.message.bytes": ("1", "2147483647"),
    "preallocate": ("true", "1"),
    "remote.copy.lag.bytes": ("5", "-2"),
    "remote.copy.lag.ms": ("5", "-2"),
    "remote.log.copy.disable": ("true", "no"),
    "remote.log.delete.on.disable": ("true", "no"),
    "remote.storage.enable": ("false", "true"),
    "segment.jitter.ms": ("5", "-1"),
}
"""Kafka's topic configs that make no difference here, each with a value that Kafka takes and one it refuses."""


def only_what_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    """Knows no topic config that makes no difference."""
    for name in ACCEPTED:
        patch.delitem(TOPIC_DEFINITIONS, name)


@guarantee("E29", "Kafka's topic configs without effect are checked, kept and shown", plant=only_what_is_obeyed)
def test_configs_without_effect(wire: WireClient) -> None:
    good = {name: values[0] for name, values in ACCEPTED.items()}
    topic = f"configs-{time.monotonic_ns()}"
    assert create_topic(wire, topic, 1, good).error_code is ErrorCode.none
    assert own(wire, topic) == good
    for name, (_, wrong) in ACCEPTED.items():
        assert create_topic(wire, "wrong", 1, {name: wrong}).error_code is ErrorCode.invalid_config
        assert alter(wire, TOPIC, topic, **{name.replace(".", "_"): wrong}).error_code is ErrorCode.invalid_config
    assert own(wire, topic) == good
    for config in describe(wire, topic, tuple(ACCEPTED), include_documentation=True).configs:
        assert "No effect" in config.documentation
    assert produce(wire, topic, batch(b"a")).error_code is ErrorCode.none


def delete(wire: WireClient, *topics: tuple[str | None, UUID | None]) -> list[tuple[str | None, ErrorCode]]:
    """DeleteTopics 6 of topics by name or by id."""
    api = ApiKey.DELETE_TOPICS
    asked = tuple(part(api, 6, "DeleteTopicState", name=name, topic_id=topic_id) for name, topic_id in topics)
    answer = wire.call(api, 6, topics=asked, timeout=timedelta(seconds=10))
    return [(r.name, r.error_code) for r in answer.responses]


def deletes_by_name_alone(patch: pytest.MonkeyPatch) -> None:
    """Deletes the topic that has the name now, whatever id was meant."""
    names: dict[UUID, str] = {}
    create, delete = TopicChanges.create, TopicChanges.delete

    def remembered(self: TopicChanges, image: ClusterImage, name: str, *rest: Any) -> UUID:
        topic_id = create(self, image, name, *rest)
        names[topic_id] = name
        return topic_id

    patch.setattr(TopicChanges, "create", remembered)
    patch.setattr(TopicChanges, "delete", lambda self, name, topic_id=None: delete(self, name))
    patch.setattr(ClusterImage, "topic_by_id", lambda image, topic_id: image.topics.get(names.get(topic_id, "")))


@guarantee("E30", "DeleteTopics by id deletes that topic and no later one of its name", plant=deletes_by_name_alone)
def test_a_topic_is_deleted_by_its_id(wire: WireClient) -> None:
    name = f"deleted-{time.monotonic_ns()}"
    first = create_topic(wire, name).topic_id
    assert delete(wire, (None, first)) == [(name, ErrorCode.none)]
    second = create_topic(wire, name).topic_id
    assert first != second
    assert delete(wire, (None, first)) == [(None, ErrorCode.unknown_topic_id)]
    assert delete(wire, (None, None)) == [(None, ErrorCode.invalid_request)]
    assert delete(wire, (name, second)) == [(name, ErrorCode.invalid_request)]
    assert {code for _, code in delete(wire, (None, second), (name, None))} == {ErrorCode.invalid_request}
    assert delete(wire, (name, None), (name, None)) == [(name, ErrorCode.invalid_request)]
    assert delete(wire, ("nowhere", None)) == [("nowhere", ErrorCode.unknown_topic_or_partition)]
    assert produce(wire, name, batch(b"a")).error_code is ErrorCode.none
    assert delete(wire, (name, None)) == [(name, ErrorCode.none)]


def metadata_without_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(APIS, ApiKey.METADATA, replace(APIS[ApiKey.METADATA], versions=(0, 9)))


@guarantee("E30", "a topic made again with fewer partitions does not wedge librdkafka", plant=metadata_without_ids)
def test_a_smaller_topic_of_the_same_name(broker: Broker, wire: WireClient) -> None:
    """Without topic ids librdkafka takes the new topic's leader epoch for an old one, ignores the answer, and goes on
    sending to partitions that are gone."""
    name = f"again-{time.monotonic_ns()}"
    create_topic(wire, name, 4)
    delivered: list[int] = []
    config = {
        "bootstrap.servers": f"127.0.0.1:{broker.advertised[0].port}",
        "message.timeout.ms": 3000,
        "topic.metadata.refresh.interval.ms": 200,
    }
    producer = confluent_kafka.Producer(config)

    def note(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            delivered.append(message.partition() or 0)

    def send() -> None:
        delivered.clear()
        for number in range(40):
            with suppress(confluent_kafka.KafkaException):  # it may know by now that the partition is gone
                producer.produce(name, b"x", key=str(number), on_delivery=note)
        producer.flush()

    send()
    assert sorted(set(delivered)) == [0, 1, 2, 3]
    assert delete(wire, (name, None)) == [(name, ErrorCode.none)]
    assert create_topic(wire, name, 1).error_code is ErrorCode.none
    for _ in range(3):
        send()
        if len(delivered) == 40:
            break
    assert delivered == [0] * 40


def assigned(wire: WireClient, name: str, *given: tuple[int, tuple[int, ...]], **more: Any) -> Any:
    """CreateTopics with an assignment."""
    api, version = ApiKey.CREATE_TOPICS, 7
    rows = tuple(
        part(api, version, "CreatableReplicaAssignment", partition_index=number, broker_ids=brokers)
        for number, brokers in given
    )
    return create_topic(wire, name, more.pop("partitions", -1), assignments=rows, **more)


def grown(wire: WireClient, name: str, total: int, *given: tuple[int, ...]) -> ErrorCode:
    """CreatePartitions with an assignment."""
    api, version = ApiKey.CREATE_PARTITIONS, 3
    rows = tuple(part(api, version, "CreatePartitionsAssignment", broker_ids=brokers) for brokers in given)
    topic = part(api, version, "CreatePartitionsTopic", name=name, count=total, assignments=rows)
    answer = wire.call(api, version, topics=(topic,), timeout=timedelta(seconds=10), validate_only=False)
    code: ErrorCode = answer.results[0].error_code
    return code


def assignments_are_refused(patch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise BrokerError(ErrorCode.invalid_request, "replicas are placed by the broker, not by assignments")

    patch.setattr(topic_creation, "checked_assignment", refused)


@guarantee("E28", "an admin's assignment is taken, or refused for Kafka's reasons", plant=assignments_are_refused)
def test_manual_assignments(wire: WireClient) -> None:
    name = f"assigned-{time.monotonic_ns()}"
    wrong = ErrorCode.invalid_replica_assignment
    for given in (
        [(0, ())],
        [(0, (0, 0))],
        [(0, (7,))],
        [(0, (0, 7))],
        [(0, (0,)), (2, (0,))],
        [(0, (0,)), (0, (0,))],
        [(-1, (0,))],
    ):
        assert assigned(wire, name, *given).error_code is wrong, given
    assert assigned(wire, name, (0, (0,)), partitions=1).error_code is ErrorCode.invalid_request
    assert assigned(wire, name, (0, (0,)), replication_factor=1).error_code is ErrorCode.invalid_request
    answer = assigned(wire, name, (1, (0,)), (0, (0,)))
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (ErrorCode.none, 2, 1)
    for total, given in ((4, [(0,)]), (3, []), (3, [()]), (3, [(7,)]), (3, [(0, 0)])):
        assert grown(wire, name, total, *given) is wrong, (total, given)
    assert grown(wire, name, 2) is ErrorCode.invalid_partitions
    assert grown(wire, name, 4, (0,), (0,)) is ErrorCode.none
    assert produce(wire, name, batch(b"a"), partition=3).error_code is ErrorCode.none


def own(wire: WireClient, topic: str) -> dict[str, str]:
    """Returns the configs that are set on the topic itself."""
    return {c.name: c.value for c in describe(wire, topic, None).configs if c.config_source == 1}


def alter_configs_adds(patch: pytest.MonkeyPatch) -> None:
    """Leaves the keys that a request does not name."""
    patch.setattr(
        "klamm.core.broker.handlers.configs.alter_configs.Alteration.changes", lambda self, stored: self.configs
    )


@guarantee("E26", "AlterConfigs replaces all that a topic or a broker sets", plant=alter_configs_adds)
def test_alter_configs(wire: WireClient) -> None:
    topic = new_topic(wire, retention_ms=1000, segment_ms=5000)
    for version in range(3):
        answer = alter(wire, TOPIC, topic, version, retention_ms=str(2000 + version), max_message_bytes="9000")
        assert (answer.error_code, answer.resource_name) == (ErrorCode.none, topic)
        assert own(wire, topic) == {"retention.ms": str(2000 + version), "max.message.bytes": "9000"}
    assert alter(wire, TOPIC, topic, validate_only=True, retention_ms="1").error_code is ErrorCode.none
    assert own(wire, topic)["retention.ms"] == "2002"
    assert alter(wire, TOPIC, topic).error_code is ErrorCode.none
    assert own(wire, topic) == {}
    assert alter(wire, BROKER, "", log_retention_ms="9000", num_partitions="2").error_code is ErrorCode.none
    assert alter(wire, BROKER, "", num_partitions="3").error_code is ErrorCode.none
    assert {c.name: c.value for c in describe(wire, "", None, BROKER).configs} == {"num.partitions": "3"}
    assert alter(wire, BROKER, "").error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("kind", "name", "keys", "error"),
    [
        (TOPIC, "nowhere", {"retention_ms": "1"}, ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", {"retention_ms": None}, ErrorCode.invalid_request),
        (TOPIC, "", {"retention_ms": "soon"}, ErrorCode.invalid_config),
        (TOPIC, "", {"retention_of_ms": "1"}, ErrorCode.invalid_config),
        (BROKER, "7", {"num_partitions": "1"}, ErrorCode.invalid_request),
        (BROKER_LOGGER, "0", {"root": "INFO"}, ErrorCode.invalid_request),
        (32, "g", {}, ErrorCode.invalid_request),
    ],
)
def test_alter_configs_refuses(
    wire: WireClient, kind: int, name: str, keys: dict[str, str | None], error: ErrorCode
) -> None:
    topic = new_topic(wire, segment_ms=5000)
    answer = alter(wire, kind, name or topic, **keys)
    assert (answer.error_code, bool(answer.error_message)) == (error, True)
    assert own(wire, topic) == {"segment.ms": "5000"}


def test_a_resource_is_altered_once_in_a_request(wire: WireClient) -> None:
    topic = new_topic(wire, segment_ms=5000)
    api = ApiKey.ALTER_CONFIGS
    resource = part(api, 2, "AlterConfigsResource", resource_type=TOPIC, resource_name=topic, configs=())
    answer = wire.call(api, 2, resources=(resource, resource), validate_only=False)
    assert [r.error_code for r in answer.responses] == [ErrorCode.invalid_request] * 2
    assert own(wire, topic) == {"segment.ms": "5000"}
