"""Fetches metadata and producer ids for the sender on a thread of its own, since the sender must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ...errors import KlammError
from ..cluster_client import ClusterClient
from ..network.backoff import Backoff
from .batch import ANONYMOUS, ProducerIdentity

_ATTEMPT_S = 5.0
"""Seconds that one attempt may take; the next one starts with the newest requests."""

_CALM_S = 2.0
"""Seconds without a metadata request after which the next one starts a new fail-over."""


class MetadataRefresher:
    """The thread `klamm-producer-metadata`. `changed` is called on it after each success or failure; thread-safe."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        idempotent: bool,
        max_age_s: float,
        backoff: Backoff,
        changed: Callable[[], None],
    ) -> None:
        self.problem: KlammError | None = None
        """Why the last attempt failed; None after a success."""
        self._client = client
        self._max_age_s = max_age_s
        self._backoff = backoff
        self._changed = changed
        self._condition = threading.Condition()
        self._topics: set[str] = set()
        self._stale = False
        self._identity = ANONYMOUS
        self._want_identity = idempotent
        self._closed = False
        self._clock = client.network.clock
        self._requested_s = -_CALM_S
        self._not_before_s = 0.0
        self._in_a_row = 0
        self._thread = threading.Thread(target=self._run, name="klamm-producer-metadata", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. The client must be closed first, so that a running call ends."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join()

    def follow(self, topics: Iterable[str]) -> None:
        """Keeps these topics' metadata no older than the maximum age."""
        with self._condition:
            self._topics.update(topics)

    def refresh(self) -> None:
        """Requests metadata now, because a leader is unknown or has changed."""
        with self._condition:
            if not self._stale:
                self._stale = True
                self._condition.notify_all()

    def avoid(self, node_id: int) -> None:
        """Tries this broker last for metadata, since it does not answer another request."""
        self._client.avoid(node_id)

    # -- the producer's identity, for the partition queues

    def current(self) -> ProducerIdentity | None:
        """Returns the producer's identity; None while it is being requested."""
        return None if self._identity is ANONYMOUS else self._identity

    def renew(self, refused: ProducerIdentity) -> None:
        """Requests another producer id: the broker refuses this one, or its epochs are used up."""
        with self._condition:
            if self._identity.producer_id == refused.producer_id:
                self._identity = ANONYMOUS
                self._want_identity = True
                self._condition.notify_all()

    def _run(self) -> None:
        failures = 0
        while self._wait_for_work():
            try:
                self._work()
            except KlammError as error:
                failures += 1
                self.problem = error
                with self._condition:
                    if not self._closed:
                        self._condition.wait(self._backoff.delay(failures))
            else:
                failures = 0
                self.problem = None
            self._changed()

    def _wait_for_work(self) -> bool:
        with self._condition:
            while not (self._closed or self._want_identity):
                left = self._refresh_in_s()
                if left <= 0:
                    break
                self._condition.wait(left)
            return not self._closed

    def _refresh_in_s(self) -> float:
        """Returns the seconds until the next metadata request. Consecutive requests have the delays of a fail-over;
        otherwise an unknown leader would be requested without pause."""
        left = 0.0 if self._stale else self._max_age_s - self._client.cluster.age_s if self._topics else self._max_age_s
        return max(left, self._not_before_s - self._clock())

    def _work(self) -> None:
        if self._want_identity:
            identity = self._init_producer_id()
            with self._condition:
                self._identity, self._want_identity = identity, False
            return
        with self._condition:
            topics = sorted(self._topics)
            self._stale = False
        try:
            self._client.metadata(topics, timeout_s=_ATTEMPT_S)
        except KlammError:
            self._stale = True
            raise
        now = self._clock()
        self._in_a_row = 1 if now - self._requested_s > _CALM_S else self._in_a_row + 1
        self._requested_s = now
        self._not_before_s = now + self._client.network.fail_over.delay(1 + self._in_a_row)

    def _init_producer_id(self) -> ProducerIdentity:
        return ProducerIdentity(*self._client.init_producer_id(timeout_s=_ATTEMPT_S))
