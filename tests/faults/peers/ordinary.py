"""One ordinary client: it produces and fetches at a fixed modest rate, and looks at the clock."""

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
_DOORS_EVERY = 25  # pairs of requests to a new connection


@dataclass
class Latencies:
    """In seconds: of requests on the client's connection, and of connecting anew until the first answer."""

    requests: list[float] = field(default_factory=list)
    doors: list[float] = field(default_factory=list)


def quantile(values: Sequence[float], part: float) -> float:
    """The nearest-rank quantile; 0 where there is nothing."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)] if values else 0.0


def now_ms() -> int:
    """Records of today: those of a fixed day would be deleted for their age."""
    return time.time_ns() // 1_000_000


@dataclass
class Ordinary:
    """A request is late by how long it took from when it was due, so that one long stop counts for all that it held up.

    `values` are the numbers that were acknowledged, by their offset.
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
        """A Produce and a Fetch of what it wrote, over and over, until `until(pairs so far)`."""
        found = Latencies()
        began, pairs = time.monotonic(), 0
        while not until(pairs):
            due = began + pairs / self.pairs_per_s
            time.sleep(max(due - time.monotonic(), 0.0))
            try:
                self._pair(phase, due, found, knock=pairs % _DOORS_EVERY == 0)
            except (OSError, AssertionError) as error:
                self.result.wrong(phase, f"no answer: {type(error).__name__} {error}")
                self._wire.close()
                self._wire = WireClient(self.bootstrap)
            pairs += 1
        return found

    def _pair(self, phase: str, due: float, found: Latencies, *, knock: bool) -> None:
        offset = self._produce(phase)
        between = time.monotonic()
        self._fetch(phase, offset)
        done = time.monotonic()
        found.requests += [between - due, done - between]
        if knock:
            self._knock()
            found.doors.append(time.monotonic() - done)

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
        """What was fetched with what was sent; the offset behind it."""
        codecs, found = CodecTable(()), {}
        behind = -1
        for position, header in iter_headers(data):
            behind = header.next_offset
            for record in decode_batch(data, position, header, codecs):
                found[record.offset] = int((record.value or b"-1")[:9])
        for offset, value in found.items():
            if self.values.get(offset) != value:
                self.result.corrupt(at, f"offset {offset} holds {value}, {self.values.get(offset)} was written there")
        for offset in wanted - found.keys():
            self.result.lose(at, f"offset {offset} was acknowledged and is not there")
        return behind

    def _knock(self) -> None:
        with WireClient(self.bootstrap) as wire:
            metadata(wire, [self.topic])

    def read_all(self) -> None:
        """Everything that was acknowledged is there, as it was written."""
        offset, end = 0, max(self.values, default=-1) + 1
        while offset < end:
            answer = fetch(self._wire, self.topic, offset)
            data = bytes(answer.records or b"")
            last = max((h.next_offset for _, h in iter_headers(data)), default=0)
            if last <= offset:
                self.result.lose("the end", f"nothing is there from {offset} on", end - offset)
                return
            self._compare("the end", data, {o for o in self.values if offset <= o < last})
            offset = last

    def close(self) -> None:
        self._wire.close()
