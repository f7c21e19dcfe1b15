"""Whether the offsets of earlier loads still mean the same records.

An offset means something in one topic (its id) and in one history of its log (design D5a). A topic that was deleted and
created again has another id. A log that was cut below a loaded offset and has grown since, as when a broker is restored
from an older backup, shows in one of two ways:

- The batch that holds the last loaded offset has another base offset or CRC. This also finds a restored coordination,
  which gives out leader epochs a second time. Where the batch is as it was, nothing below it can have changed.
- The leader epoch under which that batch was written ends below it (OffsetForLeaderEpoch, KIP-320). This decides where
  the batch is gone (retention) or rewritten (compaction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from klamm.core.client.cluster_client import EpochEnd
from klamm.core.client.range_reader import DataLossError
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.layout import TopicLayout
from klamm.hadoop.manifest import BatchMark, PartitionRange


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded of a topic, up to each partition's `end`; by a load, or by the one being made."""

    topic_id: UUID | None
    partitions: Mapping[int, PartitionRange]


class TopicHistory(Protocol):
    """What the cluster says of a topic's history now."""

    def topic_id(self, topic: str) -> UUID | None:
        """None when the broker does not tell."""
        ...

    def last_batches(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchMark]:
        """Of the batch that holds the last offset before each end. Left out: end 0, and what retention deleted."""
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where each leader epoch ends now."""
        ...

    def is_compacted(self, topic: str) -> bool:
        """Whether the log cleaner may rewrite batches."""
        ...


class HistoryCheck:
    """Refuses to go on from offsets of another topic or of another history."""

    def __init__(self, now: TopicHistory) -> None:
        self._now = now

    def verify(self, layout: TopicLayout, loaded: Loaded) -> None:
        """`DataLossError` in one line when the topic or its history is not what was loaded. What earlier versions did
        not record is not checked."""
        self.verify_topic(layout, loaded.topic_id)
        changed = self._changed(layout.topic, loaded.partitions)
        if changed:
            first = min(changed)
            end = loaded.partitions[first.partition].end
            raise DataLossError(
                f"{first}: loaded up to offset {end}, but the log was cut below it and written again "
                f"({changed[first]}), as when a broker is restored from an older backup; {way_out(layout)}"
            )

    def verify_topic(self, layout: TopicLayout, expected: UUID | None) -> None:
        """`DataLossError` when the topic has another id now."""
        found = self._now.topic_id(layout.topic)
        if expected is not None and found is not None and expected != found:
            raise DataLossError(
                f"topic {layout.topic} was deleted and created again: {layout.base} holds records of topic id "
                f"{expected}, its id is {found} now; {way_out(layout)}"
            )

    def _changed(self, topic: str, partitions: Mapping[int, PartitionRange]) -> dict[TopicPartition, str]:
        """Partitions whose history changed, with what shows it."""
        marks = {TopicPartition(topic, n): p.batch for n, p in partitions.items() if p.batch is not None}
        ends = {tp: partitions[tp.partition].end for tp in marks}
        found = self._now.last_batches(ends) if marks else {}
        unlike = {tp: mark for tp, mark in marks.items() if found.get(tp) != mark}
        if not unlike:
            return {}
        compacted = self._now.is_compacted(topic)
        changed: dict[TopicPartition, str] = {}
        for tp, mark in unlike.items():
            now = found.get(tp)
            same = now is not None and (now.base_offset, now.crc) == (mark.base_offset, mark.crc)
            if now is not None and now.holds and mark.holds and not same and not compacted:
                changed[tp] = f"offset {ends[tp] - 1} is in another batch"
        asked = {tp: mark.leader_epoch for tp, mark in unlike.items() if tp not in changed and mark.leader_epoch >= 0}
        for tp, end in (self._now.epoch_ends(asked) if asked else {}).items():
            if end.end_offset < ends[tp]:
                changed[tp] = f"leader epoch {asked[tp]} " + (
                    f"ends at offset {end.end_offset}" if end.end_offset >= 0 else "is unknown"
                )
        return changed


def way_out(layout: TopicLayout) -> str:
    """What a user can do when history changed."""
    return f"move {layout.base} away to load the topic from the start"
