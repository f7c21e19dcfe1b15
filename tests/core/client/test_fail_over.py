"""`ClusterClient` and the readers while leaders and coordinators move or die, against a scripted cluster."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.client.errors import ConnectionFailedError, LogTruncatedError
from klamm.core.client.network.backoff import Backoff, FailOver
from klamm.core.client.network.request_router import Network
from klamm.core.client.reader.partition_reader import PartitionReader
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.groups.membership.classic_calls import ClassicCalls, ClassicSettings, Joined
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.scripted import NO_TIME, SilenceError
from klammtest.brokers.scripted_cluster import ScriptedCluster, scripted_cluster
from klammtest.waiting import eventually

T0, WIDE = TopicPartition("t", 0), [TopicPartition("wide", number) for number in range(4)]
SLOW = Backoff(1000.0, 1000.0)
"""A delay that no test waits for."""


@pytest.fixture
def cluster(codecs: CodecTable) -> Iterator[ScriptedCluster]:
    with scripted_cluster({"t": 1, "wide": 4}, 3, codecs) as running:
        yield running


@pytest.fixture
def client(cluster: ScriptedCluster, codecs: CodecTable) -> Iterator[ClusterClient]:
    """All that waits longer than a fail-over's delays fails."""
    network = Network(reconnect=SLOW, retry=SLOW)
    with ClusterClient(cluster.bootstrap, codecs=codecs, network=network) as opened:
        yield opened


def test_another_broker_is_asked_at_once(cluster: ScriptedCluster, client: ClusterClient) -> None:
    client.metadata(["t"])
    cluster.kill(1)
    cluster.kill(2)
    for _ in range(5):
        assert client.metadata(["t"]).topics["t"].topic_id == cluster.ids["t"]


def test_a_silent_broker_delays_metadata_by_a_second(cluster: ScriptedCluster, codecs: CodecTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]},{cluster.bootstrap}"
        with ClusterClient(bootstrap, codecs=codecs, network=Network(reconnect=SLOW, retry=SLOW)) as client:
            assert client.metadata(["t"], timeout_s=20.0).nodes.keys() == cluster.brokers.keys()


def test_with_no_broker_left_the_error_is_raised(cluster: ScriptedCluster, client: ClusterClient) -> None:
    client.metadata(["t"])
    for node in cluster.brokers:
        cluster.kill(node)
    with pytest.raises(ConnectionFailedError):
        client.metadata(["t"], timeout_s=5)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.offset_not_available,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
    ],
)
def test_offsets_are_asked_for_until_they_are_known(
    cluster: ScriptedCluster, client: ClusterClient, error: ErrorCode
) -> None:
    """KIP-207: a new leader does not know the high watermark at once."""
    cluster.stored[T0].append((1, None, b"a", ()))
    cluster.faults[ApiKey.LIST_OFFSETS].extend([error] * 3)
    assert client.list_offsets({T0: LATEST}) == {T0: (1, -1)}
    assert len(cluster.asked(ApiKey.LIST_OFFSETS)) == 4


def test_questions_carry_the_leader_epoch(cluster: ScriptedCluster, client: ClusterClient) -> None:
    cluster.elect(T0, 2)
    client.list_offsets({T0: LATEST})
    client.leader_epoch_ends({T0: 0})
    cluster.elect(T0, 3)
    client.list_offsets({T0: LATEST})
    cluster.elect(T0, 1)
    client.leader_epoch_ends({T0: 0})
    asked = [one.message.topics[0].partitions[0].current_leader_epoch for one in cluster.asked(ApiKey.LIST_OFFSETS)]
    assert (asked[0], asked[-1]) == (1, 2)
    asked = [
        one.message.topics[0].partitions[0].current_leader_epoch
        for one in cluster.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    ]
    assert (asked[0], asked[-1]) == (1, 3)


def test_the_end_of_a_log_is_asked_for_in_an_isolation(cluster: ScriptedCluster, client: ClusterClient) -> None:
    committed = IsolationLevel.READ_COMMITTED
    client.list_offsets({T0: LATEST})
    client.list_offsets({T0: LATEST}, isolation=committed)
    client.try_list_offsets({T0: LATEST}, isolation=committed, timeout_s=30)
    assert [one.message.isolation_level for one in cluster.asked(ApiKey.LIST_OFFSETS)] == [0, 1, 1]


def test_a_partition_without_a_leader_holds_up_no_other(cluster: ScriptedCluster, codecs: CodecTable) -> None:
    cluster.led[WIDE[0]].leader = -1
    network = Network(reconnect=SLOW, retry=SLOW, fail_over=FailOver(quick=SLOW))
    with ClusterClient(cluster.bootstrap, codecs=codecs, network=network) as client:
        assert client.list_offsets({WIDE[1]: LATEST}) == {WIDE[1]: (0, -1)}
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE: partition wide-0 has no leader"):
            client.list_offsets({WIDE[0]: LATEST}, timeout_s=60)


def test_a_batch_goes_to_the_leader_that_the_refusal_names(cluster: ScriptedCluster, client: ClusterClient) -> None:
    cluster.names_leaders = True
    batch = encode_batch([(1000, None, b"a", ())])
    assert client.produce({T0: batch})[T0].base_offset == 0
    asked = len(cluster.asked(ApiKey.METADATA))
    cluster.elect(T0, 2)
    assert client.produce({T0: batch})[T0].base_offset == 1
    assert len(cluster.asked(ApiKey.METADATA)) == asked


# -- coordinators


def commit(client: ClusterClient, offset: int) -> None:
    client.commit_offsets("g", {T0: CommittedOffset(offset, 0)})


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    ],
)
@pytest.mark.parametrize("times", [1, 5])
def test_a_coordinator_that_moves_or_loads_is_waited_for(
    cluster: ScriptedCluster, client: ClusterClient, error: ErrorCode, times: int
) -> None:
    for api in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH):
        cluster.faults[api].extend([error] * times)
    cluster.faults[ApiKey.FIND_COORDINATOR].append(ErrorCode.coordinator_not_available)
    commit(client, 1)
    cluster.coordinator = 3
    commit(client, 2)
    assert client.fetch_offsets("g", [T0]) == {T0: CommittedOffset(2, 0)}
    assert cluster.asked(ApiKey.OFFSET_FETCH, 3)
    asked = len(cluster.asked(ApiKey.FIND_COORDINATOR))
    assert (asked > 3) == (error is not ErrorCode.coordinator_load_in_progress), "a loading one is not looked up again"


def test_a_coordinator_that_dies_is_replaced(cluster: ScriptedCluster, client: ClusterClient) -> None:
    commit(client, 1)
    cluster.kill(1)
    cluster.coordinator = 2
    commit(client, 2)
    assert client.fetch_offsets("g", [T0]) == {T0: CommittedOffset(2, 0)}


JOINED = Joined("m", 1, "range", False, {})


class Rebalance:
    """The parts of brokers in a rebalance: `silent` answers nothing about it, the others do when `done` is set. `seen`:
    the brokers that were asked.
    """

    def __init__(self, cluster: ScriptedCluster, silent: int | None = None) -> None:
        self.seen: list[int] = []
        self.done = threading.Event()
        for node, broker in cluster.brokers.items():
            for api in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
                broker.handlers[api] = self._answering(cluster, node, api, silent=node == silent)

    def _answering(self, cluster: ScriptedCluster, node: int, api: ApiKey, *, silent: bool) -> Any:
        def answer(request: Any, version: int) -> Any:
            self.seen.append(node)
            if silent:
                raise SilenceError
            with cluster.brokers[node].waiting():
                assert self.done.wait(60)
            fields: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
            if api is ApiKey.JOIN_GROUP:
                fields |= {
                    "generation_id": 1,
                    "leader": "other",
                    "skip_assignment": False,
                    "member_id": "m",
                    "members": (),
                }
            else:
                fields |= {"assignment": b"mine"}
            return messages.response(api, version).build(throttle_time=NO_TIME, error_code=ErrorCode.none, **fields)

        return answer


def rebalanced(client: ClusterClient, api: ApiKey) -> bool:
    """Sends the request of a member and waits for its answer; returns whether that is the right one."""
    calls = ClassicCalls(client, ClassicSettings("g", {"t": 1}, heartbeat_s=0.1))
    if api is ApiKey.JOIN_GROUP:
        return calls.join("m", lambda _: None) == JOINED
    return calls.sync(JOINED, {}) == b"mine"


@pytest.mark.parametrize("api", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_a_member_that_waits_at_a_silent_coordinator_goes_to_the_next_one(
    cluster: ScriptedCluster, client: ClusterClient, api: ApiKey
) -> None:
    """The answer may take as long as a rebalance, 330 s here."""
    rebalance = Rebalance(cluster, silent=1)
    rebalance.done.set()
    with ThreadPoolExecutor() as threads, client:  # closing the client ends what waits
        waiting = threads.submit(rebalanced, client, api)
        eventually(lambda: rebalance.seen == [1], "the member waits")
        with cluster.brokers[1]._lock:  # it accepts requests and answers none
            cluster.coordinator = 2
            assert waiting.result(30)
    assert rebalance.seen == [1, 2]


@pytest.mark.parametrize("cut_off", [True, False], ids=["a cut-off broker names itself", "nobody knows"])
@pytest.mark.parametrize("api", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_a_member_waits_on_if_its_coordinator_answers_or_nobody_names_another(
    cluster: ScriptedCluster, client: ClusterClient, api: ApiKey, cut_off: bool
) -> None:
    rebalance = Rebalance(cluster)
    with ThreadPoolExecutor() as threads, client:  # closing the client ends what waits
        waiting = threads.submit(rebalanced, client, api)
        eventually(lambda: rebalance.seen, "the member waits")
        if cut_off:
            cluster.coordinators[3] = 3
        else:
            cluster.faults[ApiKey.FIND_COORDINATOR] += [ErrorCode.coordinator_not_available] * 100
        asked = len(cluster.asked(ApiKey.FIND_COORDINATOR))
        eventually(lambda: len(cluster.asked(ApiKey.FIND_COORDINATOR)) > asked + 5, "it asks for the coordinator")
        rebalance.done.set()
        assert waiting.result(60)
    assert rebalance.seen == [1]


# -- readers


def reader(client: ClusterClient) -> PartitionReader:
    return PartitionReader(client, T0, 0)


def values(target: PartitionReader, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        for batch in target.batches(target.fetch(60, max_wait_ms=20)):
            found += batch.columns.values
    return found


def append(cluster: ScriptedCluster, *values: bytes) -> None:
    for value in values:
        cluster.stored[T0].append((1, None, value, ()))


@pytest.mark.parametrize("names_leaders", [False, True], ids=["silent", "KIP-951"])
def test_a_reader_follows_the_leader(cluster: ScriptedCluster, client: ClusterClient, names_leaders: bool) -> None:
    cluster.names_leaders = names_leaders
    target = reader(client)
    append(cluster, b"0")
    assert values(target, 1) == [b"0"]
    for number in range(1, 5):
        cluster.elect(T0, 1 + number % 3)
        append(cluster, b"%d" % number)
        assert values(target, 1) == [b"%d" % number]
    cluster.kill(2)
    cluster.elect(T0, 3)
    append(cluster, b"5")
    assert values(target, 1) == [b"5"]
    last = cluster.asked(ApiKey.FETCH)[-1].message.topics[0]
    assert last.topic_id == cluster.ids["t"]
    assert (last.partitions[0].current_leader_epoch, last.partitions[0].last_fetched_epoch) == (5, 4)


def test_a_reader_notices_a_cut(cluster: ScriptedCluster, client: ClusterClient) -> None:
    target = reader(client)
    append(cluster, b"0", b"1", b"2")
    assert values(target, 3) == [b"0", b"1", b"2"]
    cluster.elect(T0, 2, lost=1)
    append(cluster, b"2'", b"3'")
    with pytest.raises(LogTruncatedError, match="read up to offset 3, but the log was cut at offset 2"):
        values(target, 1)


def test_an_epoch_without_records_is_no_cut_for_a_reader(cluster: ScriptedCluster, client: ClusterClient) -> None:
    target = reader(client)
    append(cluster, b"0")
    assert values(target, 1) == [b"0"]
    target.cursor.leader_epoch = 2
    cluster.elect(T0, 2)
    cluster.elect(T0, 3)
    cluster.elect(T0, 1)
    cluster.stored[T0].epochs = [(0, 0), (3, 1)]
    append(cluster, b"1")
    assert values(target, 1) == [b"1"]
