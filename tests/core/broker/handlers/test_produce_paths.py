"""A Produce request does the same whether the fast path is on or off: the same answer, log, counters and wake-ups.

Generated requests go through the whole path of a request (`Dispatcher`) of two brokers' worth of logs. One reads all
requests the general way. No socket, no thread.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.core.broker.access import AccessControl
from klamm.core.broker.append_placement import AppendPlacement
from klamm.core.broker.delayed_reply import DelayedReply
from klamm.core.broker.handlers import dispatch
from klamm.core.broker.handlers import produce as handler
from klamm.core.broker.handlers.dispatch import Dispatcher
from klamm.core.broker.handlers.produce import produce_fast
from klamm.core.broker.handlers.table import APIS
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.refused_batches import RefusedBatches
from klamm.core.broker.replication.parked_fetch import ParkedFetch
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.request import ConnectionContext
from klamm.core.broker.services import Services
from klamm.core.broker.validation import Validation
from klamm.core.cluster.image import ClusterImage, TopicImage
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import ErrorCode, KlammError, ProtocolError
from klamm.core.interfaces.security.authorizer import AclOperation, AuthorizableRequestContext, ResourceType
from klamm.core.log.partition_log import PartitionLog
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.records.header import crc_of, set_crc
from klamm.core.records.native import IMPLEMENTATION
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Record
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch
from klammtest.logs import START_MS, ManualClock, batch, codec_table, read_all
from klammtest.requests import produce_fields

TOPICS: dict[str, dict[str, object]] = {
    "ordinary": {"segment_bytes": 30_000, "index_interval_bytes": 500},
    "ordinary too": {},
    "small": {"max_message_bytes": 300},
    "recent": {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 1000},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "compacted": {"cleanup_policy": "compact"},
    "recompressed": {"compression_type": "gzip"},
    "flushed": {"flush_messages": 3},
    "flushed later": {"flush_ms": 1000},
    "replicated": {"min_insync_replicas": 2},
    "verified": {"verify_payload": "all"},
    "validated": {},
    "denied": {},
}
TOPIC_IDS = {name: UUID(int=number) for number, name in enumerate(TOPICS, 1)}
REQUESTS = 150


class Polite:
    """Refuses a value with "rude" in it."""

    def applies_to(self, topic: str, config: Mapping[str, str]) -> bool:
        return topic == "validated"

    def validate(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        if any(b"rude" in (record.value or b"") for record in records):
            raise KlammError(f"{topic}-{partition} is polite")


class Denies:
    """Nobody writes to `denied`, but for Alice."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str]] = []

    def authorize(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        assert (operation, resource_type) == (AclOperation.WRITE, ResourceType.TOPIC)
        self.asked.append((context.principal, context.listener, context.client_id, name))
        return name != "denied" or context.principal == "User:alice"


class AtOnce:
    """Worker threads that are this thread."""

    def __init__(self) -> None:
        self.appends = AppendPlacement(lambda *_: None)

    async def disk_then(self, then: Callable[[Any], object], call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        then(result)
        return result

    validation_then = disk_then


class Broker:
    """As much of a broker as a Produce meets."""

    def __init__(self, folder: Path, *, fast: bool) -> None:
        self.clock = ManualClock()
        self.fast = fast
        self.metrics = BrokerMetrics()
        self.authorizer = Denies()
        self.validation = Validation([Polite()], codec_table(), 1 << 20)
        self.partitions = Partitions(self.metrics)
        self.logs = {name: self._lead(folder, TopicPartition(name, 0), config) for name, config in TOPICS.items()}
        services = SimpleNamespace(
            metrics=self.metrics,
            lease=SimpleNamespace(deadline_ns=2**63),
            access=AccessControl(self.authorizer),
            partitions=self.partitions,
            leadership=SimpleNamespace(
                image=ClusterImage("", -1, {}, {name: TopicImage(name, of, {}) for name, of in TOPIC_IDS.items()})
            ),
            config=SimpleNamespace(broker_id=0),
            advertised={},
            refused_batches=RefusedBatches(),
            validation=self.validation,
            workers=AtOnce(),
        )
        self.services = made = object.__new__(Services)
        vars(made).update(vars(services))
        self.dispatch = Dispatcher(made, APIS, produce_fast)

    def _lead(self, folder: Path, name: TopicPartition, config: Mapping[str, object]) -> PartitionLog:
        topic = TopicConfig.model_validate(config, by_name=True)
        log = PartitionLog.open(
            folder / str(name), name, TOPIC_IDS[name.topic], topic, self.clock, codecs=codec_table()
        )
        replicas = (0, 1) if topic.min_insync_replicas > 1 else (0,)
        settings = ReplicationSettings(topic.min_insync_replicas, 30_000)
        replica = Replica(0, name, log, self.metrics.traffic(name.topic), replicas, settings)
        leading = PartitionState(0, 3, 1, (0,), (), {0: "data"}, 0)
        replica.on_metadata(leading, 1, BrokerRegistration(0, 1, "here", ("data",)), replicas, settings)
        replica.validated = self.validation.applies_to(name.topic, topic)
        self.partitions.put(replica)
        return log

    async def answer(self, principal: str, frame: bytes) -> object:
        """The bytes of the response, None, or the words of the error that closes the connection."""
        parked = [ParkedFetch(200) for _ in self.partitions]
        for led, fetch in zip(self.partitions, parked, strict=True):
            led.park(fetch)
        try:
            with pytest.MonkeyPatch.context() as patch:
                if not self.fast:
                    patch.setattr(dispatch, "read_fast_produce_request", lambda _: None)
                connection = ConnectionContext(1, "INTERNAL", "there:1", principal, throttle_ms=7)
                reply = self.dispatch(connection, bytearray(frame))
            if asyncio.iscoroutine(reply):
                reply = await cast("Coroutine[Any, Any, list[bytes] | None]", reply)
            said: object = None if reply is None else b"".join(cast("list[bytes]", reply))
        except ProtocolError as error:
            said = str(error)
        await asyncio.sleep(0)  # what another thread would have woken
        woken = [fetch._woken.done() for fetch in parked]
        for led, fetch in zip(self.partitions, parked, strict=True):
            led.unpark(fetch)
        return said, woken

    def state(self) -> dict[str, object]:
        """All that a Produce may change."""
        traffic = {
            topic: [getattr(counted, name) for name in counted.__slots__]
            for topic, counted in self.metrics.topics.items()
        }
        bounds = {
            name: (log.log_start_offset, log.log_end_offset, log.high_watermark, log.leader_epoch, log.size)
            for name, log in self.logs.items()
        }
        requests = {api.name: sum(times.buckets) for api, times in self.metrics.requests.items()}
        return {"traffic": traffic, "errors": +self.metrics.errors, "bounds": bounds, "requests": requests}


def some_batch(rng: random.Random, sequences: Counter[int]) -> bytes | None:
    """Mostly what clients send; now and then with a producer id, a codec, odd timestamps, or damaged."""
    if rng.random() < 0.03:
        return rng.choice((None, b"", b"short", bytes(61)))
    values = [
        rng.choice((b"", b"rude", rng.randbytes(rng.choice((10, 100, 5000))))) for _ in range(rng.choice((1, 1, 2, 5)))
    ]
    stamp = START_MS + rng.choice((0, 0, 0, -5, -5000, 5000, -START_MS - 1))
    codec = codec_table().by_name("zstd") if rng.random() < 0.2 else None
    producer = (-1, -1, -1)
    if rng.random() < 0.3:
        number = rng.randrange(3)
        producer = (number, 0, sequences[number] if rng.random() < 0.8 else rng.randrange(4))
        sequences[number] += len(values)
    key = None if rng.random() < 0.3 else b"key"
    raw = batch(values, timestamp_ms=stamp, codec=codec, key=key, producer=producer)
    if rng.random() < 0.1:  # a header that lies, or a wrong CRC
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.7 and len(raw) >= 61:
            set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    return bytes(raw)


def some_request(rng: random.Random, sequences: Counter[int]) -> bytes:
    """A frame without its length: most are of one batch for one partition."""
    version, acks = (
        rng.choice((*range(3, 14), 13, 13)),
        rng.choice((1, -1, -1, 1, 1, 0, 2) if rng.random() < 0.3 else (1, -1)),
    )
    names = rng.choices(list(TOPICS), k=1 if rng.random() < 0.8 else 3)
    batches: dict[tuple[str, int], bytes | None] = {
        (name if rng.random() < 0.97 else "unknown", rng.random() < 0.03): some_batch(rng, sequences) for name in names
    }
    schema = messages.request(ApiKey.PRODUCE, version)
    transactional_id = "x" if rng.random() < 0.02 else None
    fields = produce_fields(batches, acks, version, transactional_id, TOPIC_IDS)
    body = schema.encode(schema.build(**fields))
    client = rng.choice((None, "", "me", "größe"))
    frame = bytearray(request_frame(ApiKey.PRODUCE, version, rng.randrange(1000), client, body)[4:])
    if rng.random() < 0.05:
        frame[rng.randrange(2, len(frame))] ^= 1 << rng.randrange(8)
    return bytes(frame)


def count_fast_answers(patch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    write = handler.write_fast_produce_response

    def noted(*values: Any) -> bytes:
        counted["fast"] += 1
        return write(*values)

    patch.setattr(handler, "write_fast_produce_response", noted)
    return counted


needs_fast_path = pytest.mark.skipif(IMPLEMENTATION != "native", reason="the fast path is in the compiled module")


@needs_fast_path
@pytest.mark.parametrize("seed", range(4))
def test_both_paths_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    counted = count_fast_answers(monkeypatch)

    async def compare() -> None:
        rng, sequences = random.Random(seed), Counter[int]()
        fast, general = (Broker(tmp_path / way, fast=way == "fast") for way in ("fast", "general"))
        for number in range(REQUESTS):
            frame, principal = some_request(rng, sequences), rng.choice(("User:alice", "User:ANONYMOUS"))
            said = await fast.answer(principal, frame)
            assert said == await general.answer(principal, frame), f"request {number}: {frame!r}"
            assert fast.state() == general.state(), f"request {number}: {frame!r}"
            passed_ms = rng.randrange(50)
            for broker in (fast, general):
                broker.clock.advance(passed_ms)
        assert fast.authorizer.asked == general.authorizer.asked
        assert {client for _, _, client, _ in fast.authorizer.asked} == {"", "me", "größe"}
        assert fast.metrics.errors.total() > 10
        for name, log in fast.logs.items():
            assert read_all(log) == read_all(general.logs[name])
            log.close()
            general.logs[name].close()
        assert files(tmp_path / "fast") == files(tmp_path / "general")

    asyncio.run(compare())
    assert REQUESTS / 6 < counted["fast"] < REQUESTS


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_fast_path), False], ids=["fast", "general"])
@pytest.mark.parametrize("acks", [1, -1])
def test_an_authorizer_is_asked_on_both_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, acks: int
) -> None:
    counted = count_fast_answers(monkeypatch)
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({("denied", 0): bytes(batch())}, acks)))
    frame = request_frame(ApiKey.PRODUCE, 9, 5, "me", body)[4:]

    async def ask() -> tuple[int, int]:
        broker = Broker(tmp_path, fast=fast)
        await broker.answer("User:ANONYMOUS", frame)
        refused = broker.logs["denied"].log_end_offset
        await broker.answer("User:alice", frame)
        assert broker.authorizer.asked == [
            (who, "INTERNAL", "me", "denied") for who in ("User:ANONYMOUS", "User:alice")
        ]
        assert [error.name for _, error in +broker.metrics.errors] == ["topic_authorization_failed"]
        return refused, broker.logs["denied"].log_end_offset

    assert asyncio.run(ask()) == (0, 1)
    assert counted["fast"] == fast


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
def test_a_request_that_waits_for_followers_holds_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """256 may wait on one connection."""
    if not fast:
        monkeypatch.setattr(dispatch, "read_fast_produce_request", lambda _: None)
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({("replicated", 0): bytes(batch())}, -1)))
    frame = bytearray(request_frame(ApiKey.PRODUCE, 9, 5, "me", body)[4:])

    async def ask() -> object:
        broker = Broker(tmp_path, fast=fast)
        replica = broker.partitions.find("replicated", 0)
        assert replica is not None
        both = PartitionState(0, 4, 1, (0, 1), (), {0: "data", 1: "data"}, 0)
        settings = ReplicationSettings(2, 30_000)
        own, follower = (BrokerRegistration(id_, 1, "here", ("data",)) for id_ in (0, 1))
        replica.on_metadata(both, 2, own, (0, 1), settings)
        reply = broker.dispatch(ConnectionContext(1, "INTERNAL", "there:1", "User:alice"), frame)
        assert isinstance(reply, DelayedReply)
        frame.clear()  # BufferError while there is a view of it
        assert not reply.is_ready
        assert replica.leader is not None
        assert replica.leader.on_fetch(ReplicaFetch(1, 1, 4, 1, 4), follower, 0.0) is None
        replica.complete()
        assert reply.is_ready
        return reply.take()

    assert isinstance(asyncio.run(ask()), list)


def test_what_was_not_committed_is_answered_alike_on_both_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({("replicated", 0): bytes(batch())}, -1)))
    frame = request_frame(ApiKey.PRODUCE, 9, 5, "me", body)[4:]

    async def ask(folder: Path, *, fast: bool) -> tuple[bytes, dict[tuple[ApiKey, ErrorCode], int]]:
        broker = Broker(folder, fast=fast)
        replica = broker.partitions.find("replicated", 0)
        assert replica is not None
        both = PartitionState(0, 4, 1, (0, 1), (), {0: "data", 1: "data"}, 0)
        own, settings = BrokerRegistration(0, 1, "here", ("data",)), ReplicationSettings(2, 30_000)
        replica.on_metadata(both, 2, own, (0, 1), settings)
        reply = broker.dispatch(ConnectionContext(1, "INTERNAL", "there:1", "User:alice"), bytearray(frame))
        assert isinstance(reply, DelayedReply)
        replica.rest()
        pieces = reply.take()
        assert isinstance(pieces, list)
        return b"".join(pieces), dict(+broker.metrics.errors)

    answered = asyncio.run(ask(tmp_path / "fast", fast=True))
    monkeypatch.setattr(dispatch, "read_fast_produce_request", lambda _: None)
    assert answered == asyncio.run(ask(tmp_path / "slow", fast=False))
    assert answered[1] == {(ApiKey.PRODUCE, ErrorCode.not_leader_or_follower): 1}


class Deposing(AtOnce):
    """Worker threads that come to a call only after another broker has been elected."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica

    async def disk_then(self, then: Callable[[Any], object], call: Callable[..., Any], *args: Any) -> Any:
        elected = PartitionState(1, 4, 1, (0, 1), (), {0: "data", 1: "data"}, 0)
        own, settings = BrokerRegistration(0, 1, "here", ("data",)), ReplicationSettings(1, 30_000)
        self._replica.on_metadata(elected, 2, own, (0, 1), settings)
        return await super().disk_then(then, call, *args)

    validation_then = disk_then


@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_that_comes_too_late_for_its_leader_epoch_is_sent_to_the_new_leader(tmp_path: Path, acks: int) -> None:
    """Not FENCED_LEADER_EPOCH, for which librdkafka gives a batch up: a Produce names no epoch that could be old."""
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({("validated", 0): bytes(batch())}, acks)))
    frame = request_frame(ApiKey.PRODUCE, 9, 5, "me", body)[4:]

    async def ask() -> list[str]:
        broker = Broker(tmp_path, fast=True)
        replica = broker.partitions.find("validated", 0)
        assert replica is not None
        vars(broker.services)["workers"] = Deposing(replica)
        reply = broker.dispatch(ConnectionContext(1, "INTERNAL", "there:1", "User:alice"), bytearray(frame))
        assert asyncio.iscoroutine(reply)
        await reply
        assert broker.logs["validated"].log_end_offset == 0
        return [error.name for _, error in +broker.metrics.errors]

    assert asyncio.run(ask()) == ["not_leader_or_follower"]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
def test_a_refusal_ends_with_what_was_stored_at_another_leader_meanwhile(tmp_path: Path, fast: bool) -> None:
    """The batch 1 was refused here, stored at another leader, and replicated; this broker leads again."""
    schema = messages.request(ApiKey.PRODUCE, 9)

    def sent(sequence: int) -> bytes:
        data = bytes(batch(producer=(7, 0, sequence)))
        body = schema.encode(schema.build(**produce_fields({("ordinary", 0): data}, 1)))
        return request_frame(ApiKey.PRODUCE, 9, 5, "me", body)[4:]

    async def ask() -> list[str]:
        broker = Broker(tmp_path, fast=fast)
        log, refused = broker.logs["ordinary"], broker.services.refused_batches
        log.append_as_leader(batch(producer=(7, 0, 0)), 3, commit=True)
        data = memoryview(batch(producer=(7, 0, 1)))
        refused.note("ordinary", 0, data, ErrorCode.not_leader_or_follower)
        await broker.answer("User:alice", sent(2))
        log.append_as_leader(data, 3, commit=True)
        await broker.answer("User:alice", sent(2))
        assert log.log_end_offset == 3
        assert not refused.known
        return [error.name for _, error in broker.metrics.errors.elements()]

    assert asyncio.run(ask()) == ["not_leader_or_follower"]
