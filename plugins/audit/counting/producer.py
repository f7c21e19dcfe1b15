"""The producer tier: counts attempted and acknowledged records, by topic and window of record time.

Rules:

- Callers append to a deque (atomic, no lock); counting happens in bulk, at the latest after `BULK` appends. Append and
  popleft are safe against each other; swapping a list would lose a late append.
- A producer's events of one topic are numbered from 0 without a gap, and contain only the counts since the previous
  one. A number is reused until its event is stored: after a failure or an unknown outcome, the next try has the same
  number and at least the same counts, and for one key the last event wins.
- Event 0 is sent with the first record of a topic, an empty event in every interval without new counts, and the last
  one is marked final. So a killed producer is detected: its events stop without a final one.
- After an interval without new counts, with nothing in flight, the event is `quiet`: no record of the topic is sent
  before another event is stored. Until then `begin` returns False without waiting, because the sender, which sends that
  event too, must not block. So the counts of a quiet producer cover everything that was ever acknowledged, even if it
  is killed.
- A batch is in flight from `begin` on. A `begin` that races with the producer becoming quiet is either found in the
  deque, and the producer is not quiet, or finds the producer quiet, and nothing is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NamedTuple

from klamm.plugin import NO_WINDOW, AuditIdentity, DeliveryError, Publish

from ..event import AuditEvent, EventSource, EventWindow

log = logging.getLogger(__name__)

BULK: Final = 8192
MAX_WINDOWS: Final = 20_000
"""Windows in one event, about 400 kB; the rest goes into the next event."""

RESUME_S: Final = 5.0
"""Seconds that the first batch after a quiet interval waits until the event is stored which states that the producer
continues."""

_ACKNOWLEDGED: Final = 0
_ATTEMPTED: Final = 2
_FAILED: Final = -1
_BEGUN: Final = -2
"""The number of records in flight for which a batch counts between `begin` and `end`; by then its records are
attempted."""

Counts = dict[int, list[int]]
"""[acknowledged, their bytes, attempted, their bytes] by window start."""


class _Taken(NamedTuple):
    event: AuditEvent
    counts: Counts
    stored: Future[None]


class _Topic:
    """The counts of one topic that are in no stored event yet, and the number of the next event. `in_flight`:
    records attempted or started, and not settled. `resume_s`: since when a batch waits to be sent while the topic is
    quiet (None: none waits); `resumed_by`: the event that ends the quiet state once it is stored."""

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.number = 0
        self.in_flight = 0
        self.quiet = False
        self.resume_s: float | None = None
        self.resumed_by: AuditEvent | None = None
        self.ended = False

    def add(self, start: int, column: int, size: int, count: int) -> None:
        self.in_flight += count if column in (_ATTEMPTED, _BEGUN) else -count
        if column in (_FAILED, _BEGUN):
            return
        cell = self.counts.get(start)
        if cell is None:
            cell = self.counts[start] = [0, 0, 0, 0]
        cell[column] += count
        cell[column + 1] += size

    def take(self) -> Counts:
        if len(self.counts) <= MAX_WINDOWS:
            taken, self.counts = self.counts, {}
            return taken
        return {start: self.counts.pop(start) for start in sorted(self.counts)[:MAX_WINDOWS]}

    def give_back(self, counts: Counts) -> None:
        for start, cell in counts.items():
            mine = self.counts.setdefault(start, [0, 0, 0, 0])
            for column, number in enumerate(cell):
                mine[column] += number


class KlammProducerAudit:
    """See the module's rules. `clock_ms` gives the time of events, `clock` monotonic seconds; `store_timeout_s` bounds
    the wait for the broker."""

    def __init__(
        self,
        identity: AuditIdentity,
        publish: Publish,
        *,
        window_ms: int,
        interval_s: float,
        clock_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        store_timeout_s: float = 30.0,
    ) -> None:
        self._source = EventSource(identity, window_ms, clock_ms)
        self._publish = publish
        self._interval_s = interval_s
        self._store_timeout_s = store_timeout_s
        self._clock = clock
        self._records: deque[tuple[str, int, int, int, int]] = deque()
        self._topics: dict[str, _Topic] = {}
        self._counting = threading.Lock()
        self._publishing = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.failures = 0
        """The number of failed publications, which are tried again."""

    def begin(self, topic: str) -> bool:
        self._records.append((topic, 0, _BEGUN, 0, 1))
        state = self._topics.get(topic)
        if state is None:
            self._open(topic)
        elif state.quiet and not self._resumed(state):  # read after the append: its setter counts afterwards
            self.end(topic)
            return False
        return True

    def end(self, topic: str) -> None:
        self._records.append((topic, 0, _FAILED, 0, 1))

    def attempted(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        self._records.append((topic, timestamp_ms, _ATTEMPTED, size, count))
        if topic not in self._topics:
            self._open(topic)
        if len(self._records) >= BULK:
            self._count()

    def acknowledged(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        self._records.append((topic, timestamp_ms, _ACKNOWLEDGED, size, count))
        if len(self._records) >= BULK:
            self._count()

    def failed(self, topic: str, count: int = 1) -> None:
        self._records.append((topic, 0, _FAILED, 0, count))

    def flush(self) -> None:
        """Publishes all counts. Raises `DeliveryError` if they could not be stored; they are kept for the next try."""
        self._send(final=False, heartbeat=False)

    def close(self) -> None:
        """Publishes the last counts. Raises `DeliveryError` as `flush` does: this producer then shows as killed, its
        last counts as unknown."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(self._store_timeout_s)
        self._send(final=True, heartbeat=False)

    def _open(self, topic: str) -> None:
        with self._counting:
            self._topics.setdefault(topic, _Topic())
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="klamm-producer-audit", daemon=True)
                self._thread.start()
        self._wake.set()

    def _resumed(self, state: _Topic) -> bool:
        """Publishes an event which states that this producer sends again. After `RESUME_S` it sends anyway (an audit
        never stops records), and its `quiet` event is void."""
        now = self._clock()
        if state.resume_s is None:
            state.resume_s = now
            self._wake.set()
        if not self._closed:
            if now - state.resume_s < RESUME_S:
                return False
            log.warning("audit events of %s could not be stored within %s s", self._source.who.owner, RESUME_S)
        state.quiet = False
        return True

    def _run(self) -> None:
        heartbeat = False
        while not self._closed:
            self._wake.clear()
            if self._closed:  # set before the wake-up that was just cleared
                return
            try:
                self._send(final=False, heartbeat=heartbeat)
            except DeliveryError as error:
                log.warning("%s", error)
            heartbeat = not self._wake.wait(self._interval_s)

    def _count(self) -> None:
        """Counts records. Consecutive ones are mostly of one topic and window, so their sums are computed first."""
        with self._counting:
            records, window_ms = self._records, self._source.window_ms
            of, start, kind, number, total = "", 0, _ATTEMPTED, 0, 0
            for _ in range(len(records)):
                topic, timestamp, column, size, count = records.popleft()
                begin = timestamp - timestamp % window_ms if timestamp >= 0 else NO_WINDOW
                if begin != start or column != kind or topic != of:
                    self._add(of, start, kind, total, number)
                    of, start, kind, number, total = topic, begin, column, 0, 0
                number += count
                total += size
            self._add(of, start, kind, total, number)

    def _add(self, topic: str, start: int, column: int, size: int, count: int) -> None:
        if count:
            state = self._topics.get(topic)
            if state is None:
                state = self._topics[topic] = _Topic()
            state.add(start, column, size, count)

    def _send(self, *, final: bool, heartbeat: bool) -> None:
        with self._publishing:
            if heartbeat:
                self._become_quiet()
            self._publish_counts(final=final, heartbeat=heartbeat, timeout_s=self._store_timeout_s)

    def _become_quiet(self) -> None:
        """Marks topics without new counts and with nothing in flight as quiet, and counts then: a batch that starts
        meanwhile is either counted here or refused."""
        with self._counting:  # `_stored` ends the previous quiet state, or nothing: not the one that begins here
            topics = [topic for topic in self._topics.values() if topic.resume_s is None]
            for topic in topics:
                topic.resumed_by = None
                topic.quiet = True
        self._count()
        for topic in topics:
            if topic.counts or topic.in_flight:
                topic.quiet, topic.resume_s = False, None

    def _publish_counts(self, *, final: bool, heartbeat: bool, timeout_s: float) -> None:
        self._count()
        error: Exception | None = None
        more = True
        while more and error is None:
            taken, more = self._take(final, heartbeat)
            error = self._settle(taken, timeout_s)
            heartbeat = False
        if error is not None:
            self.failures += 1
            raise DeliveryError(
                f"audit counts of {self._source.who.owner} were not stored, they go with the next: {error}"
            ) from error

    def _take(self, final: bool, heartbeat: bool) -> tuple[list[_Taken], bool]:
        """Sends one event per topic that has new counts, or must report that it is alive or ends; returns whether
        counts remain."""
        taken, more = [], False
        with self._counting:
            for name, topic in self._topics.items():
                resumes = topic.resume_s is not None
                if topic.ended or not (topic.counts or final or heartbeat or topic.number == 0 or resumes):
                    continue
                counts = topic.take()
                more = more or bool(topic.counts)
                event = self._event(name, topic, counts, final and not topic.counts)
                taken.append((event, counts))
                if not topic.quiet:
                    topic.resume_s = None  # it was not quiet when `begin` was called
                elif not event.quiet:
                    topic.resumed_by = event
        return [_Taken(event, counts, self._sent(event)) for event, counts in taken], more

    def _sent(self, event: AuditEvent) -> Future[None]:
        try:
            stored = self._publish(*event.encode())
            stored.add_done_callback(lambda done: self._stored(event, done))
            return stored
        except Exception as error:  # a publisher that refuses at once has failed: the counts are kept
            refused: Future[None] = Future()
            refused.set_exception(error)
            return refused

    def _stored(self, event: AuditEvent, done: Future[None]) -> None:
        """Called on the thread that notices that the event is stored: the sender, which then calls `begin` again."""
        with self._counting:
            topic = self._topics[event.topic]
            if topic.resumed_by is event and done.exception() is None:
                topic.quiet, topic.resume_s = False, None

    def _event(self, name: str, topic: _Topic, counts: Counts, final: bool) -> AuditEvent:
        windows = (
            EventWindow(start, acknowledged, size, attempted, attempted_size)
            for start, (acknowledged, size, attempted, attempted_size) in sorted(counts.items())
        )
        span, interval_ms = (topic.number, topic.number + 1), round(self._interval_s * 1000)
        quiet = topic.quiet and topic.resume_s is None and not counts
        return self._source.event((name, None), span, windows, final=final, quiet=quiet, interval_ms=interval_ms)

    def _settle(self, sent: list[_Taken], timeout_s: float) -> Exception | None:
        """Waits for each event; counts that were not stored are kept, to be sent under the same number."""
        first: Exception | None = None
        for event, counts, stored in sent:
            error: Exception | None = None
            try:
                stored.result(timeout_s)
            except Exception as caught:  # after any error of the publisher: the counts are kept
                error = caught
            with self._counting:
                topic = self._topics[event.topic]
                if error is None:
                    topic.number += 1
                    topic.ended = event.final
                else:
                    topic.give_back(counts)
            first = first or error
        return first
