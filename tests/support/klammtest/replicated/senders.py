"""Producers that record what they send: Klamm's own and confluent-kafka's, both idempotent with acks=all.

Each runs in a thread of its own and sends numbers to each partition in turn. A value is the producer's number times
10^9 and a count, so that every record of a history has another value.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as ConfluentProducer

import klamm
from klamm.core.errors import BrokerError, DeliveryError
from klamm.core.records.partition import TopicPartition
from klammtest.history import History, Outcome, Send
from klammtest.waiting import within

_log = logging.getLogger(__name__)
DELIVERY_MS: Final = 120_000
_SPAN: Final = 1_000_000_000
_MOST_UNANSWERED: Final = 400

Done = Callable[[str | None, int], None]
"""Receives the name of the error, or None and the offset."""


class Client(Protocol):
    """A producer of one library. `send` may block while its buffer is full; `serve` runs callbacks."""

    def send(self, topic: str, partition: int, value: bytes, done: Done) -> None: ...

    def serve(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        """Waits until every record is acknowledged or given up."""
        ...


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        self._producer = ConfluentProducer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5,
             "delivery.timeout.ms": DELIVERY_MS, "reconnect.backoff.max.ms": 500, "retry.backoff.ms": 50,
             "retry.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 5_000,
             "socket.connection.setup.timeout.ms": 3_000, "socket.timeout.ms": 10_000, "log_level": 0}
        )  # fmt: skip

    def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            done(error.name() if error else None, -1 if offset is None else max(offset, -1))

        while True:
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:  # a fatal error of an idempotent producer
                raise RuntimeError(f"confluent-kafka: {error}") from error

    def serve(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)

    def close(self) -> None:
        self._producer.flush(DELIVERY_MS / 1000 + 30)


class Klamm:
    def __init__(self, bootstrap: str) -> None:
        self._producer = klamm.Producer(
            {"producer": {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5,
                          "delivery.timeout.ms": DELIVERY_MS, "request.timeout.ms": 10_000}}
        )  # fmt: skip

    def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        def answered(future: Any) -> None:
            error = future.exception()
            done(None if error is None else _name(error), -1 if error is not None else future.result().offset)

        self._producer.send(topic, value, partition=partition).add_done_callback(answered)

    def serve(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        self._producer.close(DELIVERY_MS / 1000 + 30)


def _name(error: BaseException) -> str:
    """Returns the error's code, or its class; a record that was not delivered says why."""
    if isinstance(error, DeliveryError):
        _log.warning("%s; cause: %r", error, error.__cause__)
    return error.code.name.upper() if isinstance(error, BrokerError) else type(error).__name__


class Sender:
    """One producer in a thread. `rate`: records a second, over all partitions."""

    def __init__(
        self, name: str, number: int, make: Callable[[], Client], topic: str, partitions: int, history: History,
        rate: float,
    ) -> None:  # fmt: skip
        self.name = name
        self._number, self._make, self._topic, self._history = number, make, topic, history
        self._partitions, self._pause_s = partitions, 1.0 / rate
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._unanswered = 0
        self.errors: dict[str, int] = {}
        """Records that were not acknowledged, by the error's name."""
        self.failure: BaseException | None = None
        self._sent_at = [-1.0] * partitions
        """By partition: when the newest acknowledged record was sent."""
        self.longest_gap_s = 0.0
        self._last_ack = [time.monotonic()] * partitions
        self._thread = threading.Thread(target=self._run, name=f"sender-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            client = self._make()
            count = 0
            while not self._stopping.is_set():
                partition = count % self._partitions
                self._send(client, partition, self._number * _SPAN + count)
                count += 1
                client.serve(self._pause_s)
                while self._unanswered >= _MOST_UNANSWERED and not self._stopping.is_set():
                    client.serve(0.05)
            client.close()
        except BaseException as error:
            self.failure = error

    def _send(self, client: Client, partition: int, value: int) -> None:
        start = time.monotonic()

        def done(error: str | None, offset: int) -> None:
            end, outcome = time.monotonic(), Outcome.of(error)
            event = Send(self.name, value, outcome, offset, start, end)
            self._history.send(TopicPartition(self._topic, partition), event)
            with self._lock:
                self._unanswered -= 1
                if error is None:
                    self._sent_at[partition] = max(self._sent_at[partition], start)
                    self.longest_gap_s = max(self.longest_gap_s, end - self._last_ack[partition])
                    self._last_ack[partition] = end
                else:
                    self.errors[error] = self.errors.get(error, 0) + 1

        with self._lock:
            self._unanswered += 1
        client.send(self._topic, partition, b"%d" % value, done)

    def begin_gap(self) -> None:
        """Measures the longest time without an acknowledgement of one partition from now on."""
        with self._lock:
            self.longest_gap_s, self._last_ack = 0.0, [time.monotonic()] * self._partitions

    def progressed(self, since: float, partitions: set[int] | None = None) -> bool:
        """Returns True if a record that was sent to each partition after `since` is acknowledged."""
        if self.failure is not None:
            raise RuntimeError(f"the producer {self.name} ended: {self.failure!r}") from self.failure
        return all(at > since for n, at in enumerate(self._sent_at) if partitions is None or n in partitions)

    def await_progress(self, limit_s: float, partitions: set[int] | None = None) -> bool:
        """Waits until a record that is sent from now on is acknowledged in each partition, or in each of these."""
        now = time.monotonic()
        return within(lambda: self.progressed(now, partitions), limit_s)

    def stop(self) -> None:
        """Sends no more, and waits until all are answered. Raises what ended the producer."""
        self._stopping.set()
        self._thread.join(DELIVERY_MS / 1000 + 60)
        if self._thread.is_alive():
            raise RuntimeError(f"the producer {self.name} does not end")
        if self.failure is not None:
            raise RuntimeError(f"the producer {self.name} ended: {self.failure!r}") from self.failure
