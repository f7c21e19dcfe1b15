"""One run: a topic whose records are sent, read and loaded, with the truth recorded beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa

import klamm
from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient, NewTopic
from klamm.core.errors import DeliveryError, KlammError
from klamm.core.groups.membership.member import LostOwnershipError
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.comparison.tiers import Kind
from klammtest.audit_truth.cluster import WINDOW_MS, TruthCluster
from klammtest.audit_truth.load import Lake, Spoil
from klammtest.audit_truth.truth import BROKER, FOREIGN, LAKE, PRODUCER, READERS, Place, Truth

GROUP = "readers"
DAY_MS = 86_400_000
START_MS = 1_356_998_400_000
WAIT_S = 300.0
LIMIT_S = 120.0
"""Seconds to wait for the broker tier to count, and for a producer's silence to be noticed."""
CONFIGS = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)}
"""Old records are kept, and the broker accepts timestamps from a clock that is ahead."""
Options = Mapping[str, Any]
"""Options of a producer, by Kafka's names."""
NO_OPTIONS: Options = MappingProxyType({})
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Problem:
    """A problem that a report must print for a tier. `text` is part of its line."""

    kind: Kind
    tier: str
    text: str = ""


@dataclass
class Allowed:
    """The expectations of a report besides the true counts.

    In the windows of `unknown` (by tier) a count may be unknown; `problems` must be printed. `clocks`: application and
    milliseconds ahead.
    """

    unknown: dict[str, set[int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    clocks: dict[str, int] = field(default_factory=dict)
    must_be_unknown: dict[str, set[int]] = field(default_factory=dict)
    """Windows, by tier, whose counts must be unknown."""
    may: list[Problem] = field(default_factory=list)
    """Problems that a report may print."""

    def may_be_unknown(self, tier: str, windows: set[int]) -> None:
        self.unknown.setdefault(tier, set()).update(windows)


class Pipeline:
    """The run of one topic. `windows`: their starts, ascending; the first three are on the day before."""

    def __init__(self, cluster: TruthCluster, name: str, chance: random.Random, limit_s: float = LIMIT_S) -> None:
        """`limit_s`: after this time a report that is still wrong is judged as it is."""
        self.cluster, self.chance, self.limit_s = cluster, chance, limit_s
        self.topic = name
        self.truth = Truth()
        self.allowed = Allowed()
        self.events: list[str] = []
        """The names of the events of this run."""
        self.early: list[str] = []
        """Wrong statements of reports that were made before the end."""
        self.partitions = chance.randint(1, 3)
        first = START_MS + chance.randrange(1000) * DAY_MS + chance.randrange(1000) * WINDOW_MS
        self.long_ago = [first + n * WINDOW_MS for n in range(3)]
        self.windows = [first + DAY_MS + n * WINDOW_MS for n in range(chance.randint(3, 6))]
        self.folder = cluster.folder / name
        self.first_ends: dict[int, int] = {}
        """End offsets of the partitions after the old records were sent, read and loaded."""
        self.harmless = False
        """The planted fault loses nothing, and the report has to say so."""
        self.future = False
        """Records with tomorrow's date were sent: the watermark does not reach them."""
        self._producers = 0
        self._stack = ExitStack()

    def __enter__(self) -> Pipeline:
        self.client: ClusterClient = self._stack.enter_context(self.cluster.client())
        self.client.create_topics({self.topic: NewTopic(self.partitions, configs=CONFIGS)})
        self.lake = Lake(self.folder, self.cluster.settings(), self.topic)
        self._stack.callback(self.lake.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- who sends

    def source(self) -> str:
        """Returns the name of a new producer."""
        self._producers += 1
        return f"{self.topic}-{self._producers}"

    def stamp(self, window: int) -> int:
        return window + self.chance.randrange(WINDOW_MS)

    def numbers(self, source: str, windows: Sequence[int], records: int) -> list[tuple[int, int]]:
        """Returns (number, timestamp) of that many new records."""
        chosen = [self.chance.choice(windows) for _ in range(records)]
        return [(self.truth.new(source, window), self.stamp(window)) for window in chosen]

    def send(
        self,
        windows: Sequence[int],
        records: int = 0,
        *,
        spoiled: bool = False,
        arrow: bool = False,
        options: Options = NO_OPTIONS,
    ) -> None:
        """Runs one audited producer from start to end, by `Producer.send` or `send_arrow`, with options of its own."""
        records = records or self.chance.randint(5, 40)
        source = self.source()
        with self.producer(source, options, spoiled=spoiled) as producer:
            send = self.send_table if arrow else self.send_records
            send(producer, self.numbers(source, windows, records))

    @contextmanager
    def producer(
        self, source: str, options: Options = NO_OPTIONS, *, spoiled: bool = False
    ) -> Iterator[klamm.Producer]:
        given: dict[str, Any] = {
            "client.id": source,
            "compression.type": self.chance.choice(CODECS),
            "linger.ms": self.chance.choice((0, 5)),
            "batch.size": self.chance.choice((200, 1_000, 16_384)),
            **options,
        }
        if spoiled:
            given["bootstrap.servers"] = self.cluster.spoiled
        with klamm.Producer(self.cluster.settings(given)) as producer:
            yield producer

    def recent(self) -> set[int]:
        """Returns the windows of all records except the old ones."""
        later = {
            window
            for place, (_, window) in self.truth.stored.items()
            if place.offset >= self.first_ends.get(place.partition, 0)
        }
        return later.union(self.windows)

    def send_records(self, producer: klamm.Producer, numbers: Sequence[tuple[int, int]], width: int = 0) -> None:
        """Sends records and waits until each is acknowledged or has failed. `width`: of values, in bytes."""
        sent = [
            (number, producer.send(self.topic, (b"%d" % number).ljust(width), key=b"%d" % number, timestamp_ms=stamp))
            for number, stamp in numbers
        ]
        for number, future in sent:
            with suppress(DeliveryError):
                future.result(WAIT_S)
                self.truth.sent[number].acknowledged = True

    def send_table(self, producer: klamm.Producer, numbers: Sequence[tuple[int, int]]) -> None:
        values = [b"%d" % number for number, _ in numbers]
        stamps = pa.array([stamp for _, stamp in numbers], pa.timestamp("ms"))
        table = pa.table({"value": pa.array(values), "key": pa.array(values), "timestamp": stamps})
        producer.send_arrow(self.topic, table).result(WAIT_S)
        for number, _ in numbers:
            self.truth.sent[number].acknowledged = True

    def send_foreign(self, windows: Sequence[int]) -> None:
        """Sends records by a foreign client, which does not take part in the audit."""
        numbers = self.numbers(FOREIGN, windows, self.chance.randint(1, 15))
        self.chance.choice((_confluent, _kafka_python))(self.cluster.bootstrap, self.topic, numbers)
        for number, _ in numbers:
            self.truth.sent[number].acknowledged = True

    # -- who reads

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        reader = Reader(self)
        try:
            yield reader
        finally:
            reader.consumer.close()

    def read_all(self) -> None:
        with self.reader() as reader:
            reader.to_end()
            reader.commit()

    def ends(self, edge: int = LATEST) -> dict[int, int]:
        found = self.client.list_offsets(dict.fromkeys(self.client.partitions(self.topic), edge))
        return {partition.partition: offset for partition, (offset, _) in found.items()}

    def starts(self) -> dict[int, int]:
        return self.ends(EARLIEST)

    def group_offsets(self) -> dict[TopicPartition, int]:
        return {p: c.offset for p, c in self.client.fetch_offsets(self.group).items() if p.topic == self.topic}

    @property
    def group(self) -> str:
        """The name of this topic's own group: members of one group would wait for each other."""
        return f"{GROUP}-{self.topic}"

    @property
    def tier_names(self) -> dict[str, str]:
        """The tiers of the truth → their names in a report."""
        return {PRODUCER: "producer", BROKER: "broker", READERS: f"consumer/{self.group}", LAKE: "hadoop/lake"}

    # -- who loads

    def load(self, spoil: Spoil | None = None) -> None:
        self.truth.read_log(self.client, self.topic)
        self.lake.load(spoil)

    # -- the end

    def settle(self) -> None:
        """Adds the records that are now stored, committed and loaded to the truth."""
        self.truth.read_log(self.client, self.topic)
        for partition, offset in self.group_offsets().items():
            key = (self.truth.life, partition.partition)
            self.truth.committed[key] = max(offset, self.truth.committed.get(key, 0))
        self.truth.loaded.clear()
        for partition_number, offset, _ in self.lake.rows():
            self.truth.loaded[Place(self.truth.life, partition_number, offset)] += 1


class Reader:
    """A member of the group."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        settings = pipeline.cluster.settings()
        self.consumer = klamm.Consumer(settings, group=pipeline.group, topics=[pipeline.topic])
        self._tables = pipeline.chance.random() < 0.3

    def poll(self, most: int = 1000) -> int:
        """Polls once, records or a table of them."""
        if self._tables:
            table = self.consumer.poll_arrow(0.05, most)
            places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            handed = [(int(partition), int(offset)) for partition, offset in places]
        else:
            handed = [(record.partition, record.offset) for record in self.consumer.poll(0.05, most)]
        truth = self._pipeline.truth
        truth.handed.update(Place(truth.life, partition, offset) for partition, offset in handed)
        return len(handed)

    def to_end(self, *others: Reader) -> None:
        """Polls until this member and the others have reached the ends of all partitions."""
        ends, members = self._pipeline.ends(), (self, *others)

        def done() -> bool:
            at: dict[int, int] = {}
            for member in members:
                at |= member.positions()
            return all(at.get(partition, -1) >= end for partition, end in ends.items())

        within(done, "the ends of the partitions", lambda: [member.poll() for member in members])

    def until(self, records: int) -> None:
        """Polls until this member has received `records` records."""
        got = [0]

        def poll() -> None:
            got[0] += self.poll(min(3, records - got[0]))

        within(lambda: got[0] >= records, f"{records} records", poll)

    def owned(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    def assigned(self) -> None:
        """Waits until the member owns all partitions; polls no record."""
        count = len(self._pipeline.client.partitions(self._pipeline.topic))
        within(lambda: len(self.owned()) == count, "an assignment", lambda: time.sleep(0.01))

    def positions(self) -> dict[int, int]:
        found = {}
        for partition in self.owned():
            with suppress(KlammError):
                found[partition.partition] = self.consumer.position(partition, 0)
        return found

    def commit(self) -> None:
        """Commits; ignores partitions that the member no longer owns."""
        with suppress(LostOwnershipError):
            self.consumer.commit()


def within(condition: Callable[[], bool], what: str, step: Callable[[], object], limit_s: float = WAIT_S) -> None:
    """Calls `step` until the condition is true; raises `TimeoutError` if that takes too long."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {limit_s:.0f} s")
        step()


def _confluent(bootstrap: str, topic: str, numbers: Sequence[tuple[int, int]]) -> None:
    from confluent_kafka import Producer

    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 2})
    for number, stamp in numbers:
        producer.produce(
            topic, b"%d" % number, key=b"%d" % number, timestamp=stamp,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )  # fmt: skip
    left = producer.flush(WAIT_S)
    if left or errors:
        raise RuntimeError(f"confluent-kafka: {left} records were not sent, {errors[:1]}")


def _kafka_python(bootstrap: str, topic: str, numbers: Sequence[tuple[int, int]]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=0)
    sent = [producer.send(topic, b"%d" % n, key=b"%d" % n, timestamp_ms=stamp) for n, stamp in numbers]
    producer.flush(WAIT_S)
    for future in sent:
        future.get(WAIT_S)
    producer.close()
