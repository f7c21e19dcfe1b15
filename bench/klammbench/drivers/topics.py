"""Creates and deletes topics in the same way on every broker of Kafka's protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from klammbench.process import disk_bytes
from klammbench.systems.base import System

_TIMEOUT_S = 30.0
_CREATION_S = 120.0
"""Creating a thousand partitions flushes some thousand files, which takes long on a busy disk."""
_SETTLE_S = 5.0
_LEFT_BYTES = 64 << 20
_AT_ONCE = 1000
"""Klamm creates at most this many partitions in one change."""


@contextmanager
def topic_on(
    system: System, name: str, partitions: int, config: Mapping[str, str] | None = None, replicas: int = 1
) -> Iterator[str]:
    """Creates a topic whose partitions all have leaders; deletes it and its files at the end."""
    # Deleted at once, not after a minute: else the disk would fill, and its writes would disturb the next measurement.
    make_topic(system, name, partitions, {"file.delete.delay.ms": "0", **(config or {})}, replicas)
    try:
        yield name
    finally:
        admin = _admin(system)  # kept in a variable: collecting an admin client would cancel its requests
        admin.delete_topics([name])[name].result(_TIMEOUT_S)
        _await_removal(system)


def make_topic(
    system: System, name: str, partitions: int, config: Mapping[str, str] | None = None, replicas: int = 1
) -> None:
    """Creates a topic whose partitions all have leaders. It is not deleted: the shape wipes its systems itself."""
    admin = _admin(system)
    settings = {"retention.ms": "-1", **(config or {})}
    first = min(partitions, _AT_ONCE)
    topic = NewTopic(name, first, replicas, config=settings)
    admin.create_topics([topic], request_timeout=_CREATION_S)[name].result(_CREATION_S)
    for total in range(first + _AT_ONCE, partitions + _AT_ONCE, _AT_ONCE):
        wanted = NewPartitions(name, min(total, partitions))
        admin.create_partitions([wanted], request_timeout=_CREATION_S)[name].result(_CREATION_S)
    _await_leaders(system, name, partitions)


def _admin(system: System) -> AdminClient:
    return AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 2})


def _await_leaders(system: System, name: str, partitions: int) -> None:
    """Waits until each partition's leader answers for it; Kafka's metadata name the leader a little earlier.

    Each attempt uses a new client: one that saw the topic with fewer partitions keeps that view for minutes.
    """
    deadline = time.monotonic() + _CREATION_S
    wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
    while True:
        admin = _admin(system)
        try:
            for answer in admin.list_offsets(wanted, request_timeout=_TIMEOUT_S).values():
                answer.result(_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {name} has no leaders for its {partitions} partitions: {error}") from error
            time.sleep(0.1)
        else:
            return


def _await_removal(system: System) -> None:
    """Waits until the deleted files are gone, but only a few seconds: a slower broker is measured all the same."""
    deadline = time.monotonic() + _SETTLE_S
    while disk_bytes(system.data_dir) > _LEFT_BYTES and time.monotonic() < deadline:
        time.sleep(0.05)
