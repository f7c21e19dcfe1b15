"""Replicated partitions whose leaders change, and the register, as the attempts of the simulation see them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from random import Random

from klamm.core.log.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from klamm.core.log.state.producer_state import ProducerState
from klamm.core.records.header import MAGIC, BatchHeader
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.spark.attempt import Registered


@dataclass(frozen=True)
class Stored:
    """A batch in a log; `content` is what its records hold."""

    header: BatchHeader
    content: Sequence[object]


def header_of(base_offset: int, producer: tuple[int, int], sequence: int, count: int, crc: int) -> BatchHeader:
    return BatchHeader(base_offset, 0, 0, MAGIC, crc, 0, count - 1, 0, 0, *producer, sequence, count)


class Partition:
    """A log with a high watermark. A change of the leader may remove the batches above it."""

    def __init__(self, name: str, number: int) -> None:
        self._tp = TopicPartition(name, number)
        self.batches: list[Stored] = []
        self.high_watermark = 0
        self.start = 0
        self.leader_epoch = 0
        self._producers = ProducerState(self._tp)

    @property
    def end(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else 0

    def visible(self, start: int = 0) -> list[Stored]:
        start = max(start, self.start)
        return [b for b in self.batches if start < b.header.next_offset <= self.high_watermark]

    def append(self, producer: tuple[int, int], sequence: int, content: Sequence[object], crc: int) -> int:
        """Appends a batch, or finds the stored one; returns its offset. Raises as `ProducerState.check`."""
        header = header_of(self.end, producer, sequence, len(content), crc)
        if (known := self._producers.check(header)) is not None:
            return known.base_offset
        self.batches.append(Stored(header, content))
        self._producers.update(header)
        return header.base_offset

    def replicate(self) -> None:
        self.high_watermark = self.end

    def change_leader(self, random: Random) -> None:
        """The new leader has all batches below the high watermark, and some of the others."""
        kept = [b for b in self.batches if b.header.next_offset <= self.high_watermark]
        others = self.batches[len(kept) :]
        self.batches = kept + others[: random.randint(0, len(others))]
        self.leader_epoch += 1
        self._load(self.batches)

    def forget_producers(self, are_idle: Callable[[int], bool]) -> None:
        """As brokers do (`producer.id.expiration.ms`)."""
        self._load([batch for batch in self.batches if not are_idle(batch.header.producer_id)])

    def _load(self, batches: Sequence[Stored]) -> None:
        self._producers = ProducerState(self._tp)
        for batch in [batch for batch in batches if batch.header.base_offset >= self.start]:
            self._producers.update(batch.header)


@dataclass
class Cluster:
    """A topic, the claims topic and the register. `lost` is the share of answers that do not arrive."""

    random: Random
    topic: list[Partition]
    claims: Partition
    lost: float = 0.0
    faults: bool = True
    register: Registered | None = None
    events: list[str] = field(default_factory=list)

    def logs(self) -> list[Partition]:
        return [*self.topic, self.claims]

    def produce(
        self, log: Partition, producer: tuple[int, int], sequence: int, content: Sequence[object], crc: int
    ) -> Generator[None, None, int]:
        """Sends a batch until it is acknowledged by all replicas; returns its offset. Raises as `Partition.append`."""
        while True:
            yield None
            offset = log.append(producer, sequence, content, crc)
            epoch, end = log.leader_epoch, offset + len(content)
            while log.high_watermark < end and log.leader_epoch == epoch:
                yield None
            if log.leader_epoch == epoch and not self._is_lost():
                return offset

    def _is_lost(self) -> bool:
        return self.faults and self.random.random() < self.lost


__all__ = ["Cluster", "InvalidProducerEpochError", "OutOfOrderSequenceError", "Partition", "Stored"]
