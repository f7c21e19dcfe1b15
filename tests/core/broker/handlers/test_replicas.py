"""Requests about replicas, over three brokers of one cluster: creation, elections, reassignments, descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from klamm.core.broker.server import Broker
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.apis import SERVED
from klammtest.brokers.inprocess import broker_thread
from klammtest.requests import (
    batch,
    create_topic,
    fetch_fields,
    metadata,
    produce_fields,
    topic_id,
    wait_until_all_are_known,
)
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

WAIT = timedelta(seconds=10)
NONE = ErrorCode.none
RACKS = {0: "a", 1: "b", 2: "b"}


@dataclass
class Brokers:
    """Three brokers; 1 and 2 are in one rack. Broker 0 has a second listener, the others do not."""

    brokers: dict[int, Broker]
    stack: ExitStack

    def wire(self, broker_id: int, listener: str = "PLAINTEXT") -> WireClient:
        (found,) = (address for address in self.brokers[broker_id].advertised if address.name == listener)
        return self.stack.enter_context(WireClient(f"{found.host}:{found.port}"))

    @property
    def controller(self) -> WireClient:
        with WireClient(f"127.0.0.1:{self.brokers[0].advertised[0].port}") as wire:
            return self.wire(metadata(wire, []).controller_id)

    def other(self) -> WireClient:
        """A broker that is not the controller."""
        with WireClient(f"127.0.0.1:{self.brokers[0].advertised[0].port}") as wire:
            return self.wire((metadata(wire, []).controller_id + 1) % 3)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Broker]]:
    folder = tmp_path_factory.mktemp("brokers")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with ExitStack() as stack:
        made = {}
        for number, rack in RACKS.items():
            listeners = "PLAINTEXT://127.0.0.1:0" + (",INSIDE://127.0.0.1:0" if number == 0 else "")
            keys = {
                "broker.id": number,
                "broker.rack": rack,
                "listeners": listeners,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
                "log.dirs": str(folder / f"data-{number}"),
                "auto.create.topics.enable": True,
                "default.replication.factor": 2,
            }
            made[number] = stack.enter_context(broker_thread(folder, tree, keys))
        yield made


@pytest.fixture
def brokers(running: dict[int, Broker]) -> Iterator[Brokers]:
    with ExitStack() as stack:
        found = Brokers(running, stack)
        wait_until_all_are_known([f"127.0.0.1:{broker.advertised[0].port}" for broker in running.values()])
        yield found


def described(wire: WireClient, name: str) -> dict[int, Any]:
    return {p.partition_index: p for p in metadata(wire, [name]).topics[0].partitions}


def reassign(wire: WireClient, targets: dict[tuple[str, int], tuple[int, ...] | None], **more: Any) -> Any:
    api, version = ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1 if more else 0
    topics = tuple(
        part(api, version, "ReassignableTopic", name=name, partitions=(
            part(api, version, "ReassignablePartition", partition_index=number, replicas=replicas),
        ))
        for (name, number), replicas in targets.items()
    )  # fmt: skip
    return wire.call(api, version, topics=topics, timeout=WAIT, **more)


def ongoing(wire: WireClient) -> dict[tuple[str, int], Any]:
    answer = wire.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=WAIT)
    assert answer.error_code is NONE
    return {(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}


def elect(wire: WireClient, name: str, *numbers: int, kind: int = 0, version: int = 2) -> Any:
    topics = (part(ApiKey.ELECT_LEADERS, version, "TopicPartitions", topic=name, partitions=numbers),)
    return wire.call(ApiKey.ELECT_LEADERS, version, election_type=kind, topic_partitions=topics, timeout=WAIT)


@pytest.mark.parametrize("created", [False, True], ids=["by Metadata", "by CreateTopics"])
def test_a_leader_that_metadata_names_takes_the_first_batch(brokers: Brokers, created: bool) -> None:
    """Of topics that were just created: no NOT_LEADER_OR_FOLLOWER, no UNKNOWN_TOPIC_OR_PARTITION."""
    wires = {number: brokers.wire(number) for number in RACKS}
    for number in range(10):
        topic = f"first-{created}-{number}"
        if created:
            assert create_topic(brokers.controller, topic, 3, replication_factor=2).error_code is NONE
        found: dict[int, Any] = {}

        def named(wire: WireClient = wires[number % 3], topic: str = topic, found: dict[int, Any] = found) -> bool:
            (answer,) = metadata(wire, [topic], create=True).topics
            found.update({p.partition_index: p for p in answer.partitions})
            return bool(found) and all(p.error_code is NONE for p in found.values())

        eventually(named, "the leaders")
        for partition, row in found.items():
            fields = produce_fields({(topic, partition): batch(b"first")})
            (answer,) = wires[row.leader_id].call(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses
            assert answer.error_code is NONE


def test_replicas_of_a_new_topic_lie_in_all_racks(brokers: Brokers) -> None:
    answer = create_topic(brokers.controller, "spread", 6, replication_factor=2)
    assert (answer.error_code, answer.replication_factor) == (NONE, 2)
    found = described(brokers.controller, "spread")
    assert all({RACKS[r] for r in p.replica_nodes} == {"a", "b"} for p in found.values())

    def led() -> list[int]:
        return sorted(p.leader_id for p in described(brokers.controller, "spread").values())

    eventually(lambda: led() == [0, 0, 1, 1, 2, 2], "they lead")


def test_a_factor_that_is_larger_than_the_cluster(brokers: Brokers) -> None:
    answer = create_topic(brokers.controller, "large", 1, replication_factor=4)
    assert answer.error_code is ErrorCode.invalid_replication_factor
    assert answer.error_message == (
        "topic 'large' with replication factor 4: it is larger than the number of live brokers, 3"
    )


def test_a_smaller_set_of_replicas_is_complete_at_once(brokers: Brokers) -> None:
    create_topic(brokers.controller, "shrunk", 1, replication_factor=3)
    before = described(brokers.controller, "shrunk")[0]
    staying = next(r for r in before.replica_nodes if r != before.leader_id)
    assert reassign(brokers.controller, {("shrunk", 0): (staying,)}).responses[0].partitions[0].error_code is NONE

    def moved() -> bool:
        found = described(brokers.controller, "shrunk")[0]
        return (found.replica_nodes, found.leader_id, found.isr_nodes) == ((staying,), staying, (staying,))

    eventually(moved, "the reassignment's end")
    assert ("shrunk", 0) not in ongoing(brokers.controller)


def test_reassignments_that_are_refused(brokers: Brokers) -> None:
    create_topic(brokers.controller, "stays", 1, replication_factor=1)
    answer = reassign(
        brokers.controller,
        {("stays", 0): (0, 7), ("stays", 9): (0,), ("nowhere", 0): (0,)},
    )
    assert answer.error_code is NONE
    errors = {
        (t.name, p.partition_index): (p.error_code, p.error_message) for t in answer.responses for p in t.partitions
    }
    assert errors["stays", 0] == (
        ErrorCode.invalid_replica_assignment,
        "broker 7 cannot be added: not live (live brokers: 0, 1, 2)",
    )
    assert errors["stays", 9][0] is errors["nowhere", 0][0] is ErrorCode.unknown_topic_or_partition
    (refused,) = reassign(brokers.controller, {("stays", 0): None}).responses[0].partitions
    assert refused.error_code is ErrorCode.no_reassignment_in_progress
    (refused,) = reassign(
        brokers.controller, {("stays", 0): (0, 1)}, allow_replication_factor_change=False
    ).responses[0].partitions  # fmt: skip
    assert refused.error_code is ErrorCode.invalid_replication_factor


def test_preferred_leaders_lead_again(brokers: Brokers) -> None:
    create_topic(brokers.controller, "preferred", 1, replication_factor=3)
    before = described(brokers.controller, "preferred")[0].replica_nodes
    order = (*before[1:], before[0])
    reassign(brokers.controller, {("preferred", 0): order})
    assert described(brokers.controller, "preferred")[0].leader_id == before[0], "an order alone moves no leader"
    answer = elect(brokers.controller, "preferred", 0, 5)
    (found,) = answer.replica_election_results
    assert [(p.partition_id, p.error_code) for p in found.partition_result] == [
        (0, NONE),
        (5, ErrorCode.unknown_topic_or_partition),
    ]
    assert described(brokers.controller, "preferred")[0].leader_id == order[0]
    for version in range(SERVED[ApiKey.ELECT_LEADERS][0], SERVED[ApiKey.ELECT_LEADERS][1] + 1):
        (found,) = elect(brokers.controller, "preferred", 0, version=version).replica_election_results
        assert found.partition_result[0].error_code is ErrorCode.election_not_needed
    (found,) = elect(brokers.controller, "preferred", 0, kind=1).replica_election_results
    assert found.partition_result[0].error_code is ErrorCode.election_not_needed
    assert elect(brokers.controller, "preferred", 0, kind=9).error_code is ErrorCode.invalid_request


def test_another_broker_is_not_the_controller(brokers: Brokers) -> None:
    wire = brokers.other()
    assert elect(wire, "any", 0).error_code is ErrorCode.not_controller
    assert reassign(wire, {("any", 0): (0,)}).error_code is ErrorCode.not_controller
    answer = wire.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=WAIT)
    assert answer.error_code is ErrorCode.not_controller
    assert wire.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=5).error_code is ErrorCode.not_controller


def test_only_a_broker_that_is_gone_is_unregistered(brokers: Brokers) -> None:
    live = brokers.controller.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=1)
    assert live.error_code is ErrorCode.invalid_request
    assert live.error_message.startswith("broker 1 is live: stop it first (one that was killed counts as live until ")
    unknown = brokers.controller.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=77)
    assert unknown.error_code is ErrorCode.broker_id_not_registered


def describe_partitions(wire: WireClient, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    at = None if cursor is None else part(api, 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
    topics = tuple(part(api, 0, "TopicRequest", name=name) for name in names)
    return wire.call(api, 0, topics=topics, response_partition_limit=limit, cursor=at)


def test_partitions_are_described_a_page_at_a_time(brokers: Brokers) -> None:
    wire = brokers.controller
    create_topic(wire, "page-a", 3, replication_factor=2)
    create_topic(wire, "page-b", 2)
    found: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        answer = describe_partitions(wire, "page-b", "page-a", limit=2, cursor=cursor)
        found += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        cursor = answer.next_cursor and (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        pages += 1
    assert found == [("page-a", 0), ("page-a", 1), ("page-a", 2), ("page-b", 0), ("page-b", 1)]
    assert pages == 3
    (topic,) = describe_partitions(wire, "page-a").topics
    assert (topic.partitions[0].eligible_leader_replicas, topic.partitions[0].last_known_elr) == ((), ())
    assert len(topic.partitions[0].isr_nodes) == 2
    named = {t.name: t.error_code for t in describe_partitions(wire).topics}
    assert named["page-a"] is NONE
    wrong = {t.name: t.error_code for t in describe_partitions(wire, "nowhere", "bad/name").topics}
    assert wrong == {
        "nowhere": ErrorCode.unknown_topic_or_partition,
        "bad/name": ErrorCode.invalid_topic_exception,
    }
    for at in (("page-c", 0), ("page-a", -1)):
        answer = describe_partitions(wire, "page-a", "page-b", cursor=at)
        assert {t.error_code for t in answer.topics} == {ErrorCode.invalid_request}


def test_each_listener_names_its_own_addresses(brokers: Brokers) -> None:
    create_topic(brokers.controller, "listened", 3)
    inside = brokers.wire(0, "INSIDE")
    eventually(lambda: all(p.error_code is NONE for p in described(brokers.wire(0), "listened").values()), "they lead")
    answer = metadata(inside, ["listened"])
    (own,) = (address for address in brokers.brokers[0].advertised if address.name == "INSIDE")
    assert [(b.node_id, b.port) for b in answer.brokers] == [(0, own.port)], "the others have no such listener"
    errors = {p.leader_id: p.error_code for p in answer.topics[0].partitions}
    assert errors == {0: NONE, -1: ErrorCode.listener_not_found}
    outside = metadata(brokers.wire(0), ["listened"])
    assert {b.node_id for b in outside.brokers} == {0, 1, 2}
    for version in range(SERVED[ApiKey.DESCRIBE_CLUSTER][1] + 1):
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
        cluster = inside.call(ApiKey.DESCRIBE_CLUSTER, version, **fields)
        assert [(b.broker_id, b.port) for b in cluster.brokers] == [(0, own.port)]


def test_default_numbers(brokers: Brokers) -> None:
    answer = create_topic(brokers.controller, "defaulted", -1, replication_factor=-1)
    assert (answer.num_partitions, answer.replication_factor) == (1, 2), "default.replication.factor"


def test_any_broker_creates_topics_on_demand(brokers: Brokers) -> None:
    def led() -> bool:
        answer = metadata(brokers.other(), ["demanded"], create=True).topics[0]
        assert answer.error_code in (NONE, ErrorCode.leader_not_available)
        return bool(answer.partitions)

    eventually(led, "the topic")


def test_any_broker_changes_a_topics_configs(brokers: Brokers) -> None:
    """Kafka's admin clients send these to any broker."""
    create_topic(brokers.controller, "configured", 1)
    wire = brokers.other()
    eventually(lambda: metadata(wire, ["configured"]).topics[0].partitions, "the topic at the other broker")
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = part(api, 1, "AlterableConfig", name="retention.ms", config_operation=0, value="77")
    resource = part(api, 1, "AlterConfigsResource", resource_type=2, resource_name="configured", configs=(change,))
    assert wire.call(api, 1, resources=(resource,), validate_only=False).responses[0].error_code is NONE


@pytest.mark.parametrize("version", range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1))
def test_a_broker_that_does_not_lead_names_the_leader(brokers: Brokers, version: int) -> None:
    """From version 10 on (KIP-951), with the address for the listener that the request came in on."""
    name = f"led-{version}"
    assert create_topic(brokers.controller, name, 2, replication_factor=2).error_code is NONE
    eventually(lambda: all(p.leader_id >= 0 for p in described(brokers.wire(0), name).values()), "leaders")
    for number, partition in described(brokers.wire(0), name).items():
        other = next(n for n in RACKS if n != partition.leader_id)
        wire = brokers.wire(other)
        eventually(lambda wire=wire, name=name: described(wire, name), "the topic in the image")
        ids = {name: topic_id(wire, name)}
        fields = produce_fields({(name, number): batch(b"a")}, -1, version, topic_ids=ids)
        answer = wire.call(ApiKey.PRODUCE, version, **fields)
        found = answer.responses[0].partition_responses[0]
        assert found.error_code is ErrorCode.not_leader_or_follower
        if version < 10:
            assert not hasattr(found, "current_leader")
            continue
        address = brokers.brokers[partition.leader_id].advertised[0]
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (
            partition.leader_id, partition.leader_epoch,
        )  # fmt: skip
        rack = RACKS[partition.leader_id]
        nodes = [(n.node_id, n.host, n.port, n.rack) for n in answer.node_endpoints]
        assert nodes == [(partition.leader_id, address.host, address.port, rack)]


def test_a_fetch_that_no_replica_answers_names_the_leader(brokers: Brokers) -> None:
    """From version 16 on (KIP-951)."""
    name = led_by_broker_1(brokers, "fetched-elsewhere")
    wire = brokers.wire(0)
    eventually(lambda: described(wire, name), "the topic in the image")
    ids = {name: topic_id(wire, name)}
    address = brokers.brokers[1].advertised[0]
    for version in range(12, SERVED[ApiKey.FETCH][1] + 1):
        answer = wire.call(ApiKey.FETCH, version, **fetch_fields({(name, 0): 0}, version=version, topic_ids=ids))
        found = answer.responses[0].partitions[0]
        assert found.error_code is ErrorCode.not_leader_or_follower
        named = (found.current_leader.leader_id, found.current_leader.leader_epoch)
        assert named == ((1, 0) if version >= 16 else (-1, -1))
        nodes = [(n.node_id, n.host, n.port, n.rack) for n in getattr(answer, "node_endpoints", ())]
        assert nodes == ([(1, address.host, address.port, RACKS[1])] if version >= 16 else [])


def led_by_broker_1(brokers: Brokers, name: str) -> str:
    """Creates a topic of one partition with one replica."""
    assignment = (part(ApiKey.CREATE_TOPICS, 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(1,)),)
    made = create_topic(brokers.controller, name, -1, assignments=assignment)
    assert made.error_code is NONE
    return name


def test_a_listener_that_the_leader_lacks_has_no_address(brokers: Brokers) -> None:
    name = led_by_broker_1(brokers, "led-elsewhere")
    wire = brokers.wire(0, "INSIDE")
    eventually(lambda: described(wire, name), "the topic in the image")
    answer = wire.call(ApiKey.PRODUCE, 10, **produce_fields({(name, 0): batch(b"a")}, -1, 10))
    assert answer.responses[0].partition_responses[0].current_leader.leader_id == 1
    assert answer.node_endpoints == ()
