"""The state of a partition whose mirror ends (docs/mirror.md, section "Promote")."""

from __future__ import annotations

from dataclasses import replace

from ..replication.partition_state import NO_EPOCH, PartitionState


def promoted(state: PartitionState, source_epoch: int = NO_EPOCH) -> PartitionState:
    """Returns the state in which clients write the partition, in a leader epoch above all that its log can have: a
    mirror's log has no epoch above that of its state (M1). `source_epoch`: the largest that the source is known to
    have, so that the two clusters do not continue with the same one."""
    epoch = max(state.leader_epoch, source_epoch) + 1
    return replace(state, mirror="", leader_epoch=epoch, promoted_epoch=epoch)
