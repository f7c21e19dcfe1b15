"""Leader election after brokers have joined or left, as a pure function of the image.

Kafka's `PartitionLeaderElectionAlgorithms`, the offline case, without unclean election.
"""

from __future__ import annotations

from ..records.partition import TopicPartition
from .image import NO_LEADER, ClusterImage, PartitionImage


def elections(image: ClusterImage) -> dict[TopicPartition, PartitionImage]:
    """Returns the partitions whose leader must change, with their new state.

    A live leader stays. Otherwise the first live in-sync replica becomes the leader, and brokers that are not live
    leave the set of in-sync replicas. If no in-sync replica is live there is no leader and the set is kept: only its
    members have every acknowledged record.
    """
    changed = {}
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            elected = _elect(partition, live=set(image.brokers))
            if elected != partition:
                changed[TopicPartition(topic.name, number)] = elected
    return changed


def _elect(partition: PartitionImage, live: set[int]) -> PartitionImage:
    if partition.leader in live:
        return partition
    candidates = [replica for replica in partition.replicas if replica in partition.isr and replica in live]
    if candidates:
        isr = tuple(replica for replica in partition.isr if replica in live)
        return PartitionImage(candidates[0], partition.leader_epoch + 1, partition.replicas, isr)
    if partition.leader == NO_LEADER:
        return partition
    return PartitionImage(NO_LEADER, partition.leader_epoch + 1, partition.replicas, partition.isr)
