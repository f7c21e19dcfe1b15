"""One ordinary client: it produces and fetches at a fixed modest rate and measures the latency."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness import Result
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import iter_headers
from klammtest.requests import batch, fetch, metadata, produce
from klammtest.wire import WireClient

SIZE = 1_000
_CONNECT_EVERY = 25  # pairs of requests per new connection


@dataclass
class Latencies:
    """Latencies in seconds: of requests on the client's connection, and of new connections until their first
    response."""

    requests: list[float] = field(default_factory=list)
    connects: list[float] = field(default_factory=list)


def quantile(values: Sequence[float], part: float) -> float:
    """Returns the nearest-rank quantile; 0 if there are no values."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)] if values else 0.0


def now_ms() -> int:
    """Returns the current time, because records with a fixed old time would be deleted by retention."""
    return time.time_ns() // 1_000_000


@dataclass
class Ordinary:
    """A client whose latencies count from the time a request was due, so that one long stop counts for all requests
    that it delayed.

    `values` are the acknowledged numbers by offset.
    """

    bootstrap: str
    topic: str
    pairs_per_s: int
    result: Result
    values: dict[int, int] = field(default_factory=dict)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._wire = WireClient(self.bootstrap)

    def go_on(self, phase: str, until: Callable[[int], bool]) -> Latencies:
        """Produces records and fetches them again, repeatedly, until `until(pairs so far)` returns True."""
        found = Latencies()
        began, pairs = time.monotonic(), 0
        while not until(pairs):
            due = began + pairs / self.pairs_per_s
            time.sleep(max(due - time.monotonic(), 0.0))
            try:
                self._pair(phase, due, found, connect=pairs % _CONNECT_EVERY == 0)
            except (OSError, AssertionError) as error:
                self.result.wrong(phase, f"no answer: {type(error).__name__} {error}")
                self._wire.close()
                self._wire = WireClient(self.bootstrap)
            pairs += 1
        return found

    def _pair(self, phase: str, due: float, found: Latencies, *, connect: bool) -> None:
        offset = self._produce(phase)
        between = time.monotonic()
        self._fetch(phase, offset)
        done = time.monotonic()
        found.requests += [between - due, done - between]
        if connect:
            self._connect()
            found.connects.append(time.monotonic() - done)

    def _produce(self, phase: str) -> int:
        self._sent += 1
        outcome = produce(
            self._wire, self.topic, batch(b"%09d" % self._sent + b"." * SIZE, timestamp_ms=now_ms()), acks=1
        )
        if outcome.error_code != 0:
            self.result.wrong(phase, f"the broker refuses a record: {outcome.error_code.name}")
            return 0
        self.values[outcome.base_offset] = self._sent
        return int(outcome.base_offset)

    def _fetch(self, phase: str, offset: int) -> None:
        answer = fetch(self._wire, self.topic, offset, max_wait_ms=500)
        if answer.error_code != 0:
            self.result.wrong(phase, f"the broker refuses a fetch: {answer.error_code.name}")
        self._compare(phase, bytes(answer.records or b""), {offset})

    def _compare(self, at: str, data: bytes, wanted: set[int]) -> int:
        """Compares the fetched records with the sent ones; returns the offset after them."""
        codecs, found = CodecTable(()), {}
        behind = -1
        for position, header in iter_headers(data):
            behind = header.next_offset
            for record in decode_batch(data, position, header, codecs):
                found[record.offset] = int((record.value or b"-1")[:9])
        for offset, value in found.items():
            if self.values.get(offset) != value:
                self.result.corrupt(
                    at, f"offset {offset} holds {value}, but {self.values.get(offset)} was written there"
                )
        for offset in wanted - found.keys():
            self.result.lose(at, f"offset {offset} was acknowledged and is missing")
        return behind

    def _connect(self) -> None:
        with WireClient(self.bootstrap) as wire:
            metadata(wire, [self.topic])

    def read_all(self) -> None:
        """Checks that everything acknowledged is in the log, as it was written."""
        offset, end = 0, max(self.values, default=-1) + 1
        while offset < end:
            answer = fetch(self._wire, self.topic, offset)
            data = bytes(answer.records or b"")
            last = max((h.next_offset for _, h in iter_headers(data)), default=0)
            if last <= offset:
                self.result.lose("the end", f"no records from {offset} on", end - offset)
                return
            self._compare("the end", data, {o for o in self.values if offset <= o < last})
            offset = last

    def close(self) -> None:
        self._wire.close()
