"""The broker is killed with -9 at random moments while Produce requests of a real client are in flight.

With confluent-kafka's idempotent producer and with Klamm's own, acks=all. A proxy in front of the broker counts
unanswered Produce requests: a kill happens only while at least two are in flight. Afterwards every partition is read
back and compared with what was acknowledged: values, offsets and order.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness import Result, Run
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.history import History, Outcome, Send, Verdict, check
from klammtest.ports import free_port
from klammtest.proxies.produce import ProduceProxy

TOPIC = "campaign"
PARTITIONS = 6
IN_FLIGHT = 2
ROUND_LIMIT_S = 120.0


class Sender(Protocol):
    """A producer of one of the clients: `send` never blocks for long, `flush` waits for all acknowledgements, `close`
    ends it.
    """

    def send(self, partition: int, value: bytes, done: Callable[[int, Exception | None], None]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class ConfluentSender:
    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2,
             "batch.size": 8_192, "message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 500,
             "log_level": 2}
        )  # fmt: skip

    def send(self, partition: int, value: bytes, done: Callable[[int, Exception | None], None]) -> None:
        def delivered(error: object, message: object) -> None:
            done(message.offset(), RuntimeError(str(error)) if error else None)  # type: ignore[attr-defined]

        while True:
            try:
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
                break
            except BufferError:
                self._producer.poll(0.05)
        self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(ROUND_LIMIT_S):
            raise RuntimeError("confluent-kafka did not deliver everything in time")

    def close(self) -> None:
        self.flush()


class KlammSender:
    def __init__(self, bootstrap: str) -> None:
        import klamm

        self._producer = klamm.Producer(
            {"producer": {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2,
                          "batch.size": 8_192, "delivery.timeout.ms": 120_000}}
        )  # fmt: skip

    def send(self, partition: int, value: bytes, done: Callable[[int, Exception | None], None]) -> None:
        def delivered(future: object) -> None:
            error = future.exception()  # type: ignore[attr-defined]
            done(-1 if error else future.result().offset, error)  # type: ignore[attr-defined]

        self._producer.send(TOPIC, value, partition=partition).add_done_callback(delivered)

    def flush(self) -> None:
        self._producer.flush(ROUND_LIMIT_S)

    def close(self) -> None:
        self._producer.close()


class KillNine:
    """One client, one broker, `rounds` kills spread over `records` records."""

    injects = "kill -9 of a real broker while at least two Produce requests of a real client are unanswered"
    asserts = "acks=all, idempotent: nothing acknowledged is lost, doubled, moved or out of order"
    plants = "the last batch of a partition is cut off its log"
    tools = ()

    def __init__(self, name: str, sender: Callable[[str], Sender]) -> None:
        self.name, self._sender = name, sender

    def run(self, run: Run) -> Result:
        rounds, records = (2, 40_000) if run.quick else (10, 500_000)
        with (
            # on a disk: the logs are too large for a file system in memory
            tempfile.TemporaryDirectory(prefix="klamm-faults-") as folder,
            proxied_broker(Path(folder)) as (broker, proxy),
        ):
            return Rounds(rounds, records, run.chance("all")).run(self._sender, broker, proxy, plant=run.plant)


class Rounds:
    def __init__(self, rounds: int, records: int, chance: random.Random) -> None:
        self.rounds, self.records, self.chance = rounds, records, chance
        self.history = History()
        self.injected = 0

    def run(
        self, sending: Callable[[str], Sender], broker: RunningBroker, proxy: ProduceProxy, *, plant: bool
    ) -> Result:
        sender = sending(f"127.0.0.1:{proxy.port}")
        values = itertools.count()
        for _ in range(self.rounds):
            self._round(sender, broker, proxy, values)
        sender.close()
        if plant:
            broker.kill()
            cut_last_batch(broker.log_dir / f"{TOPIC}-0")
            broker.restart()
        for events in self.history.partitions.values():
            # recorded in the order of the responses; values count up as they were sent
            events.sends.sort(key=lambda s: s.value)
        return self._result(check(self.history, read_back(broker.bootstrap)))

    def _result(self, verdict: Verdict) -> Result:
        result = Result(wanted=self.rounds, injected=self.injected, acknowledged=verdict.acknowledged)
        result.lost = verdict.count("lost")
        result.figures = {kind: verdict.count(kind) for kind in ("duplicated", "reordered")}
        for anomaly in verdict.anomalies:
            if anomaly.kind in ("phantom", "offset"):
                result.corrupt(anomaly.kind, f"{anomaly.partition}: {anomaly.detail}")
            else:
                result.wrong(anomaly.kind, f"{anomaly.partition}: {anomaly.detail}")
        if verdict.acknowledged < self.records:
            result.wrong("all", f"{verdict.acknowledged} records acknowledged, {self.records} wanted")
        return result

    def _round(self, sender: Sender, broker: RunningBroker, proxy: ProduceProxy, values: Iterator[int]) -> None:
        """Sends a round's share of records while the broker is killed with requests in flight and restarted.

        Sending continues until that has happened: the kill waits for a moment with enough requests in flight.
        """
        share = self.records // self.rounds
        kill_after = int(share * self.chance.uniform(0.1, 0.8))
        killer = threading.Thread(target=self._kill, args=(broker, proxy))
        for sent, value in enumerate(values):
            if sent == kill_after:
                killer.start()
            partition = value % PARTITIONS
            sender.send(partition, b"%09d" % value, self._recorder(partition, value))
            if sent + 1 >= share and not killer.is_alive():
                break
        sender.flush()

    def _recorder(self, partition: int, value: int) -> Callable[[int, Exception | None], None]:
        def done(offset: int, error: Exception | None) -> None:
            outcome = Outcome.OK if error is None else Outcome.UNKNOWN
            self.history.send(TopicPartition(TOPIC, partition), Send(f"p{partition}", value, outcome, offset))

        return done

    def _kill(self, broker: RunningBroker, proxy: ProduceProxy) -> None:
        time.sleep(self.chance.uniform(0.0, 0.05))
        deadline = time.monotonic() + ROUND_LIMIT_S / 4
        while proxy.in_flight < IN_FLIGHT:
            if time.monotonic() > deadline:
                return  # without a kill in this round the campaign fails
            time.sleep(0.0002)
        broker.kill()
        self.injected += 1
        broker.restart()


def cut_last_batch(partition: Path) -> None:
    """`--plant`: removes the last whole batch of the newest segment."""
    segment = [s for s in sorted(partition.glob("*.log")) if s.stat().st_size][-1]
    last = max(position for position, _ in iter_headers(segment.read_bytes()))
    with segment.open("r+b") as file:
        file.truncate(last)


def read_back(bootstrap: str) -> dict[TopicPartition, list[tuple[int, str | int]]]:
    """Reads every partition from start to end, with confluent-kafka's consumer."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "log_level": 2}
    )
    stored: dict[TopicPartition, list[tuple[int, str | int]]] = {}
    for p in range(PARTITIONS):
        _, end = consumer.get_watermark_offsets(Partition(TOPIC, p), timeout=30)
        rows: list[tuple[int, str | int]] = []
        consumer.assign([Partition(TOPIC, p, 0)])
        deadline = time.monotonic() + ROUND_LIMIT_S
        while (rows[-1][0] + 1 if rows else 0) < end and time.monotonic() < deadline:
            rows += [(m.offset(), int(m.value())) for m in consumer.consume(50_000, 0.5)]
        stored[TopicPartition(TOPIC, p)] = rows
    consumer.close()
    return stored


@contextmanager
def proxied_broker(folder: Path) -> Iterator[tuple[RunningBroker, ProduceProxy]]:
    port = free_port()
    with (
        running_broker(
            folder,
            topics={TOPIC: {"partitions": PARTITIONS}},
            broker={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"},
        ) as broker,
        ProduceProxy(port, broker.port) as proxy,
    ):
        yield broker, proxy


CAMPAIGNS = [KillNine("kill9-confluent-kafka", ConfluentSender), KillNine("kill9-klamm", KlammSender)]
