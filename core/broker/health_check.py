"""The health of a broker, for load balancers, the probes of systemd and Kubernetes, and people.

*Live*: the event loop runs; a broker that is not live should be restarted. *Ready*: clients are served. A problem
that a restart of this broker does not end, such as a full disk, is listed and changes neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from ..records.partition import TopicPartition, some_of
from .metrics.counters import BrokerState
from .metrics.health import BrokerHealth
from .watched import Watched

STALLED_S: Final = 30.0
"""Seconds of delay of the event loop from which on the broker is not live."""


class HealthCheck:
    """May be called from any thread; reads the broker's state without waiting. `state` returns the broker's state;
    `clock` returns monotonic seconds."""

    def __init__(
        self, watched: Watched, state: Callable[[], BrokerState], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watched = watched
        self._state = state
        self._clock = clock

    def __call__(self) -> BrokerHealth:
        state = self._state()
        late_s = self._clock() - self._watched.connections.metrics.loop_woke_at
        is_live = late_s < STALLED_S
        problems = dict(self._not_ready(state))
        if not is_live:
            problems["event_loop"] = f"the event loop has not run for {late_s:.0f} s"
        is_ready = is_live and not problems
        problems |= dict(self._degraded())
        return BrokerHealth(self._watched.broker_id, state, is_live, is_ready, problems)

    def _not_ready(self, state: BrokerState) -> Iterator[tuple[str, str]]:
        if state is not BrokerState.SERVING:
            yield "state", f"the broker is {state.value}"
        metrics = self._watched.connections.metrics
        if metrics.session_expired:
            yield "session", "the session with the coordination has expired: nothing is acknowledged"

    def _degraded(self) -> Iterator[tuple[str, str]]:
        watched = self._watched
        metrics, partitions = watched.connections.metrics, list(watched.partitions)
        if not metrics.session_up and not metrics.session_expired:
            yield "coordination", "the coordination does not answer: topics and groups cannot be changed"
        offline = [name for name, log in watched.logs.logs().items() if log.offline is not None]
        if offline:
            yield "offline_replicas", _named(offline, "is offline after a disk error", "are offline after a disk error")
        full = list(watched.logs.space.refused)
        if full:
            yield "full_disk", _named(full, "takes no records: the disk is full", "take no records: the disk is full")
        image = watched.cluster.image()
        leaderless = [
            TopicPartition(topic.name, number)
            for topic in image.topics.values()
            for number, part in topic.partitions.items()
            if part.leader not in image.brokers
        ]
        if leaderless:
            yield "offline_partitions", _named(leaderless, "has no leader", "have no leader")
        under = [led.name for led in partitions if led.in_sync < len(led.replicas)]
        if under:
            yield "under_replicated", _named(under, "lacks a replica in sync", "lack a replica in sync")
        refusing = [led.name for led in partitions if led.leader is not None and led.leader.is_under_min_isr]
        if refusing:
            yield "under_min_isr", _named(refusing, "refuses acks=all", "refuse acks=all")
        for name, problem in watched.background.health().items():
            if problem is not None:
                yield f"service {name}", problem


def _named(partitions: list[TopicPartition], one: str, several: str) -> str:
    return f"{some_of(sorted(partitions))} {one if len(partitions) == 1 else several}"
