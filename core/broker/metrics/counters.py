"""The counters of a serving broker: plain integers, written by the event loop and read at a scrape.

Rules: a count costs an addition; no lock is taken and no label is looked up per request; an object that holds counters
(a topic's traffic, an API's times) is looked up once and kept by its user. The reader is another thread: each number is
consistent, and all of them are of about the same moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, get_args, get_origin, get_type_hints

from ...errors import ErrorCode
from ...interfaces.coordination import SessionEvent
from ...protocol.apis import ApiKey

_BITS: Final = 40
"""Durations up to 2^39 ns (9 minutes) have a bucket of their own; longer ones share the last."""

_WATCHED_ERRORS: Final = (
    ErrorCode.corrupt_message, ErrorCode.kafka_storage_error, ErrorCode.invalid_record,
    ErrorCode.message_too_large, ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range,
)  # fmt: skip
"""Errors of Produce and Fetch that are exported before the first one; others appear with their first."""


class BrokerState(StrEnum):
    """The state of a broker. `FAILED`: another broker has this one's id, so this one has stopped serving."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    FAILED = "failed"


class TopicTraffic:
    """One topic's counters, as Kafka's BrokerTopicMetrics: bytes of record batches, as they are on the wire."""

    __slots__ = (
        "bytes_in", "bytes_out", "failed_fetches", "failed_produces", "fetches", "messages_in", "produces",
        "replication_bytes_in", "replication_bytes_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_in = 0
        self.messages_in = 0
        self.produces = 0
        self.failed_produces = 0
        self.bytes_out = 0
        self.fetches = 0
        self.failed_fetches = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0


class RequestTimes:
    """The number of an API's requests and the time until their answers: a histogram with two buckets per power of two.

    Bucket 2b holds durations in [2^(b-1), 1.5 * 2^(b-1)) ns and bucket 2b + 1 those up to 2^b.
    """

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (2 * _BITS)
        self.total_ns = 0

    def add(self, elapsed_ns: int) -> None:
        bits = elapsed_ns.bit_length()
        if 1 < bits < _BITS:
            self.buckets[2 * bits + (elapsed_ns >> (bits - 2) & 1)] += 1
        else:
            self.buckets[0 if bits < 2 else -1] += 1
        self.total_ns += elapsed_ns

    @staticmethod
    def upper_bound_ns(index: int) -> float:
        """Returns the upper end of a bucket; infinite for the last."""
        if index >= 2 * _BITS - 1:
            return float("inf")
        bits, half = divmod(index, 2)
        return 2.0**bits if half else 1.5 * 2.0 ** (bits - 1)


class BrokerMetrics:
    """All counters of one broker. `loop_lag_s`: the event loop's last delay; `loop_lag_max_s`: the worst of the last
    minute; `loop_woke_at`: when it last ran, monotonic seconds.

    Labelled counters begin with 0 for every label that is known: a rate over a counter that appears with its first
    event misses that event.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self.requests: dict[ApiKey, RequestTimes] = {api: RequestTimes() for api in ApiKey}
        self.produce_waits = RequestTimes()
        self.waits: dict[ApiKey, RequestTimes] = {
            ApiKey.FETCH: RequestTimes(),
            ApiKey.PRODUCE: self.produce_waits,
        }
        """Time that requests spent waiting: a Fetch for records, a Produce for the in-sync replicas."""
        self.errors: Counter[tuple[ApiKey, ErrorCode]] = Counter(
            dict.fromkeys(((api, error) for api in (ApiKey.PRODUCE, ApiKey.FETCH) for error in _WATCHED_ERRORS), 0)
        )
        """Errors in responses; each topic's and partition's error counts."""
        self.connections_accepted = 0
        self.connections_rejected = Counter({"max.connections": 0, "max.connections.per.ip": 0})
        """Connections closed when they were opened, by the limit that was reached."""
        self.connections_throttled = 0
        """Times that new connections had to wait in the kernel's queue."""
        self.held_up = Counter(
            {"queued.max.requests": 0, "queued.max.request.bytes": 0, "queued.max.response.bytes": 0}
        )
        """Connections that had to wait, by the limit over all of them that was reached."""
        self.connections_closed = Counter(
            {"idle": 0, "unfinished request": 0, "unhandled requests": 0, "reads nothing": 0, "bad request": 0}
        )
        """Connections that the broker closed, by reason."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0
        self.elections = RequestTimes()
        """The changes in which this broker, as the controller, elected leaders."""
        self.unclean_elections = 0
        self.session_up = True
        self.session_expired = False
        self.session_losses = 0
        self.session_expirations = 0
        self.loop_lag_s = 0.0
        self.loop_lag_max_s = 0.0
        self.loop_woke_at = time.monotonic()

    def traffic(self, topic: str) -> TopicTraffic:
        """Returns the topic's counters, which the caller keeps."""
        return self.topics.setdefault(topic, TopicTraffic())

    def session(self, event: SessionEvent) -> None:
        """Counts an event of the session with the coordination; called on its thread."""
        self.session_up = event is SessionEvent.CONNECTED
        self.session_expired = event is SessionEvent.EXPIRED
        self.session_losses += event is SessionEvent.SUSPENDED
        self.session_expirations += event is SessionEvent.EXPIRED

    def elected(self, unclean: int, elapsed_ns: int) -> None:
        """Counts a change with new leaders, `uncleanly` of which were elected uncleanly; called on the controller's
        threads, one at a time."""
        self.elections.add(elapsed_ns)
        self.unclean_elections += unclean

    def count_error(self, api: ApiKey, error: ErrorCode) -> None:
        self.errors[api, error] += 1

    def forget(self, topic: str) -> None:
        """Removes a topic's counters when the topic no longer exists here, as Kafka does."""
        self.topics.pop(topic, None)


def errors_in(message: object) -> Iterator[ErrorCode]:
    """Yields every error code of a response, at any depth."""
    own = getattr(message, "error_code", ErrorCode.none)
    if own is not ErrorCode.none:
        yield own
    for name in _lists_of(type(message)):
        for part in getattr(message, name) or ():
            yield from errors_in(part)


_LISTS: dict[type, tuple[str, ...]] = {}


def _lists_of(kind: type) -> tuple[str, ...]:
    """Returns the fields of a message that hold lists of structs."""
    if kind not in _LISTS:
        hints = get_type_hints(kind)
        _LISTS[kind] = tuple(field.name for field in fields(kind) if _is_struct_list(hints[field.name]))
    return _LISTS[kind]


def _is_struct_list(hint: Any) -> bool:
    kinds = [hint, *get_args(hint)]
    return any(get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]) for kind in kinds)
