"""Sends the same requests to Apache Kafka and to Klamm and prints every field in which the answers differ.

`python bench/compare_protocol.py` starts both brokers (Kafka from the jars that `bench/install.sh` fetches), or uses a
fresh Kafka that already runs (`--kafka HOST:PORT`). It prints one line for each difference and exits with 1 if `KNOWN`
does not explain one of them. `--only TEXT` runs the cases whose name contains the text; `--all` also prints the
explained differences.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klamm.core.config.dynamic import DEFINITIONS
from klamm.core.config.kafka_keys import BROKER_KEYS
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header
from klamm.core.records.encode import encode_batch
from klammbench.systems.kafka import kafka_tuned
from klammtest.apis import SERVED
from klammtest.broker import running_broker
from klammtest.logs import codec_table
from klammtest.requests import fetch_fields, produce_fields
from klammtest.requests import metadata as metadata_of
from klammtest.wire import WireClient, part

BROKER_ID: Final = 1
"""Kafka's node id in the benchmark; Klamm's broker has the same id here."""
NOW_MS: Final = time.time_ns() // 1_000_000
UNKNOWN_ID: Final = uuid.UUID(int=99)
WAIT: Final = timedelta(seconds=10)
DAY_MS: Final = 86_400_000

IGNORED: Final = frozenset({"port", "cluster_id", "member_id", "leader", "producer_id", "documentation"})
"""Fields that each broker chooses freely; they are not compared."""
PRESENCE: Final = frozenset({"topic_id", "error_message", "batch_index_error_message", "client_host"})
"""Fields of which only the presence is compared."""
KNOWN: Final[Mapping[str, str]] = {
    "topics[0].topic_id: Kafka True, Klamm False": "Kafka gives a topic that is only validated an id",
    ".error_message: Kafka False, Klamm True": "words where Kafka has none",
    "find v": "Kafka's words for no error are NONE",
    "aborted_transactions: Kafka [], Klamm None": "no transactions: null or none",
    "[verify.payload]: Kafka 'nothing'": "Klamm's own",
    ".synonyms": "Kafka names the broker's key for a default, and none where that is null",
    "produce: cut off": "what is cut off on its way is worth a retry",
    "produce: magic 9": "a retry would not help",
    "idempotent 0 again: responses[0].partition_responses[0].log_append_time": "a retry of a batch with its own times",
    "log_start_offset: Kafka 0, Klamm -1": "told with named records alone",
    "transactional: responses": "transactions are not served",
    "groups: list v": "a group is gone with its last offset here",
    "groups[0].group_state: Kafka 'Empty', Klamm 'Dead'": "a group is gone with its last offset here",
    "groups: delete v0": "a group is gone with its last offset here",
    "fetch: beyond": "where the log begins and ends is told with the error, too",
    "fetch: -1": "where the log begins and ends is told with the error, too",
    "incremental: operation 9": "Kafka does not know its own error",
    "legacy: all brokers": "Kafka keeps min.insync.replicas for all brokers, which AlterConfigs would take away",
    "describe all brokers": "Kafka keeps min.insync.replicas for all brokers",
    "configs[min.insync.replicas].config_source": "Kafka keeps min.insync.replicas for all brokers",
    "configs[min.insync.replicas].synonyms": "Kafka keeps min.insync.replicas for all brokers",
    "configs[num.partitions].read_only": "changed while the broker runs here",
    "configs[file.delete.delay.ms]": "set in the benchmark's Kafka",
    "describe a broker: results[0].configs[log.retention.ms].value": "what is not set is null in Kafka",
    "forget: nowhere": "the group is gone with its last offset here",
    "forget: partition": "the group is gone with its last offset here",
    "_DELEGATION_TOKEN v": "on PLAINTEXT Kafka refuses the listener first (64), whether it has tokens or not (61)",
    "replica.alter.log.dirs.io.max.bytes.per.second: Kafka 'nothing'": "Kafka shows a throttle only while it is set",
    "values: offsets.topic.num.partitions": "12 here",
    "values: group.coordinator.rebalance.protocols": "classic alone here",
}
"""Explained differences: part of the printed line → why it differs."""
SORTED_BY: Final = ("group_id", "topic", "name", "partition_index")
"""Lists are compared by the first of these that their items have: the order is the broker's own choice."""


class Side:
    """One of the two brokers; `state` holds what a case keeps from one request to the next."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.wire = WireClient(bootstrap)
        self.state: dict[str, Any] = {}

    def call(self, api: ApiKey, version: int, **fields: Any) -> Any:
        return self.wire.call(api, version, **fields)

    def body(self, api: ApiKey, version: int, **fields: Any) -> str:
        """Returns the answer's bytes: kio reads no time before 1970, and Kafka's -1 is one."""
        self.wire.send(api, version, **fields)
        frame = self.wire.receive_frame()
        assert frame is not None
        return frame[read_response_header(frame, api, version)[1] :].hex()

    def ids(self) -> Mapping[str, uuid.UUID]:
        """Returns the ids of all topics by name."""
        found = metadata_of(self.wire, None, version=12).topics
        return {"nowhere": UNKNOWN_ID} | {topic.name: topic.topic_id for topic in found}

    def named(self, topic: str, version: int, by_id_from: int) -> dict[str, Any]:
        """Returns how a request names the topic: by its id from that version on."""
        return {"name": topic} if version < by_id_from else {"topic_id": self.ids().get(topic, UNKNOWN_ID)}


Case = Callable[[Side], Iterator[tuple[str, Any]]]
"""Yields (name of the request, answer)."""


def versions(api: ApiKey) -> range:
    low, high = SERVED[api]
    return range(low, high + 1)


def create(side: Side, name: str, partitions: int = 1, version: int = 7, **more: Any) -> Any:
    api = ApiKey.CREATE_TOPICS
    configs = more.pop("configs", {})
    validate_only = more.pop("validate_only", False)
    wait = more.pop("wait", False)
    fields = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1 if version < 4 else -1,
        "assignments": (),
        "configs": tuple(part(api, version, "CreatableTopicConfig", name=k, value=v) for k, v in configs.items()),
        **more,
    }
    topic = part(api, version, "CreatableTopic", **fields)
    answer = side.call(api, version, topics=(topic,), timeout=WAIT, validate_only=validate_only)
    if wait:
        led(side, name, partitions)
    return answer


def led(side: Side, name: str, partitions: int) -> None:
    """Waits until the broker leads every partition: Kafka answers CreateTopics before it does."""
    api, version = ApiKey.LIST_OFFSETS, 7
    rows = tuple(
        part(api, version, "ListOffsetsPartition", partition_index=n, timestamp=-1, current_leader_epoch=-1)
        for n in range(partitions)
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        topics = (part(api, version, "ListOffsetsTopic", name=name, partitions=rows),)
        answer = side.call(api, version, replica_id=-1, topics=topics, isolation_level=0)
        if all(p.error_code == 0 for p in answer.topics[0].partitions):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{side.name} does not lead {name}")


def create_topics(side: Side) -> Iterator[tuple[str, Any]]:
    for version in versions(ApiKey.CREATE_TOPICS):
        yield f"v{version}", create(side, f"made-{version}", version=version)
        yield f"v{version} twice", create(side, f"made-{version}", version=version)
    yield "validate", create(side, "unmade", validate_only=True)
    for what, name, more in (
        ("no name", "", {}),
        ("a dot", ".", {}),
        ("a slash", "a/b", {}),
        ("long", "a" * 250, {}),
        ("collides", "made.7", {}),
        ("no partitions", "p0", {"partitions": 0}),
        ("-2 partitions", "p2", {"partitions": -2}),
        ("factor 0", "f0", {"replication_factor": 0}),
        ("factor -2", "f2", {"replication_factor": -2}),
        ("factor 2", "f22", {"replication_factor": 2}),
        ("unknown config", "c1", {"configs": {"retention": "1"}}),
        ("wrong config", "c2", {"configs": {"retention.ms": "x"}}),
        ("null config", "c3", {"configs": {"retention.ms": None}}),
        ("exists and is wrong", "made-7", {"configs": {"retention.ms": "x"}}),
        ("default partitions", "dp", {"partitions": -1}),
    ):
        yield what, create(side, name, **more)
    api = ApiKey.CREATE_TOPICS
    for what, rows, more in (
        ("assigned", [(0, (1,)), (1, (1,))], {}),
        ("assigned, gap", [(0, (1,)), (2, (1,))], {}),
        ("assigned, twice", [(0, (1,)), (0, (1,))], {}),
        ("assigned, nobody", [(0, ())], {}),
        ("assigned, one twice", [(0, (1, 1))], {}),
        ("assigned, unknown", [(0, (7,))], {}),
        ("assigned, count", [(0, (1,))], {"partitions": 1}),
        ("assigned, factor", [(0, (1,))], {"replication_factor": 1}),
    ):
        given = tuple(part(api, 7, "CreatableReplicaAssignment", partition_index=p, broker_ids=b) for p, b in rows)
        yield what, create(side, what.replace(", ", "-"), **{"partitions": -1, "assignments": given, **more})
    topic = part(
        api, 7, "CreatableTopic", name="same", num_partitions=1, replication_factor=-1, assignments=(), configs=()
    )
    yield "same twice", side.call(api, 7, topics=(topic, topic), timeout=WAIT, validate_only=False)
    yield "none", side.call(api, 7, topics=(), timeout=WAIT, validate_only=False)


def create_partitions(side: Side) -> Iterator[tuple[str, Any]]:
    api = ApiKey.CREATE_PARTITIONS
    create(side, "grow", 2)

    def grow(version: int, name: str, count: int, given: Any = None, validate_only: bool = False) -> Any:
        rows = (
            None
            if given is None
            else tuple(part(api, version, "CreatePartitionsAssignment", broker_ids=b) for b in given)
        )
        topic = part(api, version, "CreatePartitionsTopic", name=name, count=count, assignments=rows)
        return side.call(api, version, topics=(topic,), timeout=WAIT, validate_only=validate_only)

    for version in versions(api):
        yield f"v{version}", grow(version, "grow", 3 + version)
    for what, args in {
        "same": ("grow", 6),
        "fewer": ("grow", 1),
        "none": ("grow", 0),
        "unknown": ("nowhere", 3),
        "bad name": ("a/b", 3),
        "assigned": ("grow", 7, [(1,)]),
        "assigned, too few": ("grow", 9, [(1,)]),
        "assigned, none": ("grow", 9, []),
        "assigned, nobody": ("grow", 8, [()]),
        "assigned, unknown": ("grow", 8, [(7,)]),
        "assigned, one twice": ("grow", 8, [(1, 1)]),
        "validate": ("grow", 8, None, True),
    }.items():
        yield what, grow(3, *args)
    topic = part(api, 3, "CreatePartitionsTopic", name="grow", count=20, assignments=None)
    yield "same twice", side.call(api, 3, topics=(topic, topic), timeout=WAIT, validate_only=False)


def delete_topics(side: Side) -> Iterator[tuple[str, Any]]:
    api = ApiKey.DELETE_TOPICS
    for version in versions(api):
        if version < 6:
            create(side, "doomed")
            yield f"v{version}", side.call(api, version, topic_names=("doomed", "nowhere"), timeout=WAIT)
    yield "same twice", side.call(api, 5, topic_names=("nowhere", "nowhere"), timeout=WAIT)
    yield "bad name", side.call(api, 5, topic_names=("a/b",), timeout=WAIT)
    yield "none", side.call(api, 5, topic_names=(), timeout=WAIT)

    def delete(*topics: tuple[str | None, uuid.UUID | None]) -> Any:
        asked = tuple(part(api, 6, "DeleteTopicState", name=name, topic_id=topic_id) for name, topic_id in topics)
        return side.call(api, 6, topics=asked, timeout=WAIT)

    first = create(side, "doomed").topics[0].topic_id
    yield "v6 id", delete((None, first))
    yield "v6 id gone", delete((None, first))
    yield "v6 neither", delete((None, None))
    yield "v6 both", delete(("x", first))
    yield "v6 unknown name", delete(("nowhere", None))
    create(side, "doomed")
    yield "v6 name", delete(("doomed", None))


def metadata(side: Side) -> Iterator[tuple[str, Any]]:
    api = ApiKey.METADATA
    found = create(side, "seen", 2).topics[0].topic_id
    for version in versions(api):

        def ask(*names: Any, create: bool = False, asked: bool = False, version: int = version) -> Any:
            rows = tuple(
                part(api, version, "MetadataRequestTopic", **{"name": n, "topic_id": None} if isinstance(n, str) else n)
                for n in names
            )
            return side.call(
                api, version, topics=rows, allow_auto_topic_creation=create,
                include_cluster_authorized_operations=asked, include_topic_authorized_operations=asked,
            )  # fmt: skip

        yield f"v{version}", ask("seen", "nowhere", "a/b", asked=True)
        yield f"v{version} same twice", ask("seen", "seen")
        if version:
            yield f"v{version} none", ask()
        if version >= 12:
            yield f"v{version} id", ask({"name": None, "topic_id": found}, asked=True)
            yield f"v{version} unknown id", ask({"name": None, "topic_id": uuid.uuid4()}, asked=True)
    yield "create", ask("not made on demand", create=True)


def configs(side: Side) -> Iterator[tuple[str, Any]]:
    create(side, "set", configs={"retention.ms": "1000"})
    api = ApiKey.DESCRIBE_CONFIGS

    def describe(kind: int, name: str, keys: Any, version: int = 4, **more: Any) -> Any:
        asked = part(
            api, version, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys
        )
        answer = side.call(api, version, resources=(asked,), **more)
        rows = (dataclasses.replace(r, configs=tuple(sorted(r.configs, key=lambda c: c.name))) for r in answer.results)
        return dataclasses.replace(answer, results=tuple(rows))

    for version in versions(api):
        yield f"describe v{version}", describe(2, "set", ("retention.ms", "segment.ms", "none"), version)
    yield "describe all", describe(2, "set", None, include_synonyms=True)
    yield "describe no names", describe(2, "set", ())
    yield "describe nowhere", describe(2, "nowhere", None)
    yield "describe bad name", describe(2, "a/b", None)
    yield "describe nothing", describe(2, "", None)
    yield "describe a broker", describe(4, "1", ("num.partitions", "log.retention.ms"))
    yield "describe another broker", describe(4, "7", None)
    yield "describe no broker", describe(4, "x", None)
    yield "describe all brokers", describe(4, "", ())
    yield "describe a logger", describe(8, "7", None)
    yield "describe a kind", describe(3, "x", None)

    def incremental(
        kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, only: bool = False
    ) -> Any:
        change = ApiKey.INCREMENTAL_ALTER_CONFIGS
        rows = tuple(
            part(change, version, "AlterableConfig", name=k, config_operation=o, value=v) for k, o, v in changes
        )
        resource = part(change, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=rows)
        return side.call(change, version, resources=(resource,), validate_only=only)

    def legacy(kind: int, name: str, version: int = 2, only: bool = False, **keys: str | None) -> Any:
        change = ApiKey.ALTER_CONFIGS
        rows = tuple(
            part(change, version, "AlterableConfig", name=k.replace("_", "."), value=v) for k, v in keys.items()
        )
        resource = part(change, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=rows)
        return side.call(change, version, resources=(resource,), validate_only=only)

    def own() -> Any:
        return sorted((c.name, c.value) for c in describe(2, "set", None).results[0].configs if c.config_source == 1)

    for what, args in {
        "set": (2, "set", ("retention.ms", 0, "5")),
        "delete": (2, "set", ("retention.ms", 1, None)),
        "delete what is not set": (2, "set", ("segment.ms", 1, None)),
        "delete unknown": (2, "set", ("segment.mss", 1, None)),
        "append": (2, "set", ("cleanup.policy", 2, "compact")),
        "append again": (2, "set", ("cleanup.policy", 2, "compact")),
        "subtract": (2, "set", ("cleanup.policy", 3, "delete")),
        "subtract what is not there": (2, "set", ("cleanup.policy", 3, "delete")),
        "append to a number": (2, "set", ("retention.ms", 2, "1")),
        "operation 9": (2, "set", ("retention.ms", 9, "1")),
        "null": (2, "set", ("retention.ms", 0, None)),
        "unknown": (2, "set", ("retention", 0, "1")),
        "wrong": (2, "set", ("retention.ms", 0, "x")),
        "twice": (2, "set", ("retention.ms", 0, "1"), ("retention.ms", 0, "2")),
        "nothing": (2, "set"),
        "nowhere": (2, "nowhere", ("retention.ms", 0, "1")),
        "no topic": (2, "", ("retention.ms", 0, "1")),
        "bad name": (2, "a/b", ("retention.ms", 0, "1")),
        "another broker": (4, "7", ("log.retention.ms", 0, "1")),
        "all brokers": (4, "", ("log.retention.ms", 0, "9000000")),
        "all brokers, undone": (4, "", ("log.retention.ms", 1, None)),
        "a static key": (4, "", ("log.dirs", 0, "/x")),
        "kind 3": (3, "x", ("a", 0, "b")),
        "throttled": (2, "set", ("leader.replication.throttled.replicas", 0, "0:1"), ("preallocate", 0, "true")),
        "throttled, more": (2, "set", ("leader.replication.throttled.replicas", 2, "1:1")),
        "throttled, less": (2, "set", ("leader.replication.throttled.replicas", 3, "0:1")),
    }.items():
        yield f"incremental: {what}", incremental(*args)
        yield f"incremental: {what}, then", own()
    for version in versions(ApiKey.ALTER_CONFIGS):
        yield f"legacy v{version}", legacy(2, "set", version, retention_ms=str(version))
        yield f"legacy v{version}, then", own()
    for what, (kind, name), keys in (
        ("validate", (2, "set"), {"retention_ms": "77"}),
        ("null", (2, "set"), {"retention_ms": None}),
        ("unknown", (2, "set"), {"retention": "1"}),
        ("wrong", (2, "set"), {"retention_ms": "x"}),
        ("nowhere", (2, "nowhere"), {"retention_ms": "1"}),
        ("a logger", (8, "1"), {"root": "INFO"}),
        ("another broker", (4, "7"), {"log_retention_ms": "1"}),
        ("all brokers", (4, ""), {"log_retention_ms": "900000"}),
        ("all brokers, undone", (4, ""), {}),
        ("nothing", (2, "set"), {}),
    ):
        yield f"legacy: {what}", legacy(kind, name, 2, what == "validate", **keys)
        yield f"legacy: {what}, then", own()


def spoil(batch: bytes, position: int, value: int) -> bytes:
    changed = bytearray(batch)
    changed[position] = value
    return bytes(changed)


def produce(side: Side) -> Iterator[tuple[str, Any]]:
    create(side, "written", 2, wait=True)
    create(side, "keyed", configs={"cleanup.policy": "compact"}, wait=True)
    create(side, "stamped", configs={"message.timestamp.type": "LogAppendTime"}, wait=True)
    create(side, "small", configs={"max.message.bytes": "200"}, wait=True)
    api = ApiKey.PRODUCE

    def send(
        topic: str, records: bytes | None, partition: int = 0, acks: int = -1, version: int = 9, **more: Any
    ) -> Any:
        fields = produce_fields({(topic, partition): records}, acks, version, topic_ids=side.ids(), **more)
        return side.call(api, version, **fields)

    def made(count: int = 2, key: bytes | None = b"k", at: int = NOW_MS, **more: Any) -> bytes:
        return encode_batch([(at, key, b"v%d" % i, ()) for i in range(count)], **more)

    for version in versions(api):
        yield f"v{version}", send("written", made(), version=version)
        yield f"v{version} nowhere", send("nowhere", made(), version=version)
    good = made()
    for what, args in {
        "partition": ("written", made(), 7),
        "partition -1": ("written", made(), -1),
        "acks 2": ("written", made(), 0, 2),
        "cut off": ("written", good[:-1]),
        "half a header": ("written", good[:30]),
        "crc": ("written", spoil(good, 20, good[20] ^ 1)),
        "magic 9": ("written", spoil(good, 16, 9)),
        "magic 1": ("written", spoil(good, 16, 1)),
        "two batches": ("written", good + good),
        "no key": ("keyed", made(3, None)),
        "no key, gzip": ("keyed", made(3, None, codec=codec_table().by_name("gzip"))),
        "one without a key": ("keyed", encode_batch([(NOW_MS, None if i == 1 else b"k", b"v", ()) for i in range(3)])),
        "tomorrow": ("written", made(2, at=NOW_MS + DAY_MS)),
        "one of tomorrow": ("written", encode_batch([(NOW_MS + DAY_MS * (i == 1), b"k", b"v", ()) for i in range(3)])),
        "no timestamp": ("written", made(2, at=-1)),
        "append time": ("stamped", made()),
        "too large": ("small", made(100)),
        "bad name": ("a/b", made()),
    }.items():
        yield what, send(*args)
    for version in range(9, SERVED[api][1] + 1):
        for what, args in {
            "partition 7": ("written", made(), 7),
            "no key": ("keyed", made(3, None)),
            "too large": ("small", made(100)),
            "acks 2": ("written", made(), 0, 2),
        }.items():
            yield f"v{version} {what}", send(*args, version=version)
        yield f"v{version} transactional", send("written", made(), version=version, transactional_id="t")
    yield "transactional", send("written", made(), transactional_id="t")
    producer = None
    while producer is None or producer.error_code == 14:  # Kafka fetches a block of ids first
        producer = side.call(
            ApiKey.INIT_PRODUCER_ID, 4,
            transactional_id=None, transaction_timeout=WAIT, producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
    yield "producer id", producer
    ids = {"producer_id": producer.producer_id, "producer_epoch": 0}
    yield "idempotent 0", send("written", made(base_sequence=0, **ids), 1)
    yield "idempotent 0 again", send("written", made(base_sequence=0, **ids), 1)
    yield "idempotent gap", send("written", made(base_sequence=9, **ids), 1)
    yield "idempotent 2", send("written", made(base_sequence=2, **ids), 1)
    yield "idempotent without sequence", send("written", made(base_sequence=-1, **ids), 1)
    later = {**ids, "producer_epoch": 1}
    yield "idempotent next epoch, 5", send("written", made(base_sequence=5, **later), 1)
    yield "idempotent next epoch", send("written", made(base_sequence=0, **later), 1)
    yield "idempotent old epoch", send("written", made(base_sequence=4, **ids), 1)
    unknown = {"producer_id": 987_654, "producer_epoch": 0}
    yield "unknown producer, sequence 5", send("written", made(base_sequence=5, **unknown), 1)
    for what, fields in {
        "empty id": {"transactional_id": ""},
        "an id": {"transactional_id": "t"},
        "an epoch without an id": {"producer_id": -1, "producer_epoch": 3},
        "an id without an epoch": {"producer_id": 3, "producer_epoch": -1},
    }.items():
        if what != "an id":
            values = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1, **fields}
            yield f"init: {what}", side.call(ApiKey.INIT_PRODUCER_ID, 4, transaction_timeout=WAIT, **values)


def fetch(side: Side) -> Iterator[tuple[str, Any]]:
    create(side, "read", 2, wait=True)
    for _ in range(3):
        batch = encode_batch([(NOW_MS, b"k", b"v", ())])
        side.call(ApiKey.PRODUCE, 9, **produce_fields({("read", 0): batch}))
    api = ApiKey.FETCH

    def get(wanted: Mapping[tuple[str, int], int], version: int = 12, **more: Any) -> Any:
        answer = side.call(api, version, **fetch_fields(wanted, version=version, topic_ids=side.ids(), **more))
        return dataclasses.replace(answer, session_id=0) if version >= 7 else answer

    for version in versions(api):
        for topic, number in (("read", 0), ("nowhere", 0), ("read", 9)):
            yield f"v{version} {topic} {number}", get({(topic, number): 0}, version)
        yield f"v{version} committed", get({("read", 0): 1}, version, isolation_level=1)
    for what, wanted, more in (
        ("end", {("read", 0): 3}, {}),
        ("beyond", {("read", 0): 4}, {}),
        ("-1", {("read", 0): -1}, {}),
        ("nothing", {}, {}),
        ("nothing, waiting", {}, {"max_wait_ms": 500, "min_bytes": 1_000_000}),
        ("min bytes", {("read", 0): 3}, {"max_wait_ms": 50, "min_bytes": 1}),
        ("0 bytes", {("read", 0): 0}, {"max_bytes": 0}),
        ("0 bytes of a partition", {("read", 0): 0}, {"partition_max_bytes": 0}),
        ("epoch 0", {("read", 0): 0}, {"leader_epoch": 0}),
        ("epoch 5", {("read", 0): 0}, {"leader_epoch": 5}),
        ("session 7, epoch 0", {("read", 0): 0}, {"session_id": 7, "session_epoch": 0}),
        ("session 7, epoch -1", {("read", 0): 0}, {"session_id": 7, "session_epoch": -1}),
        ("session 7, epoch 4", {("read", 0): 0}, {"session_id": 7, "session_epoch": 4}),
        ("session 0, epoch 4", {("read", 0): 0}, {"session_id": 0, "session_epoch": 4}),
        ("two", {("read", 0): 0, ("read", 1): 0}, {}),
    ):
        yield what, get(wanted, **{"session_epoch": -1, **more})


def sessions(side: Side) -> Iterator[tuple[str, Any]]:
    """Fetch sessions (KIP-227): one continues by its id and the next epoch."""
    create(side, "held", 3, wait=True)
    create(side, "held-too", 1, wait=True)

    def write(topic: str, partition: int) -> None:
        batch = encode_batch([(NOW_MS, b"k", b"v", ())])
        side.call(ApiKey.PRODUCE, 9, **produce_fields({(topic, partition): batch}))

    for version in range(7, SERVED[ApiKey.FETCH][1] + 1):
        known = (0, 0)

        def get(
            wanted: Mapping[tuple[str, int], int], dropped: Sequence[int] = (), version: int = version, **more: Any
        ) -> Any:
            nonlocal known
            session_id, epoch = more.pop("session", known)
            ids = side.ids()
            gone = part(ApiKey.FETCH, version, "ForgottenTopic", topic="held", topic_id=ids["held"], partitions=dropped)
            fields = fetch_fields(wanted, version=version, topic_ids=ids, **more)
            fields |= {
                "session_id": session_id,
                "session_epoch": epoch,
                "forgotten_topics_data": (gone,) * bool(dropped),
            }
            answer = side.call(ApiKey.FETCH, version, **fields)
            if answer.error_code == 0:
                known = answer.session_id, epoch + 1
            return dataclasses.replace(answer, session_id=int(answer.session_id > 0))

        for topic, number in (("held", 0), ("held-too", 0)):
            write(topic, number)
        yield f"v{version} opened", get({("held", n): 0 for n in range(3)} | {("held-too", 0): 0})
        yield f"v{version} the same again", get({})
        yield f"v{version} read", get({("held", 0): 0, ("held", 1): 0})
        ends = side.call(
            ApiKey.FETCH, 12, **fetch_fields({("held", 0): 0, ("held-too", 0): 0}, version=12, session_epoch=-1)
        )
        at, too = (topic.partitions[0].high_watermark for topic in ends.responses)
        yield f"v{version} at the end", get({("held", 0): at, ("held-too", 0): too})
        yield f"v{version} nothing new", get({})
        write("held", 0)
        yield f"v{version} one is new", get({})
        yield f"v{version} it is repeated", get({})
        yield f"v{version} bounds", get({("held", 0): at + 1})
        yield f"v{version} forgotten", get({}, (1, 2))
        yield f"v{version} unknown", get({("nowhere", 0): 0, ("held", 9): 0} if version < 13 else {("nowhere", 0): 0})
        yield f"v{version} still unknown", get({})
        yield f"v{version} another id", get({}, session=(known[0] + 1, known[1]))
        yield f"v{version} another epoch", get({}, session=(known[0], known[1] + 3))
        yield f"v{version} the epoch before", get({}, session=(known[0], known[1] - 1))
        other = 12 if version >= 13 else 13
        yield f"v{version} then v{other}", get({("held", 0): at + 1}, version=other)
        yield f"v{version} goes on", get({("held", 0): at + 1})
        yield f"v{version} closed", get({("held", 0): at + 1}, session=(known[0], -1))
        yield f"v{version} is closed", get({}, session=(known[0] or 7, 5))
        known = (0, 0)
        yield f"v{version} opened again", get({("held", 2): 0})
        yield f"v{version} replaced", get({("held", 2): 0}, session=(known[0], 0))
        yield f"v{version} emptied", get({}, (2,))


def offsets_of_partitions(side: Side) -> Iterator[tuple[str, Any]]:
    create(side, "listed", 2, wait=True)
    for at in (5, 3):
        batch = encode_batch([(NOW_MS - at * 1000, b"k", b"v", ())])
        side.call(ApiKey.PRODUCE, 9, **produce_fields({("listed", 0): batch}))
    api = ApiKey.LIST_OFFSETS

    def ask(stamp: int, version: int = 7, topic: str = "listed", partition: int = 0, epoch: int = -1) -> Any:
        row = part(
            api, version, "ListOffsetsPartition", partition_index=partition, timestamp=stamp, current_leader_epoch=epoch
        )
        rows = (part(api, version, "ListOffsetsTopic", name=topic, partitions=(row,)),)
        return side.call(api, version, replica_id=-1, topics=rows, isolation_level=0, timeout=WAIT)

    for version in versions(api):
        for stamp in (-1, -2, -3, -4, -5, -6, -7, NOW_MS - 4000, 0, NOW_MS):
            yield f"v{version} {NOW_MS - stamp if stamp > 0 else stamp}", ask(stamp, version)
    for what, args in {
        "-3": (-3,),
        "-3 of nothing": (-3, 7, "listed", 1),
        "-4 of nothing": (-4, 11, "listed", 1),
        "-9": (-9,),
        "nowhere": (-1, 7, "nowhere"),
        "partition": (-1, 7, "listed", 7),
        "epoch 5": (-1, 7, "listed", 0, 5),
        "epoch 0": (-1, 7, "listed", 0, 0),
    }.items():
        yield what, ask(*args)
    api = ApiKey.OFFSET_FOR_LEADER_EPOCH
    for version in versions(api):
        for topic, number, epoch, current in (
            ("listed", 0, 0, -1), ("listed", 0, 5, -1), ("listed", 0, -1, -1), ("nowhere", 0, 0, -1),
            ("listed", 7, 0, -1), ("listed", 0, 0, 0), ("listed", 0, 0, 5),
        ):  # fmt: skip
            row = part(
                api, version, "OffsetForLeaderPartition",
                partition=number, leader_epoch=epoch, current_leader_epoch=current,
            )  # fmt: skip
            rows = (part(api, version, "OffsetForLeaderTopic", topic=topic, partitions=(row,)),)
            yield (
                f"epoch v{version} {topic} {number} {epoch} {current}",
                side.call(api, version, replica_id=-1, topics=rows),
            )
    api = ApiKey.DELETE_RECORDS
    for version in versions(api):
        for topic, number, offset in (
            ("listed", 0, 1), ("listed", 0, 0), ("listed", 0, 9), ("listed", 0, -1), ("listed", 0, -2),
            ("nowhere", 0, 0), ("listed", 7, 0), ("keyed", 0, 0),
        ):  # fmt: skip
            row = part(api, version, "DeleteRecordsPartition", partition_index=number, offset=offset)
            rows = (part(api, version, "DeleteRecordsTopic", name=topic, partitions=(row,)),)
            yield f"delete v{version} {topic} {number} {offset}", side.call(api, version, topics=rows, timeout=WAIT)


def cluster(side: Side) -> Iterator[tuple[str, Any]]:
    for version in versions(ApiKey.DESCRIBE_CLUSTER):
        for asked in (False, True):
            yield (
                f"v{version} {asked}",
                side.call(
                    ApiKey.DESCRIBE_CLUSTER,
                    version,
                    include_cluster_authorized_operations=asked,
                    endpoint_type=1,
                    include_fenced_brokers=True,
                ),
            )
    yield (
        "controllers",
        side.call(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=2),
    )
    yield (
        "endpoint 9",
        side.call(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=9),
    )
    for version in range(3, SERVED[ApiKey.API_VERSIONS][1] + 1):
        answer = side.call(ApiKey.API_VERSIONS, version, client_software_name="x y", client_software_version="1")
        yield f"bad software v{version}", answer.error_code
    here = side.call(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False).cluster_id
    for what, (cluster_id, node_id) in {
        "neither": (None, -1),
        "this one": (here, BROKER_ID),
        "another node": (here, 7),
        "another cluster": ("elsewhere", BROKER_ID),
        "another node alone": (None, 7),
        "another cluster alone": ("elsewhere", -1),
        "this cluster alone": (here, -1),
        "no cluster": ("", BROKER_ID),
        "another node, no cluster": ("", 7),
        "node -5": (here, -5),
    }.items():
        answer = side.call(
            ApiKey.API_VERSIONS, 5, client_software_name="x", client_software_version="1", cluster_id=cluster_id,
            node_id=node_id,
        )  # fmt: skip
        yield f"means {what}", (answer.error_code, [k.api_key for k in answer.api_keys if k.api_key == 18])


def coordinator(side: Side, group: str) -> None:
    """Waits until the broker coordinates the group: Kafka first creates its offsets topic."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = side.call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,)).coordinators[0]
        heard = side.call(ApiKey.HEARTBEAT, 4, group_id=group, generation_id=1, member_id="nobody")
        if found.error_code == 0 and heard.error_code not in (14, 15, 16):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{side.name} does not coordinate {group}")


def groups(side: Side) -> Iterator[tuple[str, Any]]:
    coordinator(side, "g")
    create(side, "grouped", 2, wait=True)
    for version in versions(ApiKey.FIND_COORDINATOR):
        for key in ("g", ""):
            fields = {"key": key, "key_type": 0} if version < 4 else {"key_type": 0, "coordinator_keys": (key,)}
            yield f"find v{version} {key!r}", side.call(ApiKey.FIND_COORDINATOR, version, **fields)
    yield "find share, v5", side.call(ApiKey.FIND_COORDINATOR, 5, key_type=2, coordinator_keys=("g",))
    yield "find kind 9", side.call(ApiKey.FIND_COORDINATOR, 4, key_type=9, coordinator_keys=("g",))
    api = ApiKey.JOIN_GROUP

    def join(version: int = 7, **more: Any) -> Any:
        protocols = tuple(
            part(api, version, "JoinGroupRequestProtocol", name=n, metadata=b"m")
            for n in more.pop("protocols", ("range",))
        )
        fields = {
            "group_id": "g", "session_timeout": WAIT, "rebalance_timeout": WAIT, "member_id": "",
            "group_instance_id": None, "protocol_type": "consumer", "protocols": protocols, **more,
        }  # fmt: skip
        return side.call(api, version, **fields)

    for what, more in {
        "no group": {"group_id": ""},
        "short session": {"session_timeout": timedelta(milliseconds=1)},
        "long session": {"session_timeout": timedelta(days=9)},
        "unknown member": {"member_id": "who"},
        "no protocols": {"protocols": ()},
        "no type": {"protocol_type": ""},
    }.items():
        yield f"join: {what}", join(**more)
    needed = join()
    yield "join: member id required", needed
    member = join(member_id=needed.member_id)
    yield "join", dataclasses.replace(member, members=len(member.members))
    yield "join: other type", join(5, protocol_type="connect", group_instance_id="i")
    yield "join: other protocol", join(5, protocols=("other",), group_instance_id="i")
    sync = ApiKey.SYNC_GROUP

    def synced(version: int = 5, **more: Any) -> Any:
        row = part(sync, version, "SyncGroupRequestAssignment", member_id=member.member_id, assignment=b"mine")
        fields = {
            "group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id,
            "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range", "assignments": (row,),
            **more,
        }  # fmt: skip
        return side.call(sync, version, **fields)

    for what, more in {
        "no group": {"group_id": ""},
        "unknown group": {"group_id": "nobody's"},
        "unknown member": {"member_id": "who"},
        "generation": {"generation_id": 9},
        "type": {"protocol_type": "connect"},
        "protocol": {"protocol_name": "other"},
        "right": {},
        "again": {},
    }.items():
        yield f"sync: {what}", synced(**more)
    for what, more in {
        "right": {},
        "no group": {"group_id": ""},
        "unknown group": {"group_id": "nobody's"},
        "unknown member": {"member_id": "who"},
        "generation": {"generation_id": 9},
    }.items():
        fields = {"group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id, **more}
        yield f"heartbeat: {what}", side.call(ApiKey.HEARTBEAT, 4, group_instance_id=None, **fields)
    yield from commits(side, member)
    for version in versions(ApiKey.DESCRIBE_GROUPS):
        answer = side.call(
            ApiKey.DESCRIBE_GROUPS, version, groups=("g", "nobody's", ""), include_authorized_operations=True
        )
        yield f"describe v{version}", answer
    for version in versions(ApiKey.LIST_GROUPS):
        answer = side.call(ApiKey.LIST_GROUPS, version, states_filter=(), types_filter=())
        yield f"list v{version}", sorted(answer.groups, key=lambda g: g.group_id)
    yield "list stable", side.call(ApiKey.LIST_GROUPS, 4, states_filter=("Stable",))
    for types in (("classic",), ("Classic", "share"), ("consumer",), ("nonsense",), ("",)):
        answer = side.call(ApiKey.LIST_GROUPS, 5, states_filter=("Stable",), types_filter=types)
        yield f"list types {types}", answer
    yield "list nonsense", side.call(ApiKey.LIST_GROUPS, 4, states_filter=("Nonsense",))
    for version in versions(ApiKey.DELETE_GROUPS):
        yield f"delete v{version}", side.call(ApiKey.DELETE_GROUPS, version, groups_names=("g", "nobody's", ""))
    leave = ApiKey.LEAVE_GROUP
    rows = tuple(
        part(leave, 4, "MemberIdentity", member_id=name, group_instance_id=None) for name in ("who", member.member_id)
    )
    yield "leave: no group", side.call(leave, 4, group_id="", members=rows)
    yield "leave: unknown group", side.call(leave, 4, group_id="nobody's", members=rows)
    yield "leave", side.call(leave, 4, group_id="g", members=rows)
    yield (
        "leave v5",
        side.call(leave, 5, group_id="g", members=(part(leave, 5, "MemberIdentity", member_id="who", reason="why"),)),
    )
    yield "leave v0", side.call(leave, 0, group_id="g", member_id="who")
    yield (
        "describe empty, v6",
        side.call(ApiKey.DESCRIBE_GROUPS, 6, groups=("g", "nobody's", ""), include_authorized_operations=True),
    )
    yield "describe empty", side.call(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=True)
    yield "delete empty", side.call(ApiKey.DELETE_GROUPS, 2, groups_names=("g", "g"))
    yield "describe deleted", side.call(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=True)


def commits(side: Side, member: Any) -> Iterator[tuple[str, Any]]:
    api = ApiKey.OFFSET_COMMIT

    def commit(
        version: int = 8, topic: str = "grouped", number: int = 0, offset: int = 5, text: str | None = "m", **more: Any
    ) -> Any:
        row = part(
            api, version, "OffsetCommitRequestPartition", partition_index=number, committed_offset=offset,
            committed_leader_epoch=0, committed_metadata=text,
        )  # fmt: skip
        named = side.named(topic, version, 10)
        rows = (part(api, version, "OffsetCommitRequestTopic", **named, partitions=(row,)),)
        fields = {
            "group_id": "g", "generation_id_or_member_epoch": member.generation_id, "member_id": member.member_id,
            "group_instance_id": None, "topics": rows, **more,
        }  # fmt: skip
        return side.call(api, version, **fields)

    for version in versions(api):
        yield f"commit v{version}", commit(version)
    for what, more in {
        "-1": {"offset": -1},
        "-2": {"offset": -2},
        "null text": {"text": None},
        "long text": {"text": "m" * 5000},
        "nowhere": {"topic": "nowhere"},
        "partition": {"number": 9},
        "bad name": {"topic": "a/b"},
        "generation": {"generation_id_or_member_epoch": 9},
        "unknown member": {"member_id": "who"},
        "no member": {"member_id": "", "generation_id_or_member_epoch": -1},
        "unknown group": {"group_id": "other"},
        "empty group": {"group_id": "", "member_id": "", "generation_id_or_member_epoch": -1},
        "simple group": {"group_id": "simple", "member_id": "", "generation_id_or_member_epoch": -1},
        "nothing": {"topics": ()},
    }.items():
        yield f"commit: {what}", commit(**more)
    api = ApiKey.OFFSET_FETCH
    for version in versions(api):
        for group in ("g", "simple", "nobody's", ""):
            for name, numbers in (("grouped", (0, 1, 9)), ("nowhere", (0,))):
                if version < 8:
                    rows: Any = (part(api, version, "OffsetFetchRequestTopic", name=name, partition_indexes=numbers),)
                    answer = side.call(api, version, group_id=group, topics=rows, require_stable=False)
                else:
                    named = side.named(name, version, 10)
                    rows = (part(api, version, "OffsetFetchRequestTopics", **named, partition_indexes=numbers),)
                    one = part(api, version, "OffsetFetchRequestGroup", group_id=group, topics=rows)
                    answer = side.call(api, version, groups=(one,), require_stable=False)
                yield f"fetch v{version} {group!r} {name}", answer
            if version >= 8:
                one = part(api, version, "OffsetFetchRequestGroup", group_id=group, topics=None)
                yield f"fetch v{version} {group!r} all", side.call(api, version, groups=(one,), require_stable=True)
            elif version >= 2:
                yield (
                    f"fetch v{version} {group!r} all",
                    side.call(api, version, group_id=group, topics=None, require_stable=False),
                )
    api = ApiKey.OFFSET_DELETE
    for what, (group, name, number) in {
        "live": ("g", "grouped", 0),
        "simple": ("simple", "grouped", 0),
        "nobody's": ("nobody's", "grouped", 0),
        "empty": ("", "grouped", 0),
        "nowhere": ("simple", "nowhere", 0),
        "partition": ("simple", "grouped", 9),
    }.items():
        row = part(api, 0, "OffsetDeleteRequestPartition", partition_index=number)
        rows = (part(api, 0, "OffsetDeleteRequestTopic", name=name, partitions=(row,)),)
        yield f"forget: {what}", side.call(api, 0, group_id=group, topics=rows)


def administration(side: Side) -> Iterator[tuple[str, Any]]:
    """What tools of Kafka ask for and neither broker has here: ACLs, quotas, tokens, other log directories."""
    create(side, "listed-configs")
    for version in versions(ApiKey.DESCRIBE_ACLS):
        yield f"describe acls v{version}", side.call(ApiKey.DESCRIBE_ACLS, version, **ACL_FILTER)
    api = ApiKey.CREATE_ACLS
    for version in versions(api):
        row = part(
            api, version, "AclCreation", resource_type=2, resource_name="t", resource_pattern_type=3,
            principal="User:a", host="*", operation=3, permission_type=3,
        )  # fmt: skip
        yield f"create acls v{version}", side.call(api, version, creations=(row, row))
    api = ApiKey.DELETE_ACLS
    for version in versions(api):
        row = part(api, version, "DeleteAclsFilter", **ACL_FILTER)
        yield f"delete acls v{version}", side.call(api, version, filters=(row, row))
    for api, fields in TOKENS.items():
        for version in versions(api):
            yield f"{api.name} v{version}", side.body(api, version, **fields)
    api = ApiKey.DESCRIBE_CLIENT_QUOTAS
    for version in versions(api):
        row = part(api, version, "ComponentData", entity_type="user", match_type=2, match=None)
        yield f"quotas v{version}", side.call(api, version, components=(row,), strict=False)
        yield f"all quotas v{version}", side.call(api, version, components=(), strict=False)
    api = ApiKey.LIST_CONFIG_RESOURCES
    yield "resources v0", side.call(api, 0)
    for kinds in ((2,), (4,), (8,), (16,), (32,), (4, 8, 16), (3,), (0,)):
        found = side.call(api, 1, resource_types=kinds)
        rows = [r for r in found.config_resources if r.resource_type != 2 or r.resource_name == "listed-configs"]
        rows.sort(key=lambda r: int(r.resource_type))
        yield f"resources v1 {kinds}", dataclasses.replace(found, config_resources=tuple(rows))
    found = side.call(api, 1, resource_types=())
    yield "resources v1", sorted({r.resource_type for r in found.config_resources})
    (result,) = side.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results
    api = ApiKey.ALTER_REPLICA_LOG_DIRS
    for version in versions(api):
        for path in ("/nowhere", result.log_dir):
            topics = tuple(
                part(api, version, "AlterReplicaLogDirTopic", name=name, partitions=(0, 7))
                for name in ("listed-configs", "nowhere")
            )
            row = part(api, version, "AlterReplicaLogDir", path=path, topics=topics)
            what = "own" if path == result.log_dir else "another"
            yield f"move to {what} directory v{version}", side.call(api, version, dirs=(row,))


ACL_FILTER: Final = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
TOKENS: Final[Mapping[ApiKey, Mapping[str, Any]]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: {
        "renewers": (), "max_lifetime": WAIT, "owner_principal_type": None, "owner_principal_name": None,
    },
    ApiKey.RENEW_DELEGATION_TOKEN: {"hmac": b"h", "renew_period": WAIT},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"hmac": b"h", "expiry_time_period": WAIT},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"owners": None},
}  # fmt: skip


def broker_keys(side: Side) -> Iterator[tuple[str, Any]]:
    """The keys of a broker that have no effect in Klamm, and what changing one answers."""
    api = ApiKey.DESCRIBE_CONFIGS
    asked = part(api, 4, "DescribeConfigsResource", resource_type=4, resource_name="1", configuration_keys=None)
    (result,) = side.call(api, 4, resources=(asked,), include_synonyms=False).results
    names = {name for name, key in BROKER_KEYS.items() if name not in DEFINITIONS and not key.internal}
    shown = {c.name: c for c in result.configs if c.name in names}
    yield "types", {name: f"{c.config_type} {c.is_sensitive} {c.read_only}" for name, c in shown.items()}
    yield "values", {name: c.value for name, c in shown.items() if name not in SET_IN_KAFKA}
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    moves, kerberos = "replica.alter.log.dirs.io.max.bytes.per.second", "sasl.kerberos.min.time.before.relogin"
    for broker, name, operation, value in (
        ("1", moves, 1, None), ("", moves, 1, None), ("1", moves, 0, "1000"), ("1", moves, 1, None),
        ("1", kerberos, 0, "70000"), ("1", kerberos, 1, None), ("", kerberos, 0, "70000"), ("1", kerberos, 0, "x"),
        ("1", "background.threads", 0, "3"), ("1", "background.threads", 1, None),
        ("1", "num.replica.alter.log.dirs.threads", 0, "3"), ("1", "num.replica.alter.log.dirs.threads", 1, None),
        ("1", "log.dirs", 1, None), ("1", "no.such.key", 1, None),
    ):  # fmt: skip
        change = part(api, 1, "AlterableConfig", name=name, config_operation=operation, value=value)
        row = part(api, 1, "AlterConfigsResource", resource_type=4, resource_name=broker, configs=(change,))
        yield f"{broker!r} {name} {operation} {value}", side.call(api, 1, resources=(row,), validate_only=False)


SET_IN_KAFKA: Final = frozenset(
    {
        "background.threads", "controller.listener.names", "controller.quorum.bootstrap.servers",
        "controller.quorum.voters", "log.dir", "log.initial.task.delay.ms", "num.network.threads",
        "offsets.topic.replication.factor", "process.roles", "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor", "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
    }
)  # fmt: skip
"""Keys that the benchmark's Kafka sets, as far as they have no effect in Klamm."""


def emptied_policy(side: Side) -> Iterator[tuple[str, Any]]:
    """`cleanup.policy` may be empty: neither delete nor compact."""
    yield "create", create(side, "kept", configs={"cleanup.policy": ""}, wait=True)
    api = ApiKey.DELETE_RECORDS
    for offset in (0, -1):
        row = part(api, 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
        rows = (part(api, 2, "DeleteRecordsTopic", name="kept", partitions=(row,)),)
        yield f"delete records to {offset}", side.call(api, 2, topics=rows, timeout=WAIT)


CASES: Final[Sequence[Case]] = (
    create_topics, create_partitions, delete_topics, metadata, configs, produce, fetch, sessions, offsets_of_partitions,
    cluster, groups, administration, broker_keys, emptied_policy,
)  # fmt: skip


def plain(value: Any, field: str = "") -> Any:
    """Returns an answer as dictionaries and lists, without the fields in `IGNORED`."""
    if field in PRESENCE:
        return bool(value)
    if dataclasses.is_dataclass(value):
        names = (f.name for f in dataclasses.fields(value) if f.name not in IGNORED)
        return {name: plain(getattr(value, name), name) for name in names}
    if isinstance(value, tuple | list):
        return in_order([plain(item) for item in value])
    if isinstance(value, datetime | uuid.UUID):
        return type(value).__name__
    return value.name if isinstance(value, Enum) else value


def in_order(items: list[Any]) -> Any:
    """Returns configs sorted by name, so that one that only one broker has is one difference."""
    if not items or not all(isinstance(item, dict) for item in items):
        return items
    if "config_source" in items[0] and len({item["name"] for item in items}) == len(items):
        return {"": {f"[{item['name']}]": item for item in items}}
    field = next((name for name in SORTED_BY if name in items[0]), None)
    return items if field is None else sorted(items, key=lambda item: str(item[field]))


def differences(kafka: Any, klamm: Any, path: str = "") -> Iterator[str]:
    if isinstance(kafka, dict) and isinstance(klamm, dict):
        for name in sorted(kafka.keys() | klamm.keys()):
            inner = f"{path}{name}" if name[:1] in ("", "[") else f"{path}.{name}"
            yield from differences(kafka.get(name, "nothing"), klamm.get(name, "nothing"), inner)
    elif isinstance(kafka, list) and isinstance(klamm, list) and len(kafka) == len(klamm):
        for index, (one, other) in enumerate(zip(kafka, klamm, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif kafka != klamm:
        yield f"{path.lstrip('.') or 'answer'}: Kafka {shown(kafka)}, Klamm {shown(klamm)}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"


def answers(case: Case, side: Side) -> Iterator[tuple[str, Any]]:
    """Yields the case's answers; an exception ends them with a "broke off" pair, since a broker may close the
    connection.
    """
    try:
        for what, answer in case(side):
            yield what, plain(answer)
    except Exception as error:
        yield "broke off", f"{type(error).__name__}: {error}"


def compare(case: Case, kafka: Side, klamm: Side) -> Iterator[str]:
    for (what, one), (also, other) in zip(answers(case, kafka), answers(case, klamm), strict=False):
        where = f"{case.__name__}: {what}" if what == also else f"{case.__name__}: {what} / {also}"
        yield from (f"{where}: {line}" for line in differences(one, other))
        if what == also == "broke off":  # later answers were not compared
            yield f"{where}: {one}"


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--kafka", metavar="HOST:PORT", help="a fresh Kafka that runs already")
    asked.add_argument("--only", default="", help="only the cases whose name has this text")
    asked.add_argument("--all", action="store_true", help="also what is known")
    options = asked.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not options.kafka:
            system = kafka_tuned(folder / "kafka")
            stack.callback(system.stop)
            system.start()
            options.kafka = system.bootstrap
        broker = stack.enter_context(running_broker(folder / "klamm", broker={"broker.id": BROKER_ID}))
        unknown = 0
        for case in CASES:
            if options.only not in case.__name__:
                continue
            for line in compare(case, Side("Kafka", options.kafka), Side("Klamm", broker.bootstrap)):
                why = next((why for text, why in KNOWN.items() if text in line), "")
                unknown += not why
                if not why or options.all:
                    print(f"{line} ({why})" if why else line, flush=True)
        print(f"{unknown} differences that are not explained")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
