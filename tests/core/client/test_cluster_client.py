"""ClusterClient against a real broker, and against one that misbehaves on request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient, NewTopic
from klamm.core.client.errors import (
    ClientClosedError,
    ConnectionFailedError,
    RequestTimeoutError,
    UnknownTopicError,
)
from klamm.core.client.network.backoff import Backoff
from klamm.core.client.network.connection import ClientConnection
from klamm.core.client.network.request_router import Network
from klamm.core.errors import BrokerError, ConfigError, ErrorCode, LogEndMovedError, ProtocolError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.records.partition import TopicPartition
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker, running_broker
from klammtest.brokers.scripted import HangUpError, ScriptedBroker, scripted_broker
from klammtest.waiting import PATIENCE_S

QUICK = Network(reconnect=Backoff(0.005, 0.02), retry=Backoff(0.005, 0.02))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    topics = {"t": {"partitions": 3}, "flights": {"partitions": 1}}
    with running_broker(tmp_path_factory.mktemp("broker"), topics=topics) as running:
        yield running


def fresh(name: str, client: ClusterClient, partitions: int = 1, **configs: str) -> list[TopicPartition]:
    client.create_topics({name: NewTopic(partitions, 1, {k.replace("_", "."): v for k, v in configs.items()})})
    return client.partitions(name)


def batch(*values: bytes, at: int = 1000) -> bytes:
    return encode_batch([(at + index, None, value, ()) for index, value in enumerate(values)])


def test_compare_and_append(client: ClusterClient) -> None:
    one, two = fresh("compared", client, 2)
    client.produce(
        {one: batch(b"a", b"b"), two: batch(b"a")}, after={one: OffsetAndEpoch(0), two: OffsetAndEpoch(0, -1)}
    )
    for end in (OffsetAndEpoch(1), OffsetAndEpoch(3), OffsetAndEpoch(2, 1), OffsetAndEpoch(0)):
        with pytest.raises(LogEndMovedError, match=r"^compared-0: the log ends at offset 2 after epoch 0, not "):
            client.produce({one: batch(b"c")}, after={one: end})
    assert client.produce({one: batch(b"c")}, after={one: OffsetAndEpoch(2, 0)})[one].base_offset == 2
    large = batch(bytes(2**20 - 100))  # appended by a worker thread
    with pytest.raises(LogEndMovedError):
        client.produce({two: large}, after={two: OffsetAndEpoch(2)})
    assert client.produce({two: large}, after={two: OffsetAndEpoch(1, 0)})[two].base_offset == 1
    assert client.list_offsets({one: LATEST, two: LATEST}) == {one: (3, -1), two: (2, -1)}


def test_a_broker_that_cannot_compare_gets_no_condition(codecs: CodecTable) -> None:
    with (
        scripted_broker({"t": 1}) as scripted,
        ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client,
        pytest.raises(BrokerError, match=r"UNSUPPORTED_VERSION.*does not support the feature klamm\.conditional"),
    ):
        client.produce({TopicPartition("t", 0): batch(b"a")}, after={TopicPartition("t", 0): OffsetAndEpoch(0)})


def test_metadata_names_brokers_topics_and_leaders(client: ClusterClient, broker: RunningBroker) -> None:
    view = client.metadata()
    assert {"t", "flights"} <= set(view.topics)
    assert sorted(view.topics["t"].partitions) == [0, 1, 2]
    assert str(view.nodes[view.controller_id].address) == broker.bootstrap
    assert client.by_leader(client.partitions("t")) == {view.controller_id: client.partitions("t")}


def test_an_unknown_topic_names_the_nearest(client: ClusterClient) -> None:
    assert client.metadata(["fligths"]).topics["fligths"].error == ErrorCode.unknown_topic_or_partition
    with pytest.raises(UnknownTopicError, match="there is no topic 'fligths'; did you mean 'flights'"):
        client.partitions("fligths")
    with pytest.raises(UnknownTopicError, match=r"there is no topic 'zzz'; create it with `klamm topics create zzz`"):
        client.list_offsets({TopicPartition("zzz", 0): LATEST})


def test_an_unknown_partition_says_how_many_there_are(client: ClusterClient) -> None:
    with pytest.raises(UnknownTopicError, match="topic 't' has 3 partitions; there is no partition 7"):
        client.list_offsets({TopicPartition("t", 7): LATEST})


def test_what_is_produced_is_fetched_as_it_was(client: ClusterClient) -> None:
    one, two = fresh("bytes", client, 2)
    produced = client.produce({one: batch(b"a", b"b"), two: batch(b"c")})
    assert {tp: item.base_offset for tp, item in produced.items()} == {one: 0, two: 0}
    assert client.produce({one: batch(b"d")})[one].base_offset == 2
    node_id = client.cluster.leader(one)
    assert node_id is not None
    fetched = client.fetch(node_id, {one: 0, two: 1}, max_wait_ms=10)
    assert [header.record_count for _, header in iter_headers(fetched[one].records)] == [2, 1]
    assert (fetched[one].error, fetched[one].high_watermark, fetched[one].log_start_offset) == (ErrorCode.none, 3, 0)
    assert fetched[two].records == b""


def test_a_fetch_out_of_range_has_the_error_in_its_result(client: ClusterClient) -> None:
    (tp,) = fresh("range", client)
    fetched = client.fetch(0, {tp: 99}, max_wait_ms=10)
    assert fetched[tp].error == ErrorCode.offset_out_of_range


def test_offsets_by_time_and_ends(client: ClusterClient) -> None:
    (tp,) = fresh("times", client, retention_ms="-1")
    client.produce({tp: batch(b"a", b"b", b"c", at=5000)})
    assert client.list_offsets({tp: LATEST})[tp] == (3, -1)
    assert client.list_offsets({tp: EARLIEST})[tp] == (0, -1)
    assert client.list_offsets({tp: 5001})[tp] == (1, 5001)
    assert client.list_offsets({tp: 9000})[tp] == (-1, -1)


def test_topics_are_made_grown_configured_and_deleted(client: ClusterClient) -> None:
    fresh("made", client, 2, retention_ms="1000")
    assert client.describe_configs("made")["retention.ms"].value == "1000"
    client.alter_configs("made", {"retention.ms": "2000"})
    assert client.describe_configs("made")["retention.ms"].value == "2000"
    client.alter_configs("made", {"retention.ms": None})
    assert client.describe_configs("made")["retention.ms"].value != "2000"
    client.create_partitions("made", 4)
    assert len(client.partitions("made")) == 4
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS: topic 'made'"):
        client.create_topics({"made": NewTopic(1)})
    client.create_topics({"made": NewTopic(1)}, exists_ok=True)
    client.delete_topics(["made"])
    with pytest.raises(UnknownTopicError):
        client.partitions("made")
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 'made'"):
        client.delete_topics(["made"])
    client.delete_topics(["made"], missing_ok=True)


def test_a_bad_topic_is_told_in_the_brokers_words(client: ClusterClient) -> None:
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION: topic 'a/b'"):
        client.create_topics({"a/b": NewTopic(1, 1)})
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        client.create_topics({"c": NewTopic(1, 1, {"retention.ms": "soon"})})


def test_offsets_of_a_group_are_kept(client: ClusterClient) -> None:
    one, two, _ = client.partitions("t")
    assert client.fetch_offsets("readers", [one]) == {}
    client.commit_offsets("readers", {one: CommittedOffset(5, metadata="half"), two: CommittedOffset(7)})
    stored = client.fetch_offsets("readers")
    assert {tp: (item.offset, item.metadata) for tp, item in stored.items()} == {one: (5, "half"), two: (7, "")}
    assert set(client.fetch_offsets("readers", [two])) == {two}


@pytest.mark.parametrize("end", [0, 1])
def test_the_lowest_and_the_highest_versions_work(
    broker: RunningBroker, codecs: CodecTable, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """The lowest as against an old broker; between them each API's fields only grow."""

    def version(_: ClientConnection, api: ApiKey, max_version: int | None = None) -> int:
        served = min(SERVED[api][end], SPOKEN[api][1])
        return served if max_version is None else min(served, max_version)

    monkeypatch.setattr(ClientConnection, "version", version)
    with ClusterClient(broker.bootstrap, codecs=codecs) as client:
        (tp,) = fresh(f"version-{end}", client)
        assert client.produce({tp: batch(b"x")})[tp].base_offset == 0
        assert client.list_offsets({tp: LATEST})[tp][0] == 1
        assert client.fetch(0, {tp: 0}, max_wait_ms=10)[tp].records
        topic_id = client.topic_ids([tp.topic]).get(tp.topic)
        client.commit_offsets(f"version-{end}", {tp: CommittedOffset(1, topic_id=topic_id)})
        assert client.fetch_offsets(f"version-{end}", [tp])[tp].offset == 1
        client.create_partitions(tp.topic, 2)
        assert client.describe_configs(tp.topic)
        client.delete_topics([tp.topic])


def test_many_threads_use_one_client(client: ClusterClient) -> None:
    (tp,) = fresh("threads", client)
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                client.produce({tp: batch(b"%d" % number)})
                client.list_offsets({tp: LATEST})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert client.list_offsets({tp: LATEST})[tp][0] == 160


def test_a_restarted_broker_is_found_again(tmp_path: Path, codecs: CodecTable) -> None:
    with (
        running_broker(tmp_path, topics={"t": {"partitions": 1}}) as broker,
        ClusterClient(broker.bootstrap, codecs=codecs) as client,
    ):
        (tp,) = client.partitions("t")
        assert client.produce({tp: batch(b"a")})[tp].base_offset == 0
        broker.kill()
        restarting = threading.Thread(target=broker.start)
        restarting.start()
        assert client.produce({tp: batch(b"b")})[tp].base_offset == 1
        restarting.join()


def test_an_unreachable_cluster_says_where_and_what_to_do(codecs: CodecTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ClusterClient(f"127.0.0.1:{port}", codecs=codecs, request_timeout_s=0.2) as client:
        expected = (
            rf"no broker answers at 127.0.0.1:{port} \(cannot connect to 127.0.0.1:{port}: connection refused\); "
            "is it running, and is the address right?"
        )
        with pytest.raises(ConnectionFailedError, match=expected):
            client.metadata()


@pytest.mark.parametrize("servers", ["", "localhost", "h:0", "h:port", "a b:1", ":9092"])
def test_bad_bootstrap_servers_are_one_clear_line(servers: str, codecs: CodecTable) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ClusterClient(servers, codecs=codecs)


def test_a_server_that_is_no_broker(codecs: CodecTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with (
            ClusterClient(f"127.0.0.1:{port}", codecs=codecs, request_timeout_s=PATIENCE_S) as client,
            pytest.raises(ProtocolError, match=rf"127.0.0.1:{port}: a frame of \d+ bytes is over the limit"),
        ):
            client.metadata()
        thread.join()


@pytest.fixture
def scripted(codecs: CodecTable) -> Iterator[ScriptedBroker]:
    with scripted_broker({"t": 1}, codecs) as running:
        yield running


def test_an_answer_that_does_not_come_is_a_time_out(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    scripted.faults.append("silent")
    with (
        ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client,
        pytest.raises(RequestTimeoutError, match=f"no answer to PRODUCE from {scripted.bootstrap} in time"),
    ):
        client.produce({TopicPartition("t", 0): batch(b"x")}, timeout_s=2.0)


def test_a_connection_that_breaks_is_made_again(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    scripted.faults.extend(["dropped", ErrorCode.not_leader_or_follower, "dropped"])
    with ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client:
        assert client.produce({TopicPartition("t", 0): batch(b"x")})[TopicPartition("t", 0)].base_offset == 0


def test_an_idle_connection_that_was_closed_is_not_used(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    with ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client:
        client.metadata()
        scripted.disconnect()
        time.sleep(0.05)
        client.call(ApiKey.METADATA, topics=None, allow_auto_topic_creation=False, retry=False,
                    include_cluster_authorized_operations=False, include_topic_authorized_operations=False)  # fmt: skip


def test_an_error_that_cannot_go_away_is_raised_at_once(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    scripted.faults.append(ErrorCode.topic_authorization_failed)
    with (
        ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client,
        pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: partition t-0 at broker 1") as caught,
    ):
        client.produce({TopicPartition("t", 0): batch(b"x")})
    assert caught.value.code == ErrorCode.topic_authorization_failed


def test_a_coordinator_that_moves_is_looked_for_again(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    calls = []

    def find(request: Any, version: int) -> Any:
        calls.append(version)
        code = ErrorCode.coordinator_not_available if len(calls) == 1 else ErrorCode.none
        schema = messages.response(ApiKey.FIND_COORDINATOR, version)
        found = schema.part(
            "Coordinator", key="g", node_id=1, host="127.0.0.1", port=scripted.port, error_code=code, error_message=None
        )
        return schema.build(throttle_time=timedelta(), coordinators=(found,))

    def commit(request: Any, version: int) -> Any:
        if scripted.count(ApiKey.OFFSET_COMMIT) == 1:
            raise HangUpError
        moved = scripted.count(ApiKey.OFFSET_COMMIT) == 2
        schema = messages.response(ApiKey.OFFSET_COMMIT, version)
        code = ErrorCode.not_coordinator if moved else ErrorCode.none
        part = schema.part("OffsetCommitResponsePartition", partition_index=0, error_code=code)
        topic = schema.part("OffsetCommitResponseTopic", name="t", partitions=(part,))
        return schema.build(throttle_time=timedelta(), topics=(topic,))

    scripted.handlers[ApiKey.FIND_COORDINATOR] = find
    scripted.handlers[ApiKey.OFFSET_COMMIT] = commit
    with ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK) as client:
        client.commit_offsets("g", {TopicPartition("t", 0): CommittedOffset(1)})
    assert len(calls) == 4


def test_closing_ends_a_call_under_way(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    scripted.faults.append("silent")
    client = ClusterClient(scripted.bootstrap, codecs=codecs, network=QUICK)
    caught: list[Exception] = []

    def produce() -> None:
        try:
            client.produce({TopicPartition("t", 0): batch(b"x")})
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    while not scripted.count(ApiKey.PRODUCE):
        time.sleep(0.005)
    client.close()
    thread.join(60)
    assert [type(error) for error in caught] == [ClientClosedError]
    with pytest.raises(ClientClosedError):
        client.metadata()


def test_acks_0_has_no_answer_to_wait_for(scripted: ScriptedBroker, codecs: CodecTable) -> None:
    with (
        ClusterClient(scripted.bootstrap, codecs=codecs) as client,
        pytest.raises(ValueError, match="acks is 1 or -1"),
    ):
        client.produce({TopicPartition("t", 0): batch(b"x")}, acks=0)
