"""The source of the pages' data: one reader of the audit topic, shared by all requests.

The reader keeps the events that it has read and fetches only new ones. An answer is reused for `max_age_s`, so that
many viewers cost one read. After a failure the next read begins at the start of the topic. Thread-safe: one request
reads, the others wait for its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from klamm import ClusterClient
from klamm.plugin import KlammError

from ..config import AuditConfig
from ..event import AuditEvent
from ..query import Answer, AuditQuery, ask
from ..reader import AuditReader

MAX_AGE_S: Final = 1.0
MAX_EVENTS: Final = 1_000_000


class Source(Protocol):
    """The source of the pages' data."""

    def answer(self) -> Answer:
        """Returns the present comparison; raises `KlammError` if the cluster cannot be reached."""
        ...

    def close(self) -> None:
        """Closes the connections. Called once, when no more pages are made."""
        ...


@dataclass(eq=False)
class ClusterSource:
    """Reads the cluster. `query` restricts what is read: its topics, and the tiers that are expected."""

    connect: Callable[[], ClusterClient]
    config: AuditConfig
    query: AuditQuery
    max_events: int = MAX_EVENTS
    max_age_s: float = MAX_AGE_S
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._client: ClusterClient | None = None
        self._reader: AuditReader | None = None
        self._last: Answer | KlammError | None = None
        self._asked_s = 0.0

    def answer(self) -> Answer:
        """Returns the last answer while it is fresh. A failure is reused for the same time, so that requests do not
        queue behind a cluster that does not respond."""
        with self._lock:
            if self._last is None or self.monotonic() - self._asked_s >= self.max_age_s:
                self._last = None  # so that memory never holds two answers
                try:
                    self._last = self._ask()
                except KlammError as error:
                    self._reader = None  # its data may end in the middle of a partition
                    self._last = error
                self._asked_s = self.monotonic()
            last = self._last
        if isinstance(last, KlammError):
            raise last.with_traceback(None)
        return last

    def close(self) -> None:
        # without the lock, which a read that waits for the cluster holds; closing the client ends that read
        client = self._client
        if client is not None:
            client.close()

    def _ask(self) -> Answer:
        if self._client is None:
            self._client = self.connect()
        if self._reader is None:
            config = self.config
            self._reader = AuditReader(
                self._client, config.topic, self._keeps, self.max_events, mirrored=config.mirrored_topics
            )
        return ask(self._client, self.config, self.query, self._reader)

    def _keeps(self, event: AuditEvent) -> bool:
        return not self.query.topics or event.topic in self.query.topics
