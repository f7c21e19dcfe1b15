"""Fetch answers in memory, for measuring readers without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.core.client.cluster_client import FetchedPartition
from klamm.core.client.network.metadata import ClusterMetadata, ClusterView
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.errors import ErrorCode
from klamm.core.records.codecs import CodecTable
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition


class StoredAnswers:
    """Serves a reader of one partition. `answers`: bytes by the offset at which they begin; `end`: the high
    watermark.
    """

    def __init__(self, answers: Mapping[int, bytes], end: int, codecs: CodecTable) -> None:
        self.answers = answers
        self.end = end
        self.codecs = codecs
        self.cluster = ClusterMetadata()

    def metadata(self, topics: Iterable[str]) -> ClusterView:  # noqa: ARG002
        return self.cluster.view

    def by_leader(self, partitions: Iterable[TopicPartition]) -> Mapping[int, list[TopicPartition]]:
        return {0: list(partitions)}

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:  # noqa: ARG002
        return {}

    def fetch(
        self,
        node_id: int,  # noqa: ARG002
        offsets: Mapping[TopicPartition, int],
        **_: object,
    ) -> Mapping[TopicPartition, FetchedPartition]:
        return {p: FetchedPartition(ErrorCode.none, self.end, 0, self.answers[at]) for p, at in offsets.items()}

    def reader(self, partition: TopicPartition) -> RangeReader:
        """Returns a reader of all stored records."""
        return RangeReader(self, OffsetRange(partition, 0, self.end), fail_on_data_loss=True, poll_timeout_s=5.0)
