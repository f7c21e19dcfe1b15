"""Names on disk: partition directories, files of a segment, and what a name's suffix says.

`<topic>-<partition>/` holds a partition; `….<uuid>-delete` one that was deleted and waits for its files to go;
`….<uuid>-stray` one that the cluster did not know: set aside, never deleted.
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
SNAPSHOT: Final = ".snapshot"
REMOVED: Final = ".deleted"
"""Appended to a file that is removed after `file.delete.delay.ms`, or at the next start."""

CORRUPT: Final = ".corrupt"
"""Ends, after a time in ms, the names of a segment's files that recovery found behind a damaged one: out of the log,
left to be looked at."""

CLEANED: Final = ".cleaned"
"""Ends the names of files that compaction is writing: nothing until they are renamed; removed at the next start."""

SWAP: Final = ".swap"
"""Ends the name of a compacted segment that is whole and takes the place of others; the next start finishes that."""

TEMPORARY: Final = ".tmp"
PARTITION_METADATA: Final = "partition.metadata"
HOLES: Final = "offsets-have-gaps"
"""There once a log was compacted, or copied from one that was: offsets then need not follow one another exactly."""

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION_DIR: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_SUFFIXED: Final = re.compile(r".+\.[0-9a-f]{32}-(?P<kind>delete|stray)")
_SEGMENT_FILE: Final = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)")
_NAME_MAX: Final = 255


def check_topic_name(topic: str) -> None:
    """Kafka's rule: 1 to 249 of letters, digits, `.`, `_`, `-`, and neither `.` nor `..`."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicNameError(
            f"topic name {topic[:300]!r} should be 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'"
        )


def partition_directory(tp: TopicPartition) -> str:
    check_topic_name(tp.topic)
    return str(tp)


def parse_directory(name: str) -> TopicPartition | None:
    """The partition that a directory holds; None for any other name."""
    match = _PARTITION_DIR.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def is_deleted(name: str) -> bool:
    match = _SUFFIXED.fullmatch(name)
    return match is not None and match["kind"] == "delete"


def is_stray(name: str) -> bool:
    match = _SUFFIXED.fullmatch(name)
    return match is not None and match["kind"] == "stray"


def suffixed(tp: TopicPartition, unique: UUID, kind: str) -> str:
    """The name after deletion (`delete`) or setting aside (`stray`); the partition's part is cut to fit 255 bytes."""
    suffix = f".{unique.hex}-{kind}"
    return str(tp)[: _NAME_MAX - len(suffix)] + suffix


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix, for a name of 20 digits and one suffix."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match["base"]), match["suffix"]) if match else None
