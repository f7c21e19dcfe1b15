"""Checks whether the offsets of earlier loads still refer to the same records.

An offset is valid in one topic (its id) and in one history of its log (design D5a). A topic that was deleted and
created again has another id. A log that was truncated below a loaded offset and has grown since, for instance on a
broker restored from an older backup, is detected in one of two ways:

- The batch that holds the last loaded offset has another base offset or CRC. This also detects a restored coordination,
  which allocates leader epochs a second time. If the batch is unchanged, nothing below it can have changed.
- The leader epoch under which that batch was written ends below it (OffsetForLeaderEpoch, KIP-320). This decides if the
  batch was deleted (retention) or rewritten (compaction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from klamm.core.client.errors import DataLossError
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition

from ...lake.layout import TopicLayout
from ...lake.manifest import BatchMark, PartitionRange


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded part of a topic, up to each partition's `end`, of an earlier load or of the current one."""

    topic_id: UUID | None
    partitions: Mapping[int, PartitionRange]


class TopicHistory(Protocol):
    """A topic's present history in the cluster."""

    def topic_id(self, topic: str) -> UUID | None:
        """Returns the topic's id; None if the broker does not report it."""
        ...

    def last_batches(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchMark]:
        """Returns the mark of the batch with the last offset before each end; none for end 0 and for deleted
        batches.
        """
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Returns the end of each leader epoch as it is now."""
        ...

    def is_compacted(self, topic: str) -> bool:
        """Returns True if the log cleaner may rewrite batches."""
        ...


class HistoryCheck:
    """Refuses to continue from offsets of another topic or of another history."""

    def __init__(self, now: TopicHistory) -> None:
        self._now = now

    def verify(self, layout: TopicLayout, loaded: Loaded) -> None:
        """Raises `DataLossError` in one line if the topic or its history is not the loaded one."""
        self.verify_topic(layout, loaded.topic_id)
        read = {TopicPartition(layout.topic, n): p for n, p in loaded.partitions.items()}
        marks = {tp: p.batch for tp, p in read.items() if p.batch is not None}
        changed = changes(self._now, {tp: p.end for tp, p in read.items()}, marks)
        if changed:
            first = min(changed)
            raise DataLossError(
                f"{first}: loaded up to offset {read[first].end}, but the log was cut below it and written again "
                f"({changed[first].why}), as when a broker is restored from an older backup; {way_out(layout)}"
            )

    def verify_topic(self, layout: TopicLayout, expected: UUID | None) -> None:
        """Raises `DataLossError` if the topic now has another id."""
        found = self._now.topic_id(layout.topic)
        if expected is not None and found is not None and expected != found:
            raise DataLossError(
                f"topic {layout.topic} was deleted and created again: {layout.base} holds records of topic id "
                f"{expected}, its id is now {found}; {way_out(layout)}"
            )


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """Evidence that a partition's history changed. `common_end`: the log below it is unchanged; None if that is
    unknown.
    """

    why: str
    common_end: int | None = None


def changes(
    now: TopicHistory, ends: Mapping[TopicPartition, int], marks: Mapping[TopicPartition, BatchMark]
) -> dict[TopicPartition, HistoryChange]:
    """Returns the partitions whose history changed below their end. `marks` identify the batches that held the last
    offsets before the ends; a partition without one is not checked.
    """
    found = now.last_batches({tp: ends[tp] for tp in marks}) if marks else {}
    unlike = {tp: mark for tp, mark in marks.items() if found.get(tp) != mark}
    asked = {tp: mark.leader_epoch for tp, mark in unlike.items() if mark.leader_epoch >= 0}
    epoch_ends = now.epoch_ends(asked) if asked else {}
    compacted = {topic: now.is_compacted(topic) for topic in {tp.topic for tp in unlike}}
    changed: dict[TopicPartition, HistoryChange] = {}
    for tp, mark in unlike.items():
        here, epoch_end = found.get(tp), epoch_ends.get(tp)
        same = here is not None and (here.base_offset, here.crc) == (mark.base_offset, mark.crc)
        common_end = epoch_end.cut(ends[tp]) if epoch_end is not None else None
        if here is not None and here.holds and mark.holds and not same and not compacted[tp.topic]:
            changed[tp] = HistoryChange(f"offset {ends[tp] - 1} is in another batch", common_end)
        elif epoch_end is not None and (common_end is not None or epoch_end.end_offset < 0):
            is_there = "is unknown" if common_end is None else f"ends at offset {common_end}"
            changed[tp] = HistoryChange(f"leader epoch {mark.leader_epoch} {is_there}", common_end)
    return changed


def way_out(layout: TopicLayout) -> str:
    """Returns the possible actions of a user after history has changed."""
    return f"move {layout.base} away to load the topic from the start"
