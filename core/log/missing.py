"""Logs that are gone: a broker does not begin a partition again at offset 0 where it has written before.

The log directory as a whole is taken for empty where `meta.properties` or every checkpoint is missing: a broker writes
both before it is given its first partition. Then the partitions that the cluster has on this broker stop the start,
before anything is written. In a directory that is in use the checkpoint of high watermarks says which partitions have
held records; one of these without a segment is not made again. A topic that is new, and whose directory a crash has
prevented, is in no checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from klamm.core.errors import StorageError
from klamm.core.log.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from klamm.core.log.files import storage
from klamm.core.log.log_directory import META
from klamm.core.log.naming import LOG, is_deleted, is_stray, parse_directory, partition_directory
from klamm.core.records.partition import TopicPartition

_log = logging.getLogger(__name__)
ACCEPT: Final = "--accept-missing-logs"
_NAMED: Final = 3


class MissingLogs:
    """`tp in missing` where a partition's log is gone and that was not accepted. Not thread-safe: the manager's lock
    guards it."""

    def __init__(self, directory: Path, expected: Collection[TopicPartition], accept: bool) -> None:
        """`StorageError` where the whole directory is empty, `expected` should be there and that is not accepted."""
        self._directory = directory
        self._accept = accept
        self._ends: dict[TopicPartition, int] = {}
        self.accepted: set[TopicPartition] = set()
        """Partitions that begin again."""
        self.new_directory = self._is_new()
        gone = [tp for tp in sorted(expected) if self._is_empty(tp)] if self.new_directory else []
        if gone and not accept:
            raise StorageError(
                f"log directory {directory} is empty, but the cluster has {len(gone)} partitions here ({_some(gone)}): "
                f"mount or restore it, or start once with {ACCEPT} to begin them again without their records"
            )
        self.accepted.update(gone)

    def _is_new(self) -> bool:
        with storage(f"cannot read {self._directory}"):
            checkpoints = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)
            used = (self._directory / META).exists() and any((self._directory / name).exists() for name in checkpoints)
        return not used

    def _is_empty(self, tp: TopicPartition) -> bool:
        """Whether there is no segment, nor one that compaction is putting in place."""
        path = self._directory / partition_directory(tp)
        with storage(f"cannot read {path}"):
            return not path.is_dir() or not any(LOG in file.name for file in path.iterdir())

    def look(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note which of the partitions in the checkpoints are gone. What the broker itself has taken away (deleted, set
        aside) is not: the checkpoints may be older."""
        with storage(f"cannot read {self._directory}"):
            moved = {
                parse_directory(path.name.rpartition(".")[0])
                for path in self._directory.iterdir()
                if is_deleted(path.name) or is_stray(path.name)
            }
        for tp, end in ends.items():
            if end > 0 and tp not in moved and self._is_empty(tp):
                if self._accept:
                    self.accepted.add(tp)
                else:
                    self._ends[tp] = end
        for tp in sorted(self.accepted):
            _log.warning("%s begins again at offset 0: its log is gone, and %s was given", tp, ACCEPT)

    def __contains__(self, tp: object) -> bool:
        return tp in self._ends

    def ends(self) -> Mapping[TopicPartition, int]:
        """Where each ended, for the checkpoint: the next start must know it as well."""
        return dict(self._ends)

    def check(self, tp: TopicPartition) -> None:
        """`StorageError` where the partition must not be made again."""
        end = self._ends.get(tp)
        if end is not None:
            raise StorageError(
                f"{self._directory / partition_directory(tp)} has no segments, but its log ended at offset {end}: "
                f"restore it with the broker stopped, or start once with {ACCEPT} to begin it again without its records"
            )

    def forget(self, tp: TopicPartition) -> None:
        """The topic was deleted."""
        self._ends.pop(tp, None)


def _some(partitions: list[TopicPartition]) -> str:
    more = len(partitions) - _NAMED
    return ", ".join(map(str, partitions[:_NAMED])) + (f" and {more} more" if more > 0 else "")
