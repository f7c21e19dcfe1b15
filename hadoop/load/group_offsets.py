"""Commits the offsets of published loads to the sink's consumer group, so that ordinary lag tools see the batch job.

The manifest is authoritative: a load never begins at a committed offset. A commit that fails is repeated by the next
run.
"""

from __future__ import annotations

from typing import Final

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition

from ..lake.manifest import Manifest, PartitionRange

TIMEOUT_S: Final = 10.0
"""The load is published already: an unresponsive broker or coordination must not delay it for long."""


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self, client: ClusterClient, group: str, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self.group = group
        self._timeout_s = timeout_s

    def commit(self, manifest: Manifest) -> None:
        """Commits the end of each partition of the load, unless the group has these offsets. Raises `KlammError` if
        that is not possible, for instance while the group has members."""
        wanted = {TopicPartition(manifest.topic, number): span for number, span in manifest.partitions.items()}
        stored = self._client.fetch_offsets(self.group, wanted, timeout_s=self._timeout_s)
        changed = {
            tp: _committed(manifest, span)
            for tp, span in wanted.items()
            if tp not in stored or stored[tp].offset != span.end
        }
        if changed:
            self._client.commit_offsets(self.group, changed, timeout_s=self._timeout_s)


def _committed(manifest: Manifest, span: PartitionRange) -> CommittedOffset:
    epoch = -1 if span.batch is None else span.batch.leader_epoch
    return CommittedOffset(span.end, epoch, f"load={manifest.load}", topic_id=manifest.topic_id)
