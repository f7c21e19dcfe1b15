"""Consumers and observers that record what they are told, each in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Partition

import klamm
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.history import History, Leadership, Poll, Watermark
from klammtest.requests import metadata
from klammtest.wire import WireClient, part

from .cluster import BrokerCluster

_EVERY_S: Final = 0.1
_LATEST: Final = -1
_LIST_OFFSETS: Final = 5
_WIRE_S: Final = 3.0
_PASSING: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")
"""What librdkafka tells of connections; it makes others."""


class Watcher:
    """A thread that calls `step` again and again until it is stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.errors: dict[str, int] = {}
        """What a consumer's application was told, by the error's name; the consumer went on."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self) -> None:
        """Called once, in the thread."""

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Called once, in the thread."""

    def _run(self) -> None:
        try:
            self.open()
            try:
                while not self._stopping.is_set():
                    self.step()
            finally:
                self.close()
        except BaseException as error:
            self.failure = error

    def progress(self) -> str:
        """Returns what the client knows of its partitions, for the report about a consumer that stands still."""
        return ""

    def stop(self) -> None:
        """Raises what ended the thread before."""
        self._stopping.set()
        self._thread.join(120)
        if self.failure is not None:
            raise RuntimeError(f"{self.name} ended: {self.failure!r}") from self.failure

    def pause(self) -> None:
        self._stopping.wait(_EVERY_S)


class ConfluentConsumer(Watcher):
    """Reads all partitions from their start; an offset reset would be an anomaly, so it is an error."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History) -> None:
        super().__init__("consumer confluent-kafka")
        self._bootstrap, self._topic, self._partitions, self._history = bootstrap, topic, partitions, history

    def open(self) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "watcher", "enable.auto.commit": False,
             "auto.offset.reset": "error", "fetch.wait.max.ms": 200, "reconnect.backoff.max.ms": 500,
             "topic.metadata.refresh.interval.ms": 5_000, "socket.timeout.ms": 10_000, "log_level": 0}
        )  # fmt: skip
        self._consumer.assign([Partition(self._topic, n, OFFSET_BEGINNING) for n in range(self._partitions)])

    def step(self) -> None:
        polled: dict[int, list[Poll]] = {}
        for message in self._consumer.consume(5_000, 0.2):
            error = message.error()
            if error is not None:
                if error.name() in ("_AUTO_OFFSET_RESET", "_LOG_TRUNCATION", "OFFSET_OUT_OF_RANGE"):
                    raise RuntimeError(f"{self.name} lost its position: {error}")
                if error.name() not in _PASSING:
                    self.errors[error.name()] = self.errors.get(error.name(), 0) + 1
                continue
            offset, value, number = message.offset(), message.value(), message.partition()
            assert offset is not None
            assert value is not None
            assert number is not None
            polled.setdefault(number, []).append(Poll(self.name, offset, int(value)))
        for number, polls in polled.items():
            self._history.polled(TopicPartition(self._topic, number), polls)

    def close(self) -> None:
        self._consumer.close()


class KlammConsumer(Watcher):
    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History) -> None:
        super().__init__("consumer klamm")
        self._bootstrap, self._topic, self._partitions, self._history = bootstrap, topic, partitions, history

    def open(self) -> None:
        self._consumer = klamm.Consumer(
            {"consumer": {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "none", "fetch.max.wait.ms": 200,
                          "group.id": "watcher-klamm", "enable.auto.commit": False}}
        )  # fmt: skip
        every = [TopicPartition(self._topic, n) for n in range(self._partitions)]
        self._consumer.assign(every)
        for tp in every:
            self._consumer.seek(tp, 0)

    def step(self) -> None:
        polled: dict[int, list[Poll]] = {}
        try:
            records = self._consumer.poll(0.2, 5_000)
        except KlammError as error:
            if "truncat" in type(error).__name__.lower() or "reset" in type(error).__name__.lower():
                raise
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
            self.pause()
            return
        for record in records:
            polled.setdefault(record.partition, []).append(Poll(self.name, record.offset, int(record.value)))
        for number, polls in polled.items():
            self._history.polled(TopicPartition(self._topic, number), polls)

    def progress(self) -> str:
        now = time.monotonic()  # without the lock: a thread that stands still may hold it
        return "; ".join(
            f"{tp}: node {s.node}, source {s.source}, check {s.check}, retry_at {max(s.retry_at - now, 0.0):+.1f} s, "
            f"asked_at {'None' if s.asked_at is None else f'{s.asked_at - now:+.1f} s'}, "
            f"position {s.position}, fetch_from {s.fetch_from}"
            for tp, s in sorted(self._consumer._positions.states.copy().items())
        )

    def close(self) -> None:
        self._consumer.close()


class BrokerObserver(Watcher):
    """Asks one broker for the leaders it knows, and, where it leads by its own account, for the watermarks.

    It keeps epochs: a watermark of an earlier leader epoch than one that it has seen is recorded too, and ignored by
    the checker.
    """

    def __init__(self, cluster: BrokerCluster, broker: int, topic: str, partitions: int, history: History) -> None:
        super().__init__(f"observer {broker}")
        self._bootstrap, self._broker = cluster.brokers[broker].bootstrap, broker
        self._topic, self._partitions, self._history = topic, partitions, history

    def step(self) -> None:
        with contextlib.suppress(OSError, AssertionError), WireClient(self._bootstrap, _WIRE_S) as wire:
            while not self._stopping.is_set():
                self._ask(wire)
                self.pause()
        self.pause()

    def _ask(self, wire: WireClient) -> None:
        answer = metadata(wire, [self._topic])
        led = []
        for p in answer.topics[0].partitions:
            if p.leader_id >= 0:
                leadership = Leadership(p.leader_id, p.leader_epoch, f"broker {self._broker}")
                self._history.led(TopicPartition(self._topic, p.partition_index), leadership)
            if p.leader_id == self._broker:
                led.append(p.partition_index)
        if led:
            self._watermarks(wire, led)

    def _watermarks(self, wire: WireClient, led: Sequence[int]) -> None:
        api, version = ApiKey.LIST_OFFSETS, _LIST_OFFSETS
        asked = tuple(
            part(api, version, "ListOffsetsPartition", partition_index=n, current_leader_epoch=-1, timestamp=_LATEST)
            for n in led
        )
        topics = (part(api, version, "ListOffsetsTopic", name=self._topic, partitions=asked),)
        start = time.monotonic()
        answer = wire.call(api, version, replica_id=-1, isolation_level=0, topics=topics)
        end = time.monotonic()
        for p in answer.topics[0].partitions:
            if p.error_code is ErrorCode.none:
                tp = TopicPartition(self._topic, p.partition_index)
                self._history.watermark(tp, Watermark(self.name, p.leader_epoch, p.offset, start, end))


class CoordinationObserver(Watcher):
    """Reads the partitions' states."""

    def __init__(self, cluster: BrokerCluster, topic: str, partitions: int, history: History) -> None:
        super().__init__("the coordination")
        self._cluster, self._topic, self._partitions, self._history = cluster, topic, partitions, history

    def step(self) -> None:
        for tp, state in self._cluster.states(self._topic, self._partitions).items():
            if state.leader >= 0:
                self._history.led(tp, Leadership(state.leader, state.leader_epoch, self.name))
        self.pause()


def read_back(
    bootstrap: str, ends: Mapping[TopicPartition, int], limit_s: float = 60.0
) -> dict[TopicPartition, list[tuple[int, str | int]]]:
    """Reads every partition from its start up to an offset, with confluent-kafka's consumer."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "log_level": 0,
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    stored: dict[TopicPartition, list[tuple[int, str | int]]] = {tp: [] for tp in ends}
    consumer.assign([Partition(tp.topic, tp.partition, 0) for tp in ends])
    deadline = time.monotonic() + limit_s

    def missing() -> bool:
        return any((stored[tp][-1][0] + 1 if stored[tp] else 0) < end for tp, end in ends.items())

    while missing() and time.monotonic() < deadline:
        for m in consumer.consume(50_000, 0.3):
            if m.error() is None:
                tp, row = (
                    TopicPartition(_some(m.topic()), _some(m.partition())),
                    (_some(m.offset()), int(_some(m.value()))),
                )
                stored[tp].append(row)
    consumer.close()
    return stored


def _some(value: Any) -> Any:
    assert value is not None
    return value
