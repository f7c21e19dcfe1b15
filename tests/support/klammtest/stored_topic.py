"""A topic in memory, as the readers of `klamm.core.client.reader` see one through their client."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from klamm.core.client.cluster_client import EARLIEST, FetchedPartition, Lineage
from klamm.core.client.network.metadata import ClusterMetadata, ClusterView, PartitionView, TopicView
from klamm.core.errors import ErrorCode
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.one_record import RecordTuple
from klamm.core.records.partition import TopicPartition

NODE = 1


@dataclass
class StoredLog:
    """One partition. `batches`: (next offset, bytes). `epochs`: (leader epoch, first offset), of which the last is
    current.
    """

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    high_watermark: int | None = None
    """The high watermark; None means the end of the log."""

    @property
    def end(self) -> int:
        return self.batches[-1][0] if self.batches else self.start

    @property
    def visible(self) -> int:
        return self.end if self.high_watermark is None else self.high_watermark

    def append(self, *records: RecordTuple) -> None:
        """Appends one batch."""
        base = self.end
        data = encode_batch(records, base_offset=base, leader_epoch=self.epochs[-1][0])
        self.batches.append((base + len(records), data))

    def store(self, batch: bytes | bytearray) -> int:
        """Appends an encoded batch, as Produce does; returns its base offset."""
        base, leader_epoch = self.end, self.epochs[-1][0]
        (last_offset_delta,) = struct.unpack_from(">i", batch, 23)
        data = struct.pack(">q", base) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]
        self.batches.append((base + last_offset_delta + 1, bytes(data)))
        return base

    def elect(self) -> None:
        self.epochs.append((self.epochs[-1][0] + 1, self.end))

    def batch_at(self, offset: int) -> bytes:
        """Returns the visible batch with the offset, or the first after it; nothing if there is none."""
        found = (data for following, data in self.batches if following > offset and offset < self.visible)
        return bytes(next(found, b""))

    def cut(self, batches: int) -> None:
        """Removes that many batches from its end, under a new leader epoch."""
        del self.batches[len(self.batches) - batches :]
        self.elect()


def epoch_end(log: StoredLog, asked: int) -> EpochEnd:
    """Returns where the leader epoch ends, as OffsetForLeaderEpoch does."""
    if asked > log.epochs[-1][0]:
        return EpochEnd(-1, -1)
    largest = max((epoch for epoch, _ in log.epochs if epoch <= asked), default=-1)
    return EpochEnd(largest, min((first for epoch, first in log.epochs if epoch > largest), default=log.end))


class StoredTopic:
    """A `TableClient` of a topic. Each fetch returns one of the batches.

    `mishaps` are answered first, in order; `fetched`, `lineages` and `refreshed` record the requests; `asked` is called
    with each request's name and time-out. With `compares` a Fetch's last epoch is compared with the log, as brokers do
    from Fetch 12 on.
    """

    def __init__(self, name: str = "t", partitions: int = 1, codecs: CodecTable | None = None) -> None:
        self.name = name
        self.codecs = codecs or CodecTable()
        self.cluster = ClusterMetadata()
        self.request_timeout_s = 5.0
        self.topic_id: UUID | None = uuid4()
        self.logs = {number: StoredLog() for number in range(partitions)}
        self.mishaps: list[ErrorCode | Exception] = []
        self.fetched: list[tuple[int, int]] = []
        self.lineages: list[Lineage] = []
        self.compares = False
        self.waits_ms: list[int] = []
        self.refreshed = 0
        self.asked: Callable[[str, float | None], None] = lambda _name, _timeout_s: None

    def create_again(self) -> None:
        self.topic_id = uuid4()
        self.logs = {number: StoredLog() for number in self.logs}

    def partitions(self, topic: str) -> list[TopicPartition]:
        self.metadata([topic])
        return [TopicPartition(topic, number) for number in self.logs]

    def metadata(self, topics: Iterable[str], *, timeout_s: float | None = None) -> ClusterView:
        self.asked("metadata", timeout_s)
        self.refreshed += 1
        parts = {number: PartitionView(NODE, log.epochs[-1][0]) for number, log in self.logs.items()}
        topic = TopicView(self.name, ErrorCode.none, parts, topic_id=self.topic_id)
        self.cluster.update(ClusterView(topics={self.name: topic}))
        return self.cluster.view

    def by_leader(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[int, list[TopicPartition]]:
        if self.name not in self.cluster.view.topics:
            self.metadata([self.name], timeout_s=timeout_s)
        return {NODE: list(partitions)}

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        self.asked("list_offsets", timeout_s)
        logs = {partition: self.logs[partition.partition] for partition in timestamps}
        return {p: (log.start if timestamps[p] == EARLIEST else log.visible, -1) for p, log in logs.items()}

    def leader_epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        self.asked("leader_epoch_ends", timeout_s)
        return {partition: self._epoch_end(partition.partition, epoch) for partition, epoch in epochs.items()}

    def _epoch_end(self, number: int, asked: int) -> EpochEnd:
        return epoch_end(self.logs[number], asked)

    def fetch(
        self,
        node_id: int,
        offsets: Mapping[TopicPartition, int],
        *,
        lineages: Mapping[TopicPartition, Lineage],
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        isolation: IsolationLevel,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, FetchedPartition]:
        self.asked("fetch", None if timeout_s is None else timeout_s - max_wait_ms / 1000)
        [(partition, offset)] = offsets.items()
        self.fetched.append((partition.partition, offset))
        self.lineages.append(lineages[partition])
        self.waits_ms.append(max_wait_ms)
        log = self.logs[partition.partition]
        mishap = self.mishaps.pop(0) if self.mishaps else ErrorCode.none
        if isinstance(mishap, Exception):
            raise mishap
        if mishap is ErrorCode.none and not log.start <= offset <= log.end:
            mishap = ErrorCode.offset_out_of_range
        if self.compares and mishap is ErrorCode.none and (last := lineages[partition].last_epoch) >= 0:
            end = self._epoch_end(partition.partition, last)
            if end.leader_epoch < last or end.end_offset < offset:
                return {partition: FetchedPartition(mishap, log.visible, log.start, b"", log.visible, diverging=end)}
        if mishap is not ErrorCode.none:
            return {partition: FetchedPartition(mishap, -1, log.start, b"")}
        data = log.batch_at(offset)
        return {partition: FetchedPartition(ErrorCode.none, log.visible, log.start, data, log.visible)}
