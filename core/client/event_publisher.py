"""Publishes events to the audit topic without a producer, for tiers that send few.

One Produce request with acks=all carries all waiting events, with one more request for each `_MOST_BYTES` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from ..records.encode import encode_batch
from ..records.partition import TopicPartition
from .cluster_client import ClusterClient
from .producer.partitioner import key_hash

__all__ = ["EventPublisher"]

_MOST_BYTES: Final = 512 * 1024
"""The most bytes of one request, unless one event is larger: a topic accepts batches of 1 MiB unless configured
otherwise.
"""


class _Stored(Future[None]):
    """A future that sends the waiting events when its result is requested."""

    def __init__(self, send: Callable[[], None]) -> None:
        super().__init__()
        self._send = send

    def result(self, timeout: float | None = None) -> None:
        if not self.done():
            self._send()
        return super().result(timeout)


class _Event(NamedTuple):
    key: bytes
    value: bytes
    stored: _Stored


class EventPublisher:
    """Implements `klamm.core.interfaces.audit.Publish`. Events are sent when the result of any of them is requested. A
    retry may store an event twice, which changes nothing: the last one wins. Not thread-safe.
    """

    def __init__(self, client: ClusterClient, topic: str, clock_ms: Callable[[], int]) -> None:
        self._client = client
        self._topic = topic
        self._clock_ms = clock_ms
        self._waiting: list[_Event] = []
        self._partitions: list[TopicPartition] = []

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        event = _Event(key, value, _Stored(self._send))
        self._waiting.append(event)
        return event.stored

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for events in _requests(waiting):
            try:
                self._produce(events)
            except Exception as error:  # any error belongs to the futures
                for event in events:
                    event.stored.set_exception(error)
            else:
                for event in events:
                    event.stored.set_result(None)

    def _produce(self, events: Sequence[_Event]) -> None:
        if not self._partitions:
            self._partitions = self._client.partitions(self._topic)
        partitions = self._partitions
        by_partition: dict[TopicPartition, list[_Event]] = {}
        for event in events:
            by_partition.setdefault(partitions[key_hash(event.key) % len(partitions)], []).append(event)
        now_ms = self._clock_ms()
        self._client.produce(
            {
                partition: encode_batch([(now_ms, event.key, event.value, ()) for event in share])
                for partition, share in by_partition.items()
            }
        )


def _requests(events: Sequence[_Event]) -> Iterator[list[_Event]]:
    taken: list[_Event] = []
    size = 0
    for event in events:
        more = len(event.key) + len(event.value)
        if taken and size + more > _MOST_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(event)
        size += more
    if taken:
        yield taken
