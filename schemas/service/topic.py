"""The topic of schemas of one process: a store that follows it, and writes by compare-and-append.

A write reads the topic to its end, decides in memory, and appends on the condition that the topic still ends there; if
another process was faster it reads on and decides again. So any number of processes write at once, with no leader among
them, and every decision was made on all records before it.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.factory import open_client
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode, KlammError

from .. import refusals
from ..registry.log import LastIds, TopicSchemaLog, kept_ids
from ..store.records import Record, SchemaTombstone, SubjectClearing
from ..store.schema_store import SchemaStore

if TYPE_CHECKING:
    from klamm.core.interfaces.service import BrokerContext

_log = logging.getLogger(__name__)
WRITE_S: Final = 30.0
"""How long a write may wait for the topic's leader, and for other writers."""
REQUEST_S: Final = 3.0
"""The time of one request: a leader that does not answer is left so soon. What it may have stored is found then."""
FOLLOW_S: Final = 1.0
"""Between two attempts of the follower after an error."""
WATCH_MS: Final = 1000
"""How long the topic's leader may hold back the follower's Fetch; it answers as soon as there is a record."""
FRESH_S: Final = 0.1
"""Between two reads of the follower that found nothing."""
KEEP_S: Final = 1.0
"""The highest ids are kept outside the topic at most so often, and before a schema is removed for good."""
_JITTER_S: Final = 0.02
T = TypeVar("T")
Decide = Callable[[SchemaStore], tuple[Sequence[Record], T]]
"""Makes the records of a write, and what its caller needs to know of them."""
_UNKNOWN: Final = {ErrorCode.not_enough_replicas_after_append, ErrorCode.request_timed_out}


def shared_topic(context: BrokerContext, name: str) -> SchemaTopic:
    """Returns the broker's topic of this name: its registry and its validator have one table, and one thread that
    follows it. The broker closes it."""

    def make() -> SchemaTopic:
        client = open_client(context, "schemas", request_timeout_s=REQUEST_S)
        return SchemaTopic(client, name, last_ids=kept_ids(context.coordination))

    return context.shared(f"schemas:{name}", make)


class SchemaTopic:
    """Thread-safe. `store` is for one thread at a time; it is in memory, and is held briefly. Owns the client.
    `last_ids`: where the highest ids are kept besides the topic; None: nowhere.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        *,
        last_ids: LastIds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._log = TopicSchemaLog(client, topic)
        self._grace_s = client.request_timeout_s
        self._last_ids = last_ids
        self._clock = clock
        self._store = SchemaStore()
        self._writing = threading.Lock()
        """Writes of one process come one after another: they would only overtake each other."""
        self._reading = threading.Lock()
        self._read_from: float | None = None
        """When the last read that reached the end began."""
        self._failed: tuple[float, KlammError] | None = None
        """When the last read that failed began, and its error."""
        self._generation = -1
        self._kept: dict[str, int] = {}
        self._kept_at = -math.inf
        self._problem: str | None = "the topic of schemas has not been read to its end yet"
        self._stopped = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="klamm-schemas", daemon=True)
        self.writes = 0
        self.overtaken = 0
        """Attempts of writes before which another process wrote."""

    def start(self) -> None:
        """Follows the topic on a thread of its own, if it does not yet."""
        with self._reading:
            if self._follower.ident is None:
                self._follower.start()

    def close(self) -> None:
        self._stopped.set()
        self._log.close()  # its requests end
        if self._follower.is_alive():
            self._follower.join(self._grace_s)

    def problem(self) -> str | None:
        """Returns why the store is behind the topic; None if it is not."""
        return self._problem

    @property
    def cluster_id(self) -> str:
        return self._client.cluster.view.cluster_id or ""

    @property
    def is_loaded(self) -> bool:
        """True once the topic was read to its end."""
        return self._read_from is not None

    @contextmanager
    def store(self) -> Iterator[SchemaStore]:
        """The store as it is, for this thread alone."""
        with self._log.lock:
            yield self._store

    @property
    def place(self) -> tuple[int, int]:
        """The position up to which the store was read: equal as long as the store has not changed."""
        return self._store.generation, self._store.position

    def catch_up(self, timeout_s: float | None = None) -> None:
        """Reads the topic to its end as of this call; one read serves all calls that wait for it, with its error too.
        After `timeout_s` it raises `BrokerError` (REQUEST_TIMED_OUT)."""
        asked = self._clock()
        if not self._reading.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise BrokerError(ErrorCode.request_timed_out, f"the topic of schemas was not read within {timeout_s:g} s")
        try:
            if self._failed is not None and self._failed[0] >= asked:
                raise self._failed[1]
            if self._read_from is None or self._read_from < asked:
                self._read(None if timeout_s is None else asked + timeout_s)
        finally:
            self._reading.release()

    def write(self, decide: Decide[T], check: Callable[[T], None] | None = None) -> T:
        """Appends the records that `decide` makes of the store, together, and returns what it found with them. It may
        be called several times, each time with all that was written before; it appends nothing if there are none.
        `check` is called after each call with what it found, without the store. An error of either ends the write.

        Raises `RefusedError` 50001 if the topic cannot be written, and 50002 if the outcome is unknown.
        """
        deadline = self._clock() + WRITE_S
        if not self._writing.acquire(timeout=WRITE_S):
            raise refusals.timed_out("other writes of this registry came first")
        try:
            return self._write(decide, check, deadline)
        finally:
            self._writing.release()

    def _write(self, decide: Decide[T], check: Callable[[T], None] | None, deadline: float) -> T:
        while True:
            try:
                with self._reading:
                    self._read()
                    end = self._log.end()  # the follower may read on before the append
                    with self._log.lock:
                        records, found = decide(self._store)
                        ids = self._store.last_ids()
                if check is not None:
                    check(found)
                if not records:
                    return found
                if any(isinstance(record, SchemaTombstone | SubjectClearing) for record in records):
                    self._keep(ids)  # compaction may remove the records that had them
                if not self._log.append(records, end):
                    self.overtaken += 1
                    if self._clock() > deadline:
                        raise refusals.timed_out("other writers came first again and again")
                    self._stopped.wait(random.random() * _JITTER_S)
                    continue
            except (BrokerError, ConnectionFailedError, CoordinationError) as error:
                if not (isinstance(error, ConnectionFailedError) or error.code.retriable or error.code in _UNKNOWN):
                    raise refusals.store_failed(str(error)) from error
                if self._clock() > deadline:
                    raise refusals.timed_out(str(error)) from error
                self._stopped.wait(_JITTER_S)  # the batch may be there: then the next attempt finds it
                continue
            self.writes += 1
            with self._reading:
                self._read()
            return found

    def keep_last_ids(self) -> None:
        """Keeps the highest ids of what was read outside the topic."""
        with self._reading:
            self._keep(self._store.last_ids())

    def _keep(self, ids: dict[str, int]) -> None:
        if self._last_ids is not None:
            self._kept = dict(self._last_ids(ids))
            self._kept_at = self._clock()

    def _read(self, deadline_s: float | None = None) -> None:
        """The caller holds `_reading`."""
        began = self._clock()
        try:
            if self._read_from is None:
                self._log.create()
            self._store = self._log.read(deadline_s)
            self._log.check()
            with self._log.lock:
                ids, generation = self._store.last_ids(), self._store.generation
            if generation != self._generation or any(
                last > self._kept.get(context, 0) for context, last in ids.items()
            ):
                if generation != self._generation or self._clock() - self._kept_at > KEEP_S:
                    self._keep(ids)
                with self._log.lock:
                    for context, last in self._kept.items():
                        self._store.raise_last_id(context, last)
                self._generation = generation
        except KlammError as error:
            self._problem, self._failed = str(error), (began, error)
            raise
        self._read_from, self._problem = began, None

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._reading:
                    self._read()
                if not self._log.wait(WATCH_MS):
                    self._stopped.wait(FRESH_S)  # the leader may have refused the Fetch at once
            except KlammError as error:
                if not self._stopped.is_set():
                    _log.warning("the topic of schemas cannot be read: %s", error)
                self._stopped.wait(FOLLOW_S)
            except Exception:
                _log.exception("the topic of schemas cannot be read")
                self._stopped.wait(FOLLOW_S)
