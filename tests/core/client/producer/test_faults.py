"""The producer's reaction to faults, as seen in the log of a scripted broker."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from klamm.core.client.network.request_router import Network
from klamm.core.client.producer.producer import Producer
from klamm.core.client.producer.record_accumulator import ProducerClosedError
from klamm.core.client.producer.sender import Sender
from klamm.core.errors import DeliveryError, ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.record import RecordMetadata
from klamm.core.transport.address import Address
from klamm.core.transport.interface import ByteStream
from klamm.core.transport.plaintext_stream import PlaintextStream, dial_plaintext
from klamm.plugins.codecs.gzip import GzipCodec
from klammtest.brokers.scripted import Fault, ScriptedBroker, scripted_broker

QUICK = {
    "linger.ms": 0,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
    "max.block.ms": 5_000,
}


@pytest.fixture
def broker(codecs: CodecTable) -> Iterator[ScriptedBroker]:
    with scripted_broker({"t": 1, "wide": 4}, codecs) as running:
        yield running


def producer(broker: ScriptedBroker, network: Network | None = None, **options: Any) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap, **QUICK, **{k.replace("_", "."): v for k, v in options.items()}}
    return Producer({"producer": config}, network=network)


def send_now(target: Producer, patience_s: float = 0.0) -> None:
    """All that waits, and does not wait longer until it is settled."""
    with contextlib.suppress(DeliveryError):
        target.flush(patience_s)


def send(target: Producer, count: int, start: int = 0, topic: str = "t") -> list[Future[RecordMetadata]]:
    """Each as a batch of its own."""
    futures = []
    for number in range(start, start + count):
        futures.append(target.send(topic, b"%d" % number))
        send_now(target)
    return futures


def numbers(*ranges: range) -> list[bytes]:
    return [b"%d" % number for part in ranges for number in part]


@pytest.mark.parametrize(
    "faults",
    [
        ["lost"],
        ["ok", "lost"],
        ["dropped", "dropped"],
        ["lost", "lost", "dropped", "lost"],
        [ErrorCode.not_leader_or_follower, "lost", ErrorCode.request_timed_out],
        [ErrorCode.leader_not_available, ErrorCode.unknown_topic_or_partition],
        [ErrorCode.not_enough_replicas_after_append],
        ["ok", ErrorCode.corrupt_message, "lost"],
    ],
)
def test_what_can_go_away_neither_loses_nor_doubles_nor_reorders(broker: ScriptedBroker, faults: list[Fault]) -> None:
    broker.faults.extend(faults)
    with producer(broker, batch_size=1) as target:
        futures = [target.send("t", b"%d" % number) for number in range(30)]
        target.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(30))
    assert broker.values("t") == numbers(range(30))


def test_a_request_without_an_answer_breaks_the_connection_and_goes_again(broker: ScriptedBroker) -> None:
    broker.faults.append("silent")
    with producer(broker, request_timeout_ms=1_000) as target:
        assert target.send("t", b"x").result(60).offset == 0
    assert broker.values("t") == [b"x"]
    assert broker.count(ApiKey.PRODUCE) == 2


def test_connections_that_break_while_sending(broker: ScriptedBroker) -> None:
    with producer(broker, batch_size=64) as target:
        futures = []
        for number in range(2000):
            futures.append(target.send("wide", b"%d" % number, key=b"%d" % (number % 7)))
            if number % 400 == 399:
                broker.disconnect()
        target.flush(60)
        assert all(future.exception(0) is None for future in futures)
    values = broker.values("wide")
    assert sorted(values, key=lambda v: int(v or b"")) == numbers(range(2000))
    for partition in range(4):
        stored = [int(value or b"") for value in broker.log("wide", partition).values]
        assert stored == sorted(stored)


def test_a_batch_that_fails_for_good_leaves_no_gap_for_the_others(broker: ScriptedBroker) -> None:
    broker.faults.extend(["ok", ErrorCode.invalid_record])
    with producer(broker, batch_size=1) as target:
        futures = [target.send("t", b"%d" % number) for number in range(10)]
        target.flush(60)
        failed = [number for number, future in enumerate(futures) if future.exception(0) is not None]
        assert failed == [1]
        with pytest.raises(DeliveryError, match=r"topic 't' partition 0: 1 record was not delivered: INVALID_RECORD"):
            futures[1].result()
    assert broker.values("t") == numbers(range(1), range(2, 10))
    assert broker.log("t").epochs_seen[-1] == 1


def test_lost_records_on_the_broker_are_told_and_the_producer_goes_on(broker: ScriptedBroker) -> None:
    with producer(broker) as target:
        target.send("t", b"0").result(60)
        target.send("t", b"1").result(60)
        broker.log("t").producers.clear()  # as after a crash that lost what was acknowledged
        with pytest.raises(DeliveryError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
            target.send("t", b"2").result(60)
        assert target.send("t", b"3").result(60).offset == 2
    assert broker.log("t").epochs_seen == [0, 0, 1]


def test_a_producer_that_the_broker_forgot_by_retention_goes_on(broker: ScriptedBroker) -> None:
    with producer(broker) as target:
        target.send("t", b"0").result(60)
        broker.log_start_offset = 1
        broker.log("t").producers.clear()
        broker.faults.append(ErrorCode.unknown_producer_id)
        assert target.send("t", b"1").result(60).offset == 1


def test_a_refused_epoch_gets_a_new_producer_id(broker: ScriptedBroker) -> None:
    with producer(broker) as target:
        target.send("t", b"0").result(60)
        broker.faults.append(ErrorCode.invalid_producer_epoch)
        assert target.send("t", b"1").result(60).offset == 1
    assert broker.count(ApiKey.INIT_PRODUCER_ID) == 2


def test_batches_that_are_too_large_are_split(broker: ScriptedBroker) -> None:
    broker.faults.extend([ErrorCode.message_too_large, ErrorCode.message_too_large])
    with producer(broker, linger_ms=1000) as target:
        futures = [target.send("t", b"%d" % number) for number in range(9)]
        target.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(9))
    assert broker.values("t") == numbers(range(9))


def test_a_single_record_that_the_broker_finds_too_large_fails(broker: ScriptedBroker) -> None:
    broker.faults.append(ErrorCode.message_too_large)
    with producer(broker) as target, pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
        target.send("t", b"x").result(60)


def test_delivery_timeout_is_raised_on_the_future_and_says_why(broker: ScriptedBroker) -> None:
    broker.faults.extend([ErrorCode.not_leader_or_follower] * 1000)
    with producer(broker, delivery_timeout_ms=2_000, request_timeout_ms=500) as target:
        future = target.send("t", b"x")
        with pytest.raises(
            DeliveryError, match=r"within delivery.timeout.ms \(2000 ms\); last: NOT_LEADER_OR_FOLLOWER"
        ):
            future.result(60)
        broker.faults.clear()
        assert target.send("t", b"y").result(60).offset == 0


def test_an_answer_that_never_came_is_said_to_be_in_doubt(broker: ScriptedBroker) -> None:
    broker.faults.extend(["silent"] * 1000)
    with producer(broker, delivery_timeout_ms=2_000, request_timeout_ms=500) as target:
        with pytest.raises(DeliveryError, match="it may be stored: its outcome is unknown"):
            target.send("t", b"x").result(60)
        broker.faults.clear()
        assert target.send("t", b"y").result(60).offset == 1
    assert broker.values("t") == [b"x", b"y"]


def test_retries_are_bounded_when_asked_for(broker: ScriptedBroker) -> None:
    broker.faults.extend([ErrorCode.leader_not_available] * 1000)
    with producer(broker, retries=2) as target, pytest.raises(DeliveryError, match="LEADER_NOT_AVAILABLE"):
        target.send("t", b"x").result(60)
    assert broker.count(ApiKey.PRODUCE) == 3


def test_without_idempotence_a_lost_answer_doubles_as_in_kafka(broker: ScriptedBroker) -> None:
    broker.faults.append("lost")
    with producer(broker, enable_idempotence=False, acks=1) as target:
        target.send("t", b"x").result(60)
    assert broker.values("t") == [b"x", b"x"]
    assert broker.count(ApiKey.INIT_PRODUCER_ID) == 0


def test_acks_0_is_done_when_it_is_written(broker: ScriptedBroker) -> None:
    with producer(broker, acks=0) as target:
        assert target.send("t", b"x").result(60).offset == -1
        assert target.send("t", b"y").result(60).offset == -1


def narrow(address: Address, timeout_s: float) -> ByteStream:
    """The kernel takes little at a time, so that most waits in the producer."""
    opened = socket.create_connection((address.host, address.port), timeout_s)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return PlaintextStream(opened)


@pytest.mark.parametrize("faults", [[], ["lost", "ok", "dropped"]])
def test_requests_that_are_written_in_pieces_arrive_whole(broker: ScriptedBroker, faults: list[Fault]) -> None:
    broker.faults.extend(faults)
    table = pa.table({"value": pa.array([b"%d" % n * 1000 for n in range(300)], pa.binary())})
    with producer(broker, Network(dial=narrow), batch_size=20_000) as target:
        futures = [target.send_arrow("wide", table) for _ in range(3)]
        assert [future.result(60).records for future in futures] == [300] * 3
    assert sorted(map(str, broker.values("wide"))) == sorted(3 * list(map(str, table["value"].to_pylist())))


def test_acks_0_waits_for_the_kernel_to_have_it_all(broker: ScriptedBroker) -> None:
    with producer(broker, Network(dial=narrow), acks=0, batch_size=100_000) as target:
        for _ in range(100):
            target.send("t", b"x" * 90_000)
        target.flush(60)
    deadline = time.monotonic() + 60
    while len(broker.values("t")) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)  # the scripted broker is still reading
    assert len(broker.values("t")) == 100


def test_closing_in_a_hurry_fails_what_is_left(broker: ScriptedBroker) -> None:
    target = producer(broker)
    target.send("t", b"x").result(60)
    broker.faults.extend(["silent"] * 1000)
    future = target.send("t", b"y")
    target.close(timeout_s=0.2)
    with pytest.raises(DeliveryError, match="the producer was closed before it was acknowledged"):
        future.result(0)


def test_flush_has_a_limit(broker: ScriptedBroker) -> None:
    broker.faults.extend([ErrorCode.leader_not_available] * 10)
    with producer(broker, retry_backoff_ms=100) as target:
        target.send("t", b"x")
        with pytest.raises(DeliveryError, match=r"1 record was not settled within 0\.01 s"):
            target.flush(0.01)


def test_a_broker_that_cannot_be_reached_at_first(broker: ScriptedBroker) -> None:
    dials = []

    def dial(address: Address, timeout_s: float) -> ByteStream:
        dials.append(address)
        if len(dials) in (2, 3, 4):
            raise ConnectionRefusedError(111, "Connection refused")
        return dial_plaintext(address, timeout_s)

    with producer(broker, Network(dial=dial)) as target:
        assert target.send("t", b"x").result(60).offset == 0


class NotAtFirst(PlaintextStream):
    """The first three cannot be made non-blocking."""

    refusals = 0

    def set_nonblocking(self) -> None:
        if NotAtFirst.refusals < 3:
            NotAtFirst.refusals += 1
            raise OSError(9, "Bad file descriptor")
        super().set_nonblocking()


def test_a_connection_that_breaks_as_it_is_made_is_made_again(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dial(address: Address, timeout_s: float) -> ByteStream:
        return NotAtFirst(socket.create_connection((address.host, address.port), timeout_s))

    monkeypatch.setattr(NotAtFirst, "refusals", 0)
    with producer(broker, Network(dial=dial)) as target:
        assert target.send("t", b"x").result(60).offset == 0
    assert NotAtFirst.refusals == 3


def test_an_unexpected_error_of_the_sender_fails_the_records_and_ends_the_producer(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records would otherwise be accepted, and their futures and `flush` would wait for ever."""

    def failing(*args: Any) -> None:
        raise KeyError("unexpected")

    said = "an unexpected error has ended the producer: KeyError('unexpected')"
    target = producer(broker)
    target.send("t", b"0").result(60)
    monkeypatch.setattr(Sender, "_write", failing)
    with pytest.raises(DeliveryError) as failed:
        target.send("t", b"1").result(60)
    with pytest.raises(ProducerClosedError) as refused:
        target.send("t", b"2")
    assert said in str(failed.value)
    assert str(refused.value) == f"{said}; nothing can be sent any more"
    target.flush(60)
    target.close(60)
    assert broker.values("t") == [b"0"]
    assert "Traceback" in caplog.text


def test_no_common_version_is_one_clear_line(broker: ScriptedBroker) -> None:
    broker.versions[ApiKey.PRODUCE] = (13, 14)
    with producer(broker) as target, pytest.raises(DeliveryError, match="no common version of PRODUCE"):
        target.send("t", b"x").result(60)


def test_a_codec_that_raises_refuses_its_batch_only(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    compress, reasons = GzipCodec.compress, ["no memory"]

    def raise_first(codec: GzipCodec, data: Any) -> bytes:
        if reasons:
            raise RuntimeError(reasons[0])
        return compress(codec, data)

    monkeypatch.setattr(GzipCodec, "compress", raise_first)
    with producer(broker, compression_type="gzip") as target:
        with pytest.raises(DeliveryError, match="it cannot be encoded: no memory"):
            target.send("t", b"x").result(60)
        reasons.clear()
        assert target.send("t", b"y").result(60).offset == 0


PASSING: list[Fault] = [
    "lost",
    "dropped",
    "silent",
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.message_too_large,
    ErrorCode.invalid_producer_epoch,
]
FINAL: list[Fault] = [ErrorCode.invalid_record, ErrorCode.topic_authorization_failed]


@pytest.mark.parametrize("seed", range(8))
def test_random_faults_store_what_is_acknowledged_once_and_in_order(broker: ScriptedBroker, seed: int) -> None:
    """A record that failed for good may be stored only if its error says so; all others are stored exactly once, in
    order.
    """
    chance = random.Random(seed)
    broker.faults.extend(
        chance.choice(PASSING) if chance.random() < 0.3 else chance.choice(FINAL) if chance.random() < 0.05 else "ok"
        for _ in range(120)
    )
    sent: dict[int, list[Future[RecordMetadata]]] = {number: [] for number in range(4)}
    with producer(broker, batch_size=chance.choice([1, 60, 300]), request_timeout_ms=400) as target:
        for _ in range(400):
            partition = chance.randrange(4)
            sent[partition].append(target.send("wide", b"%d" % len(sent[partition]), partition=partition))
            if chance.random() < 0.02:
                send_now(target, chance.random() / 100)
            if chance.random() < 0.01:
                broker.disconnect()
        target.flush(60)
    for partition, futures in sent.items():
        values = [int(value or b"") for value in broker.log("wide", partition).values]
        errors = {number: str(future.exception(0)) for number, future in enumerate(futures) if future.exception(0)}
        certain = [number for number in range(len(futures)) if number not in errors]
        assert [number for number in values if number not in errors] == certain
        unsure = {number for number in values if number in errors}
        assert all("it may be stored" in errors[number] for number in unsure)
        assert len(values) == len(set(values))
