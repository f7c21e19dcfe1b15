"""A topic that becomes a mirror of its former mirror (docs/mirror.md, section "Adopt")."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..replication.partition_state import NO_EPOCH, PartitionState
from ..replication.replica_log import ReplicaLog


class PromotionStart(NamedTuple):
    """Where the former mirror was promoted: its first offset that is not the source's, and the leader epoch of it."""

    offset: int
    leader_epoch: int


def common_end(log: ReplicaLog, promotion: PromotionStart) -> int:
    """Returns the offset at which a replica of the former source is cut before it takes a role.

    Below this offset the log has only epochs from before the promotion, in which only the former source has written, so
    further differences are found by epochs, as between any two logs. Above it an epoch may name different records in
    the two clusters, since both have elected leaders. The offset may be below the log start: then nothing of the log is
    kept.
    """
    _, end = log.end_offset_for_epoch(promotion.leader_epoch - 1)
    return min(promotion.offset, log.log_end_offset if end < 0 else end)


def adopted(state: PartitionState, link: str, promotion: PromotionStart, epoch_floor: int) -> PartitionState:
    """Returns the state in which the leader mirrors the partition. Only the leader is in sync: where the others are cut
    is not known yet."""
    epoch = max(state.leader_epoch + 1, promotion.leader_epoch, epoch_floor)
    ids = {state.leader: state.data_ids[state.leader]}
    return replace(
        state, mirror=link, leader_epoch=epoch, promoted_epoch=NO_EPOCH, isr=(state.leader,), elr=(), data_ids=ids
    )
