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
from typing import Final, TypeVar

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode, KlammError, LogEndMovedError
from klamm.core.records.encode import encode_batch
from klamm.core.records.offset_and_epoch import ANY_EPOCH, OffsetAndEpoch
from klamm.core.records.partition import TopicPartition

from ..log import TOPIC_CONFIGS
from ..store.records import Noop, Record, SchemaTombstone, SubjectClearing, encode
from ..store.schema_store import SchemaStore
from . import refusals

__all__ = ["REQUEST_S", "LastIds", "SchemaTopic"]

_log = logging.getLogger(__name__)
WRITE_S: Final = 30.0
"""How long a write may wait for the topic's leader, and for other writers."""
REQUEST_S: Final = 3.0
"""The time of one request: a leader that does not answer is left so soon. What it may have stored is found then."""
FOLLOW_S: Final = 1.0
"""Between two attempts of the follower after an error."""
FRESH_S: Final = 0.1
"""Between two reads of the follower."""
KEEP_S: Final = 1.0
"""The highest ids are kept outside the topic at most so often, and before a schema is removed for good."""
_JITTER_S: Final = 0.02
_UNKNOWN: Final = {ErrorCode.not_enough_replicas_after_append, ErrorCode.request_timed_out}
R = TypeVar("R")
LastIds = Callable[[dict[str, int]], dict[str, int]]
"""Raises the highest ids by context that are kept outside the topic, and returns them."""


class SchemaTopic:
    """Thread-safe. `read` gives the store to one thread at a time; it is in memory, and held shortly. Owns the client.
    `last_ids`: where the highest ids are kept besides the topic; None: nowhere.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        *,
        last_ids: LastIds | None = None,
        replication_factor: int = -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._partition = TopicPartition(topic, 0)
        self._last_ids = last_ids
        self._factor = replication_factor
        self._clock = clock
        self._store = SchemaStore()
        self._store_lock = threading.Lock()
        self._reading = threading.Lock()
        self._table = TopicTable(client, _Contents(self._store, self._store_lock), timeout_s=client.request_timeout_s)
        self._read_from: float | None = None
        """When the last read that reached the end began."""
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
        """Follows the topic on a thread of its own."""
        self._follower.start()

    def close(self) -> None:
        self._stopped.set()
        if self._follower.is_alive():
            self._follower.join(self._client.request_timeout_s)
        self._client.close()

    def problem(self) -> str | None:
        """Returns why the store is behind the topic; None if it is not."""
        return self._problem

    @property
    def is_loaded(self) -> bool:
        """True once the topic was read to its end."""
        return self._read_from is not None

    @contextmanager
    def store(self) -> Iterator[SchemaStore]:
        """The store as it is, for this thread alone."""
        with self._store_lock:
            yield self._store

    def catch_up(self) -> None:
        """Reads the topic to its end as of this call; one read serves all calls that wait for it."""
        asked = self._clock()
        with self._reading:
            if self._read_from is None or self._read_from < asked:
                self._read()

    def write(self, decide: Callable[[SchemaStore], Sequence[Record]], check: Callable[[], None] | None = None) -> None:
        """Appends the records that `decide` makes of the store, together. It may be called several times, each time
        with all that was written before; it appends nothing if there are none. `check` is called after each, without
        the store. What they raise ends the write.

        Raises `RefusedError` 50001 if the topic cannot be written, and 50002 if the outcome is unknown.
        """
        deadline = self._clock() + WRITE_S
        while True:
            try:
                with self._reading:
                    self._read()
                    with self._store_lock:
                        records = decide(self._store)
                        ids = self._store.last_ids()
                    end = self._table.end(self._partition)
                if check is not None:
                    check()
                if not records:
                    return
                if any(isinstance(record, SchemaTombstone | SubjectClearing) for record in records):
                    self._keep(ids)  # compaction may remove the records that had them
                self._append(records, end)
            except LogEndMovedError:
                self.overtaken += 1
                if self._clock() > deadline:
                    raise refusals.timed_out("other writers came first again and again") from None
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
            return

    def _append(self, records: Sequence[Record], end: OffsetAndEpoch) -> None:
        now_ms = round(time.time() * 1000)
        batch = encode_batch([(now_ms, *encode(record), ()) for record in records])
        if end.offset and end.leader_epoch == ANY_EPOCH:  # compaction removed the record before the end
            self._client.produce({self._partition: encode_batch([(now_ms, *encode(Noop()), ())])})
            raise LogEndMovedError(f"{self._partition}: a record was appended to compare with")
        self._client.produce({self._partition: batch}, after={self._partition: end})

    def _keep(self, ids: dict[str, int]) -> None:
        if self._last_ids is not None:
            self._kept = dict(self._last_ids(ids))
            self._kept_at = self._clock()

    def _read(self) -> None:
        """The caller holds `_reading`."""
        began = self._clock()
        try:
            self._create()
            self._table.catch_up([self._partition])
            with self._store_lock:
                ids, generation = self._store.last_ids(), self._store.generation
            if generation != self._generation or any(
                last > self._kept.get(context, 0) for context, last in ids.items()
            ):
                if generation != self._generation or self._clock() - self._kept_at > KEEP_S:
                    self._keep(ids)
                with self._store_lock:
                    for context, last in self._kept.items():
                        self._store.raise_last_id(context, last)
                self._generation = generation
        except KlammError as error:
            self._problem = str(error)
            raise
        self._read_from, self._problem = began, None

    def _create(self) -> None:
        if self._read_from is not None:
            return
        found = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
        if found is None or found.error == ErrorCode.unknown_topic_or_partition:
            topic = NewTopic(1, self._factor, TOPIC_CONFIGS)
            self._client.create_topics({self._partition.topic: topic}, exists_ok=True)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._reading:
                    self._read()
            except KlammError as error:
                _log.warning("the topic of schemas cannot be read: %s", error)
                self._stopped.wait(FOLLOW_S)
            except Exception:
                _log.exception("the topic of schemas cannot be read")
                self._stopped.wait(FOLLOW_S)
            else:
                self._stopped.wait(FRESH_S)


class _Contents:
    """`klamm.core.client.reader.topic_table.TableContents`."""

    def __init__(self, store: SchemaStore, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock

    def clear(self) -> None:
        with self._lock:
            self._store.clear()

    def apply(
        self,
        partition: TopicPartition,  # noqa: ARG002 - there is one
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        with self._lock:
            self._store.apply(offset, timestamp_ms, key, value)
