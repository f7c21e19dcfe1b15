"""`make faults`: the broker killed with -9 at random moments while Produce requests are in flight.

Two campaigns, one with confluent-kafka's idempotent producer and one with Klamm's own, acks=all. A proxy in front of
the broker counts unanswered Produce requests: a kill happens only while at least two are. Afterwards every partition
is read back and held against what was acknowledged: values, offsets and order.

    campaign NAME injected N acknowledged N lost N duplicated N reordered N

Exit 1 on any anomaly. `--plant` cuts one acknowledged batch off a log before the check, which must then fail.
`--seed` replays the random moments.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, free_port, running_broker
from klammtest.history import History, Outcome, Send, check
from klammtest.proxy import ProduceProxy

TOPIC = "campaign"
PARTITIONS = 6
IN_FLIGHT = 2
ROUND_LIMIT_S = 120.0


class Sender(Protocol):
    """A producer of one of the clients: `send` never blocks for long, `flush` waits for all, `close` ends it."""

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


SENDERS: dict[str, Callable[[str], Sender]] = {"kill9-confluent-kafka": ConfluentSender, "kill9-klamm": KlammSender}


class Campaign:
    """One client, one broker, `rounds` kills spread over `records` records."""

    def __init__(self, name: str, rounds: int, records: int, chance: random.Random) -> None:
        self.name, self.rounds, self.records, self.chance = name, rounds, records, chance
        self.history = History()
        self.injected = 0

    def run(self, broker: RunningBroker, proxy: ProduceProxy, *, plant: bool) -> bool:
        sender = SENDERS[self.name](f"127.0.0.1:{proxy.port}")
        values = itertools.count()
        for _ in range(self.rounds):
            self._round(sender, broker, proxy, values)
        sender.close()
        if plant:
            broker.kill()
            cut_last_batch(broker.log_dir / f"{TOPIC}-0")
            broker.restart()
        for events in self.history.partitions.values():
            events.sends.sort(
                key=lambda s: s.value
            )  # recorded as they were answered; values count up as they were sent
        verdict = check(self.history, read_back(broker.bootstrap))
        print(verdict.line(self.name, self.injected), flush=True)
        for anomaly in verdict.anomalies[:5]:
            print(f"  {anomaly.kind} {anomaly.partition}: {anomaly.detail}", file=sys.stderr)
        return not verdict.anomalies and self.injected == self.rounds and verdict.acknowledged >= self.records

    def _round(self, sender: Sender, broker: RunningBroker, proxy: ProduceProxy, values: Iterator[int]) -> None:
        """A round's share of records; somewhere among them the broker dies with requests in flight, and comes back.
        Records go on until it did: a kill waits for a moment with enough in flight."""
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
                return  # the round then lacks its kill, and the campaign fails for it
            time.sleep(0.0002)
        broker.kill()
        self.injected += 1
        broker.restart()


def cut_last_batch(partition: Path) -> None:
    """What `--plant` does: the last whole batch of the newest segment is gone, as if it had never been written."""
    segment = [s for s in sorted(partition.glob("*.log")) if s.stat().st_size][-1]
    last = max(position for position, _ in iter_headers(segment.read_bytes()))
    with segment.open("r+b") as file:
        file.truncate(last)


def read_back(bootstrap: str) -> dict[TopicPartition, list[tuple[int, str | int]]]:
    """Every partition from its start to its end, by confluent-kafka's consumer."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quick", action="store_true", help="2 kills and 40,000 records each, as the tests run it")
    parser.add_argument("--only", choices=sorted(SENDERS), action="append")
    arguments = parser.parse_args()
    rounds, records = (2, 40_000) if arguments.quick else (10, 500_000)
    print(f"faults: seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    passed = True
    for name in arguments.only or SENDERS:
        with (
            tempfile.TemporaryDirectory(prefix="klamm-faults-") as folder,
            proxied_broker(Path(folder)) as (broker, proxy),
        ):
            passed &= Campaign(name, rounds, records, chance).run(broker, proxy, plant=arguments.plant)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
