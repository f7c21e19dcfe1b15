"""Reads the histories of topics from a cluster: ids, batches, leader epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import ErrorCode
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.partition import TopicPartition

from ...lake.manifest import BatchMark

_MARK_BYTES: Final = 64 * 1024
"""Only the header of a batch is needed; a larger batch is returned whole if its partition is the first of the
response."""


class ClusterHistory:
    """Implements `klamm.hadoop.load.planning.history.TopicHistory` by a client, which the caller closes."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client

    def topic_id(self, topic: str) -> UUID | None:
        return self.client.topic_ids([topic]).get(topic)

    def last_batches(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchMark]:
        wanted = {tp: end - 1 for tp, end in ends.items() if end > 0}
        marks = {tp: _mark(headers, wanted[tp]) for tp, headers in self.headers_at(wanted).items()}
        return {tp: mark for tp, mark in marks.items() if mark is not None}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        return self.client.leader_epoch_ends(epochs)

    def is_compacted(self, topic: str) -> bool:
        return "compact" in (self.client.describe_configs(topic)["cleanup.policy"].value or "")

    def headers_at(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[BatchHeader, ...]]:
        """Returns the headers of the batch that contains the offset, or follows it, and of some batches after it; none
        if it was deleted.
        """
        return self.client.to_leaders(offsets, lambda node_id, share, _: self._headers(node_id, share))

    def _headers(
        self, node_id: int, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[BatchHeader, ...] | ErrorCode]:
        """Returns the headers or the error of each partition. A response holds at least one partition's batch, but
        perhaps not all.
        """
        found: dict[TopicPartition, tuple[BatchHeader, ...] | ErrorCode] = {}
        while left := {tp: offset for tp, offset in offsets.items() if tp not in found}:
            answers = self.client.fetch(node_id, left, partition_max_bytes=_MARK_BYTES)
            for tp, answer in answers.items():
                if answer.error is ErrorCode.offset_out_of_range:
                    found[tp] = ()
                elif answer.error is not ErrorCode.none:
                    found[tp] = answer.error
                elif headers := tuple(h for _, h in iter_headers(answer.records) if h.next_offset > left[tp]):
                    found[tp] = headers
            if not left.keys() & found.keys():
                found |= dict.fromkeys(left, ())
        return found


def _mark(headers: Sequence[BatchHeader], offset: int) -> BatchMark | None:
    """Returns the mark of the batch that contains `offset`, or of the next one if `offset` is in a gap; None without
    any.
    """
    if not headers:
        return None
    header = headers[0]
    if header.base_offset > offset:
        return BatchMark(leader_epoch=header.leader_epoch)
    return BatchMark(leader_epoch=header.leader_epoch, base_offset=header.base_offset, crc=header.crc)
