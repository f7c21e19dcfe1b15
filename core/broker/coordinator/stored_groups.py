"""The offsets and the states of classic groups in one partition of `__consumer_offsets`, at its leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...groups.records.batches import Rows, batch_of, commit_rows, deletion_rows, state_rows
from ...groups.records.contents import OffsetsContents
from ...groups.records.stored_group import StoredGroup
from ...interfaces.coordination import Check, Coordination
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from .shard_log import ShardLog


class StoredGroups:
    """Implements `klamm.core.interfaces.offsets.OffsetStore`, and `Replayed` for its own log. A deletion of offsets
    that were seen does not affect commits of registry members that are in the log and not yet below the high
    watermark."""

    needs_coordination = False
    in_offsets_topic = True

    def __init__(
        self,
        log: ShardLog,
        coordination: Coordination,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._log = log
        self._coordination = coordination
        self._now_ms = now_ms
        self._contents = OffsetsContents()
        self.clear, self.apply = self._contents.clear, self._contents.apply

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        if not offsets:
            return
        rows = commit_rows(group, offsets)
        self._check(guards)
        self._append(rows)
        self._check(guards)

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        with self._log.caught_up():
            stored = dict(self._contents.offsets.get(group, {}))
        return stored if partitions is None else {tp: stored[tp] for tp in partitions if tp in stored}

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        chosen = None if partitions is None else set(partitions)

        def tombstones(contents: OffsetsContents) -> bytearray | None:
            stored, has_state = contents.offsets.get(group, {}), group in contents.states
            rows = deletion_rows(group, stored, chosen, seen, has_state=has_state)
            self._check(guards)
            return batch_of(rows, self._now_ms()) if rows else None

        if seen is not None:
            self._log.append_decided(
                lambda: self._contents.of_group(group), tombstones, f"a deletion from group {group}"
            )
            return
        with self._log.caught_up():
            contents = self._contents.of_group(group)
        batch = tombstones(contents)
        if batch is not None:
            self._log.append(batch)

    def groups(self) -> list[str]:
        with self._log.caught_up():
            return sorted(self._contents.offsets)

    def close(self) -> None:
        """Does nothing: the log belongs to the broker."""

    def save_group(self, group: str, state: StoredGroup) -> None:
        """Stores the state, or raises: the group's members then join again."""
        self._append(state_rows(group, state))

    def load_groups(self) -> dict[str, StoredGroup]:
        """Returns the states of all groups, by name."""
        with self._log.caught_up():
            return dict(self._contents.states)

    def _append(self, rows: Rows) -> None:
        self._log.append(batch_of(rows, self._now_ms()))

    def _check(self, guards: Sequence[Check]) -> None:
        if guards:
            self._coordination.transaction(guards)
