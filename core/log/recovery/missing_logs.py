"""Detects lost logs: a broker does not restart a partition at offset 0 if it has written to it before.

The whole log directory counts as empty if `meta.properties` or every checkpoint is missing: a broker writes both
before it gets its first partition. If it is empty and the cluster has partitions on this broker, the start fails
before anything is written. In a directory that is in use, the checkpoints of recovery points and high watermarks
show which partitions have had records; one of these without a segment is not created again. The manager removes the
entries of a partition before it deletes or sets aside its directory, so an entry belongs to the log that is missing
now, whatever older directories (`-delete`, `-stray`) have the partition's name. If the partition's own directory is
that of an earlier topic of the name, the entry is that topic's, and the present one never began there: it is lost only
if the whole directory is older.

The checkpoints do not know a partition that was created after the backup from which they were restored. The
coordination does (`KnownPast`): every partition that existed at the broker's last start had a directory then. A
directory that has not seen that start is older, so a missing partition may have had records.

These are not lost: a partition that was created after the last start, which may have no directory yet because of a
crash; one that is being moved to this broker and is not in sync, which is not `expected`; and one without an entry
whose directory of the same topic was deleted or set aside, since it was moved to other brokers and back. That excuses
nothing in an older directory: it may have been back since. A partition that was moved to other brokers may still have
an entry, if the disk was full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from ...errors import StorageError
from ...records.partition import TopicPartition, counted, some_of
from ..log_directory import META
from ..segment.file_operations import storage
from ..segment.naming import LOG, is_deleted, is_stray, parse_directory, partition_directory
from ..state.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from ..state.last_start import NO_START, LastStart, read_last_start
from ..state.topic_id import read_topic_id

_log = logging.getLogger(__name__)
ACCEPT: Final = "--accept-missing-logs"
_UNKNOWN: Final = 0


@dataclass(frozen=True, slots=True)
class KnownPast:
    """The coordination's knowledge of the directory. `created` returns the creation id of a partition, which can be
    compared with broker epochs. `topic_ids`: the ids of the cluster's topics, by name; `former_ids`: those of the
    topics whose logs they have taken over. `registered_at`: the address of the broker that is registered with this
    one's id, which may be this one before it was killed; "" if there is none. `taken_id`: that id, if the address is
    not this one's, so that it is very likely another broker."""

    last_start: LastStart = field(default_factory=LastStart)
    created: Callable[[TopicPartition], int] = lambda _: NO_START
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    former_ids: Mapping[str, UUID] = field(default_factory=dict)
    registered_at: str = ""
    taken_id: int | None = None


def _registered(past: KnownPast) -> tuple[str, str]:
    """Returns the first and the last part of the message about the broker that is registered with this one's id."""
    if not past.registered_at:
        return "", ""
    if past.taken_id is None:
        return "", (
            f". If the broker at {past.registered_at}, which is registered with this broker's id, is another one, "
            "configure another `broker.id` instead"
        )
    return (
        f"broker id {past.taken_id} is taken by the live broker at {past.registered_at}; configure another "
        "`broker.id` for this one. If that one was this broker, and is dead: "
    ), ""


class MissingLogs:
    """The partitions whose logs are lost. `tp in missing` is True if the log of `tp` is lost and the operator has not
    accepted that. Not thread-safe: the manager's lock guards it."""

    def __init__(
        self, directory: Path, expected: Collection[TopicPartition], accept: bool, past: KnownPast = KnownPast()
    ) -> None:
        """Raises `StorageError` if the whole directory is empty, `expected` has partitions and `accept` is False."""
        self._directory = directory
        self._expected = expected
        self._past = past
        self._accept = accept
        self._ends: dict[TopicPartition, int] = {}
        self._moved: set[TopicPartition] = set()
        """Partitions of present topics that have a directory which was deleted or set aside."""
        self.accepted: set[TopicPartition] = set()
        """Partitions that may restart at offset 0."""
        self.former: set[TopicPartition] = set()
        """Lost partitions whose directory is that of an earlier topic of the name."""
        self.new_directory = self._is_new()
        self._seen = read_last_start(directory)
        self.is_older = not self.new_directory and self._seen.epoch < past.last_start.epoch
        """True if the directory has not seen the broker's last start."""
        gone = [tp for tp in sorted(expected) if self._is_empty(tp)] if self.new_directory else []
        if gone and not accept:
            taken, other = _registered(past)
            raise StorageError(
                f"{taken}log directory {directory} is empty, but the cluster has {counted(len(gone), 'partition')} "
                f"here ({some_of(gone)}): mount or restore it, or start once with {ACCEPT} to begin them again "
                f"without their records{other}"
            )
        self.accepted.update(gone)

    def _is_new(self) -> bool:
        with storage(f"cannot read {self._directory}"):
            checkpoints = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)
            used = (self._directory / META).exists() and any((self._directory / name).exists() for name in checkpoints)
        return not used

    def _is_empty(self, tp: TopicPartition) -> bool:
        """True if the partition has no segment, not even one that a compaction was about to swap in."""
        path = self._directory / partition_directory(tp)
        with storage(f"cannot read {path}"):
            return not path.is_dir() or not any(LOG in file.name for file in path.iterdir())

    def find(self, ends: Mapping[TopicPartition, int]) -> None:
        """Finds the lost partitions. `ends`: the end offsets in the checkpoints."""
        self._moved = self._find_moved()
        written = {tp: end for tp, end in ends.items() if end > 0}
        moved_away = self._moved.difference(self._expected)
        for tp in {*written, *self._expected} - self.accepted - moved_away:
            if not self.is_older and not self._is_empty(tp):
                continue
            if former := self._is_former(tp):  # in its place the present one never began, unless the directory is older
                lost, end = self.is_older and tp in self._expected, _UNKNOWN
            else:
                end = written.get(tp, _UNKNOWN)
                lost = self._is_empty(tp) and (end > 0 or self._was_here(tp))
            if lost and self._accept:
                self.accepted.add(tp)
            elif lost:
                self._ends[tp] = end
                if former:
                    self.former.add(tp)
        if self.accepted:
            _log.warning(
                "%s: %s without a log (%s): each begins without records, as %s says, or copies another replica",
                self._directory, counted(len(self.accepted), "partition"), some_of(self.accepted), ACCEPT,
            )  # fmt: skip

    def set_aside(self, tp: TopicPartition, end: int) -> None:
        """Records that the log of `tp` belongs to no known topic; by the checkpoints it ended at `end`, 0 if they do
        not know it."""
        if end <= 0 and not (tp in self._expected and self._was_here(tp)):
            return
        if self._accept:
            self.accepted.add(tp)
        else:
            self._ends[tp] = max(end, _UNKNOWN)

    def _is_former(self, tp: TopicPartition) -> bool:
        """True if the partition's directory is that of an earlier topic of the name, whose log the present one has not
        taken over."""
        present = self._past.topic_ids.get(tp.topic)
        found = None if present is None else self._topic_id(self._directory / partition_directory(tp))
        return found not in (None, present, self._past.former_ids.get(tp.topic))

    def _find_moved(self) -> set[TopicPartition]:
        found = set()
        with storage(f"cannot read {self._directory}"):
            paths = [path for path in self._directory.iterdir() if is_deleted(path.name) or is_stray(path.name)]
        for path in paths:
            tp = parse_directory(path.name.rpartition(".")[0])
            if (
                tp is not None
                and tp.topic in self._past.topic_ids
                and self._topic_id(path) == self._past.topic_ids[tp.topic]
            ):
                found.add(tp)
        return found

    def _topic_id(self, path: Path) -> UUID | None:
        try:
            return read_topic_id(path)
        except StorageError as error:
            _log.warning("%s: it is not known which topic's directory that is", error)
            return None

    def _was_here(self, tp: TopicPartition) -> bool:
        """Returns True if the broker has had a directory for the partition, as far as the coordination knows."""
        if self.is_older:
            return True
        seen, last = self._seen.complete_epoch, self._past.last_start.complete_epoch
        if seen == last:
            return tp not in self._moved and self._past.created(tp) < last
        # It was older at its last start, which could not tell the partitions that were here from those that were not.
        return seen < last and not self.new_directory and self._past.created(tp) < self._seen.epoch

    def __contains__(self, tp: object) -> bool:
        return tp in self._ends

    def ends(self) -> Mapping[TopicPartition, int]:
        """Returns the end offset of each lost partition, 0 if unknown. The checkpoint keeps it for the next start."""
        return dict(self._ends)

    def check(self, tp: TopicPartition) -> None:
        """Raises `StorageError` if the partition must not be created again."""
        end = self._ends.get(tp)
        if end is not None:
            known = f"its log ended at offset {end}"
            if end == _UNKNOWN:
                known = "it was here at the broker's last start"
                if self.is_older or self._seen.complete_epoch != self._past.last_start.complete_epoch:
                    known = (
                        "the log directory does not know all starts of the broker (was it restored from an older "
                        "backup?), and it may have been here since"
                    )
            raise StorageError(
                f"{self._directory / partition_directory(tp)} has no segments, but {known}: "
                f"restore it with the broker stopped, or start once with {ACCEPT} to begin it again without its records"
            )

    def forget(self, tp: TopicPartition) -> None:
        """Forgets a partition whose topic was deleted."""
        self._ends.pop(tp, None)
