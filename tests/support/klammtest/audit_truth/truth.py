"""The events of a run, as the application, the log and the lake's files show them, and the report that they require.

Nothing here comes from the audit. A record's value is its number, which identifies its sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient
from klamm.core.interfaces.audit import NO_WINDOW
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.comparison.tiers import State
from klammtest.audit_truth.cluster import WINDOW_MS

PRODUCER, BROKER, READERS, LAKE = TIERS = ("producer", "broker", "consumer/readers", "hadoop/lake")
FOREIGN = ""
"""Source of records whose clients do not take part in the audit."""


class Place(NamedTuple):
    """`life` is the number of times that the topic has been created again."""

    life: int
    partition: int
    offset: int


class Want(NamedTuple):
    """The counts that a report has to print for one tier in one window."""

    state: State
    records: int
    attempted: int = 0
    foreign: int = 0
    ratio: float = 1.0


@dataclass
class Sent:
    source: str
    window: int
    acknowledged: bool = False


@dataclass
class Truth:
    """`stored` and `handed` are records by place, including deleted ones.

    `committed` is the position up to which the group has committed; `twice` were delivered again after such a commit,
    to a group whose offsets were reset.
    """

    sent: dict[int, Sent] = field(default_factory=dict)
    stored: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """(number, window) by place."""
    handed: set[Place] = field(default_factory=set)
    twice: set[Place] = field(default_factory=set)
    committed: dict[tuple[int, int], int] = field(default_factory=dict)
    loaded: Counter[Place] = field(default_factory=Counter)
    life: int = 0
    stamped: bool = False
    """True if the broker stamps records, so that a producer does not know the window of a record that it attempts."""
    _next: int = 0

    def new(self, source: str, window: int) -> int:
        number, self._next = self._next, self._next + 1
        self.sent[number] = Sent(source, window)
        return number

    def read_log(self, client: ClusterClient, topic: str) -> None:
        """Adds the records that the log holds now."""
        for partition in client.partitions(topic):
            for offset, stamp, value in read_partition(client, partition):
                number = int(value)
                self.stored[Place(self.life, partition.partition, offset)] = (number, window_of(stamp))
                if self.stamped and number in self.sent:
                    self.sent[number].window = window_of(stamp)

    def windows(self) -> set[int]:
        return {sent.window for sent in self.sent.values()} | {window for _, window in self.stored.values()}

    def wants(self) -> dict[int, dict[str, Want]]:
        """Returns the expected counts by window start and tier."""
        return {start: {tier: self._want(tier, start) for tier in TIERS} for start in self.windows()}

    def _want(self, tier: str, start: int) -> Want:
        if tier == PRODUCER:
            mine = [sent for sent in self.sent.values() if sent.window == start and sent.source != FOREIGN]
            return Want(State.COMPLETE, sum(sent.acknowledged for sent in mine), len(mine))
        held = [(place, number) for place, (number, window) in self.stored.items() if window == start]
        if tier == BROKER:
            return self._broker(start, [number for _, number in held])
        if tier == READERS:
            return self._readers(held)
        return _compared(sum(self.loaded[place] for place, _ in held), len(held))

    def lake_may_lag(self, start: int) -> bool:
        """Returns True if all records of the window that the lake lacks lie beyond those that it has."""
        ends: dict[tuple[int, int], int] = {}
        for place in (place for place, count in self.loaded.items() if count):
            ends[place.life, place.partition] = max(ends.get((place.life, place.partition), 0), place.offset + 1)
        lacks = [place for place, (_, window) in self.stored.items() if window == start and not self.loaded[place]]
        return all(place.offset >= ends.get((place.life, place.partition), 0) for place in lacks)

    def _broker(self, start: int, held: Iterable[int]) -> Want:
        """Returns the broker tier's counts of each producer."""
        stored = Counter(self.sent[number].source for number in held)
        acknowledged = Counter(s.source for s in self.sent.values() if s.window == start and s.acknowledged)
        foreign, _ = stored.pop(FOREIGN, 0), acknowledged.pop(FOREIGN, 0)
        expected, records = acknowledged.total(), stored.total() + foreign
        short, over = (acknowledged - stored).total(), (stored - acknowledged).total()
        if short:
            return Want(State.MISSING, records, foreign=foreign, ratio=(expected - short) / expected)
        if over:
            ratio = (expected + over) / expected if expected else float("inf")
            return Want(State.DUPLICATED, records, foreign=foreign, ratio=ratio)
        return Want(State.COMPLETE, records, foreign=foreign)

    def _readers(self, held: Collection[tuple[Place, int]]) -> Want:
        """Returns the group's counts: what it has not committed is late."""
        passed = [place for place, _ in held if place.offset < self.committed.get((place.life, place.partition), 0)]
        want = _compared(sum(place in self.handed for place in passed), len(held))
        late = want.state is State.MISSING and all(place in self.handed for place in passed)
        return want._replace(state=State.LATE) if late else want


def _compared(records: int, expected: int) -> Want:
    ratio = records / expected if expected else 1.0
    state = State.MISSING if ratio < 1 else State.DUPLICATED if ratio > 1 else State.COMPLETE
    return Want(state, records, ratio=ratio)


def window_of(stamp_ms: int) -> int:
    return stamp_ms - stamp_ms % WINDOW_MS if stamp_ms >= 0 else NO_WINDOW


def read_partition(client: ClusterClient, partition: TopicPartition) -> Iterator[tuple[int, int, bytes]]:
    """Yields (offset, timestamp, value) of each record in the partition."""
    position, end = (client.list_offsets({partition: edge})[partition][0] for edge in (EARLIEST, LATEST))
    while position < end:
        [node_id] = client.by_leader([partition])
        data = client.fetch(node_id, {partition: position}, max_wait_ms=0)[partition].records
        before = position
        for at, header in iter_headers(data):
            if header.next_offset > position:
                columns = decode_columns(data, at, header, client.codecs, partition=partition)
                for offset, stamp, value in zip(columns.offsets, columns.timestamps_ms, columns.values, strict=True):
                    if offset >= position:
                        yield offset, stamp, value or b""
                position = header.next_offset
        if position == before:
            return
