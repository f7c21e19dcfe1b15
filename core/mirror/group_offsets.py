"""Which committed offsets of the source's groups are copied to the target (docs/mirror.md, M10)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..records.partition import TopicPartition


class GroupOffset(NamedTuple):
    """A committed offset and the leader epoch of the record before it, -1 if the group has not stored it."""

    offset: int
    leader_epoch: int = -1


class GroupPlan(NamedTuple):
    """`commits`: what to commit at the target. `copied`: what to store as copied before the commits are made. A value
    at the target counts as the mirror's own if it is one of these."""

    commits: Mapping[TopicPartition, GroupOffset]
    copied: Mapping[TopicPartition, tuple[GroupOffset, ...]]


def offsets_to_copy(
    source: Mapping[TopicPartition, GroupOffset],
    target: Mapping[TopicPartition, GroupOffset],
    copied: Mapping[TopicPartition, tuple[GroupOffset, ...]],
    ends: Mapping[TopicPartition, int],
    members: Collection[str],
) -> GroupPlan:
    """Plans one copy of a group's offsets.

    `source`: committed there, by the target's topic names; `target`: committed here; `copied`: the result of the last
    plan; `ends`: the high watermarks of the partitions that are mirrors and that a broker serves now (other partitions
    keep what was copied); `members`: of the group at the target.

    A partition whose value at the target is not one that was copied belongs to a group that has moved here, and is
    never overwritten; nor is any while the group has members. An offset above the mirror's end waits: a consumer would
    be reset by it.
    """
    commits: dict[TopicPartition, GroupOffset] = {}
    known = {partition: before for partition, before in copied.items() if partition not in ends}
    for partition, end in ends.items():
        here, before, there = target.get(partition), copied.get(partition, ()), source.get(partition)
        if here is not None and here not in before:
            continue
        if here is not None:
            known[partition] = (here,)
        if there is None or members or there == here or there.offset > end:
            continue
        commits[partition] = there
        known[partition] = (*known.get(partition, ()), there)
    return GroupPlan(commits, known)
