"""Names on disk: partition directories, the files of a segment, and the suffixes of both.

`<topic>-<partition>/` contains a partition; `….<uuid>-delete` one that was deleted, until its files are removed;
`….<uuid>-stray` one that the cluster did not know: it is set aside and never deleted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from uuid import UUID

from ...records.partition import TopicPartition
from ..errors import InvalidTopicNameError

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
"""The suffixes of a segment's indexes (`SegmentIndexes`): files that can be rebuilt from the batches of the log."""
SNAPSHOT: Final = ".snapshot"
REMOVED: Final = ".deleted"
"""The last suffix of a file that is removed after `file.delete.delay.ms`, or at the next start."""

CORRUPT: Final = ".corrupt"
"""The last suffix, after a time in ms, of the files of a segment that comes after a truncated one: recovery has taken
it out of the log, and an operator may examine it."""

CLEANED: Final = ".cleaned"
"""The last suffix of files that compaction is writing: they are not part of the log until they are renamed, and the
next start removes them."""

SWAP: Final = ".swap"
"""The last suffix of a compacted segment that is complete and replaces other segments; if a crash interrupts that, the
next start finishes it."""

TEMPORARY: Final = ".tmp"
PARTITION_METADATA: Final = "partition.metadata"
OFFSET_GAPS: Final = "offsets-have-gaps"
"""A file that exists once the log was compacted, or copied from a compacted one: its batches may have gaps between
their offsets."""

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION_DIR: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_SUFFIXED: Final = re.compile(r".+\.[0-9a-f]{32}-(?P<kind>delete|stray)")
_SEGMENT_FILE: Final = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)")
_NAME_MAX: Final = 255


def check_topic_name(topic: str) -> None:
    """Raises `InvalidTopicNameError` by Kafka's rule: 1 to 249 letters, digits, `.`, `_` or `-`, but neither `.` nor
    `..`."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicNameError(
            f"topic name {topic[:300]!r} should be 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'"
        )


def partition_directory(tp: TopicPartition) -> str:
    """Returns the name of the partition's directory; raises `InvalidTopicNameError`."""
    check_topic_name(tp.topic)
    return str(tp)


def parse_directory(name: str) -> TopicPartition | None:
    """Returns the partition that a directory of this name contains; None for any other name."""
    match = _PARTITION_DIR.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def is_deleted(name: str) -> bool:
    """True for the name of a directory whose partition was deleted."""
    match = _SUFFIXED.fullmatch(name)
    return match is not None and match["kind"] == "delete"


def is_stray(name: str) -> bool:
    """True for the name of a directory that was set aside."""
    match = _SUFFIXED.fullmatch(name)
    return match is not None and match["kind"] == "stray"


def suffixed(tp: TopicPartition, unique: UUID, kind: str) -> str:
    """Returns the name of a directory that was deleted (`delete`) or set aside (`stray`). The part with the partition
    is shortened so that the name has at most 255 bytes."""
    suffix = f".{unique.hex}-{kind}"
    return str(tp)[: _NAME_MAX - len(suffix)] + suffix


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    """Returns the path of a segment's file: the base offset in 20 digits, then the suffix."""
    return directory / f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Returns the base offset and the suffix of a name of 20 digits and one suffix; None for any other name."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match["base"]), match["suffix"]) if match else None
