"""Chooses the segments that retention deletes: the oldest ones, but none with records at or above the high
watermark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...config.sections.topic import TopicConfig
from ..segment.segment import Segment

UNLIMITED: Final = -1


class Expired(NamedTuple):
    """The number of the oldest segments to delete, and the rule that requires it."""

    number: int
    reason: str


def expired(
    segments: Sequence[Segment], config: TopicConfig, now_ms: int, high_watermark: int, log_start: int
) -> Expired:
    """Returns how many segments to delete, by time, by size or because they end below the log start offset.

    If it is all segments, the caller must roll the last one first.
    """
    below = sum(segment.next_offset <= high_watermark for segment in segments)
    passed = sum(segment.next_offset <= log_start for segment in segments[:-1])
    found = [Expired(passed, "below the log start offset")]
    if config.deletes:
        found.append(Expired(_by_time(segments, config, now_ms), f"retention.ms={config.retention_ms}"))
        found.append(Expired(_by_size(segments, config), f"retention.bytes={config.retention_bytes}"))
    number, reason = max(found, key=lambda each: each.number)
    return Expired(min(number, below), reason)


def _by_time(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    """Returns how many of the oldest segments are older than `retention.ms`, by the largest timestamp, or by the
    file's time if no record has a timestamp."""
    if config.retention_ms == UNLIMITED:
        return 0
    count = 0
    for segment in segments:
        if not segment.size or now_ms - segment.retention_time_ms() <= config.retention_ms:
            break
        count += 1
    return count


def _by_size(segments: Sequence[Segment], config: TopicConfig) -> int:
    """Returns how many of the oldest segments can be deleted so that the rest still has at least `retention.bytes`;
    never the last segment."""
    if config.retention_bytes == UNLIMITED:
        return 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments[:-1]:
        excess -= segment.size
        if excess < 0:
            break
        count += 1
    return count
