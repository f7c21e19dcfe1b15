"""Chooses the segments that retention deletes: the oldest, none with records at or above the high watermark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...config.sections.topic import TopicConfig
from ..segment.segment import Segment

UNLIMITED: Final = -1


class Expired(NamedTuple):
    """The number of the oldest segments to delete, and the rule by which they are."""

    number: int
    reason: str


def expired(
    segments: Sequence[Segment], config: TopicConfig, now_ms: int, high_watermark: int, log_start: int
) -> Expired:
    """Returns the segments to delete: by time, by size, or because the log start offset has passed them.

    If it is all of them, the last one must be rolled first.
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
    """Counts by age: that of the largest timestamp, or of the file if no record has one."""
    if config.retention_ms == UNLIMITED:
        return 0
    count = 0
    for segment in segments:
        if not segment.size or now_ms - segment.retention_time_ms() <= config.retention_ms:
            break
        count += 1
    return count


def _by_size(segments: Sequence[Segment], config: TopicConfig) -> int:
    """Counts segments while the rest is still at least `retention.bytes` large; never the last segment."""
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
