"""A running producer and a running consumer that move from one cluster to another, as docs/mirror.md describes ("Move a
running Kafka cluster to Klamm"), and their pauses. Both are confluent-kafka's; each runs on a thread of its own.

`move` is the procedure itself, for a source of Klamm (the suite) and for Apache Kafka (`bench/move_from_kafka.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import confluent_kafka

from klamm.testing.waiting import eventually

__all__ = ["Moved", "MovingConsumer", "MovingProducer", "move"]

_QUIET: Final = {"log_level": 0, "reconnect.backoff.max.ms": 500}


class _Moving:
    """Work on a thread, of which `at` notes when each item was done."""

    def __init__(self) -> None:
        self.first_at = self.last_at = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def start(self, bootstrap: str) -> None:
        """Works at this cluster, from now on."""
        self._stopping.clear()
        self.first_at = 0.0
        self._thread = threading.Thread(target=self._guarded, args=(bootstrap,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the work in order. Raises what it has failed with."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(60)
        if self._failed is not None:
            raise self._failed

    def done(self) -> None:
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at

    def _guarded(self, bootstrap: str) -> None:
        try:
            self._run(bootstrap)
        except BaseException as error:
            self._failed = error

    def _run(self, bootstrap: str) -> None:
        raise NotImplementedError


class MovingProducer(_Moving):
    """Sends the values 0, 1, … with `per_second` of them; `acknowledged` are those that a broker has acknowledged."""

    def __init__(self, topic: str, per_second: int) -> None:
        super().__init__()
        self.acknowledged: set[int] = set()
        self._topic = topic
        self._interval_s = 1 / per_second
        self._next = 0

    def _run(self, bootstrap: str) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **_QUIET}
        )

        def acknowledged(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                self.acknowledged.add(int(message.value() or b""))
                self.done()

        while not self._stopping.wait(self._interval_s):
            producer.produce(self._topic, str(self._next), str(self._next % 100), on_delivery=acknowledged)
            self._next += 1
            producer.poll(0)
        assert producer.flush(60) == 0, "records were not acknowledged within 60 s"


class MovingConsumer(_Moving):
    """A group of one consumer that commits what it has processed; `processed` counts each value."""

    def __init__(self, topic: str, group: str) -> None:
        super().__init__()
        self.processed: Counter[int] = Counter()
        self._topic = topic
        self._group = group

    def _run(self, bootstrap: str) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": self._group, "enable.auto.commit": False,
             "auto.offset.reset": "earliest", **_QUIET}
        )  # fmt: skip
        consumer.subscribe([self._topic])
        try:
            uncommitted = 0
            while not self._stopping.is_set():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self.processed[int(message.value() or b"")] += 1
                    self.done()
                    uncommitted += 1
                if uncommitted >= 100:
                    consumer.commit(asynchronous=False)
                    uncommitted = 0
            if uncommitted:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()


class Moved(NamedTuple):
    """Seconds from the last record that was processed, or acknowledged, at the old cluster to the first at the new one;
    and what is wrong."""

    consumer_pause_s: float
    producer_pause_s: float
    acknowledged: int
    problems: list[str]


def move(
    source: str,
    target: str,
    topic: str,
    offsets_are_copied: Callable[[], object],
    promote: Callable[[], None],
    *,
    per_second: int = 200,
    records: int = 200,
) -> Moved:
    """Moves the consumer, then the producer, each after `records` more at either cluster.

    `offsets_are_copied` returns True once the group's offsets of `source` are at `target`; `promote` ends the mirror.
    """
    producer, consumer = MovingProducer(topic, per_second), MovingConsumer(topic, "load.moving")
    producer.start(source)
    consumer.start(source)

    def both_work() -> None:
        sent, seen = len(producer.acknowledged), len(consumer.processed)
        eventually(lambda: len(producer.acknowledged) >= sent + records, "the producer works")
        eventually(lambda: len(consumer.processed) >= seen + records, "the consumer works")

    try:
        both_work()
        consumer.stop()
        before = consumer.last_at
        eventually(offsets_are_copied, "the group's offsets are copied")
        consumer.start(target)
        both_work()
        consumer_pause_s = consumer.first_at - before
        producer.stop()
        before = producer.last_at
        promote()
        producer.start(target)
        both_work()
        producer_pause_s = producer.first_at - before
    finally:
        producer.stop()
    eventually(lambda: set(consumer.processed) >= producer.acknowledged, "the consumer has everything")
    consumer.stop()
    twice = sorted(value for value, count in consumer.processed.items() if count > 1)
    unknown = sorted(set(consumer.processed) - producer.acknowledged)
    wrong = {"were processed twice": twice, "were never acknowledged": unknown}
    problems = [f"{len(found)} records {what}, as {found[:5]}" for what, found in wrong.items() if found]
    return Moved(consumer_pause_s, producer_pause_s, len(producer.acknowledged), problems)
