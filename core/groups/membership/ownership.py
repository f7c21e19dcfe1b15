"""Owner paths: `/consumers/<group>/owners/<topic>/<partition>`, ephemeral, with the name of the stream that reads the
partition.

A claim creates the paths of all wanted partitions or none: up to 256 in a transaction, and if a later transaction meets
a conflict the claim releases what the earlier ones created. The paths are ephemeral and only their owner deletes them,
so they exist until the owner releases them or its session ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping

from ...cluster.tree import paths
from ...errors import KlammError
from ...interfaces.coordination import (
    Check,
    Coordination,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
)
from ...records.partition import TopicPartition
from .member import Owned

_BATCH = 256
"""Maximum number of operations in one transaction: ZooKeeper limits a packet to 1 MB."""


class ConflictError(KlammError):
    """Other members have not yet released `partitions`; nothing was claimed."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        names = ", ".join(str(p) for p in sorted(partitions)[:5])
        super().__init__(f"still owned by others: {names}{' …' if len(partitions) > 5 else ''}")
        self.partitions = frozenset(partitions)


class OwnerPaths:
    """The claims of one member in one session; `member_path` is its ephemeral path under `ids`."""

    def __init__(self, coordination: Coordination, group: str, member: str, member_path: str) -> None:
        self._coordination = coordination
        self._group = group
        self._member = member
        self._member_path = member_path
        self._topics: set[str] = set()
        # Every path that this member may have created, including claims whose response was lost.
        self.held: set[TopicPartition] = set()

    def path(self, partition: TopicPartition) -> str:
        return paths.partition_owner(self._group, partition.topic, partition.partition)

    def claim(self, wanted: Mapping[TopicPartition, int]) -> list[Owned]:
        """Claims all of the partitions, each for the stream of the given number.

        Raises `ConflictError`, with nothing claimed, if another member owns one of them, and `NoNodeError` if this
        member is no longer registered.
        """
        self._make_topics({p.topic for p in wanted})
        ordered = sorted(wanted)
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            new = set(batch) - self.held
            self.held |= new
            try:
                self._claim_batch({p: wanted[p] for p in batch})
            except ConflictError:
                self.held -= new
                self.release(ordered[:start])
                raise
        return [Owned(p, wanted[p], self._epoch(p)) for p in ordered]

    def _claim_batch(self, wanted: Mapping[TopicPartition, int]) -> None:
        creates = [Create(self.path(p), self._data(n), ephemeral=True) for p, n in wanted.items()]
        try:
            self._coordination.transaction([Check(self._member_path), *creates])
        except NodeExistsError:
            self._reclaim(wanted)

    def _reclaim(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Claims partitions of which some have an owner path: paths of this session, from before a suspension, are
        replaced; paths of other sessions are a conflict."""
        session = self._coordination.session_id
        operations: list[Operation] = [Check(self._member_path)]
        others = set()
        for partition, number in wanted.items():
            stat = self._coordination.exists(self.path(partition))
            if stat is not None and stat.ephemeral_owner != session:
                others.add(partition)
            if stat is not None:
                operations.append(Delete(self.path(partition)))
            operations.append(Create(self.path(partition), self._data(number), ephemeral=True))
        if others:
            raise ConflictError(others)
        try:
            self._coordination.transaction(operations)
        except NodeExistsError as error:
            raise ConflictError(wanted.keys()) from error

    def release_all_but(self, kept: Collection[TopicPartition]) -> None:
        """Releases paths that remain from before a suspension, or of a claim whose response was lost."""
        session = self._coordination.session_id
        for partition in self.held - set(kept):
            stat = self._coordination.exists(self.path(partition))
            if stat is not None and stat.ephemeral_owner == session:
                self.release([partition])
            self.held.discard(partition)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Deletes the owner paths; one that no longer exists is not an error."""
        for partition in list(partitions):
            with contextlib.suppress(NoNodeError):
                self._coordination.delete(self.path(partition))
            self.held.discard(partition)

    def guards(self, partitions: Iterable[TopicPartition]) -> list[Check]:
        """Returns checks that hold while this member owns all of the partitions: of its registration, whose name no
        other session uses, and of the owner paths, which only their owner's release or the end of its session
        deletes."""
        return [Check(self._member_path), *(Check(self.path(p)) for p in partitions)]

    def _data(self, stream: int) -> bytes:
        return f"{self._member}-{stream}".encode()

    def _epoch(self, partition: TopicPartition) -> int:
        stat = self._coordination.exists(self.path(partition))
        if stat is None or stat.ephemeral_owner != self._coordination.session_id:
            raise ConflictError([partition])
        return stat.creation_id

    def _make_topics(self, topics: Iterable[str]) -> None:
        for topic in set(topics) - self._topics:
            path = f"{paths.group_owners(self._group)}/{topic}"
            if self._coordination.exists(path) is None:
                with contextlib.suppress(NodeExistsError):
                    self._coordination.create(path, make_parents=True)
            self._topics.add(topic)
