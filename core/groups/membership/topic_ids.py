"""The topic ids in the coordination, and commits that are stored only if their topics still have the same ids.

An offset is valid for one topic id only (design D5a). A commit is stored in a transaction that checks the version of
`/admin/metadata_version`, which every change of a topic increases: while it is the version at which the ids were read,
each topic still has its id. The ids are cached, so a commit needs no additional round trip. When the check fails the
ids are read again, and only offsets of a topic that was deleted, or has another id now, are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from ...cluster.tree import paths
from ...cluster.tree.nodes import TopicNode
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    NoNodeError,
)
from ...interfaces.offsets import CommittedOffset, OffsetStore
from ...records.partition import TopicPartition

_ATTEMPTS = 20


class TopicIds:
    """Blocking and thread-safe."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._lock = threading.Lock()
        self._version = -1
        self._ids: dict[str, UUID | None] = {}

    def now(self, topics: Collection[str]) -> dict[str, UUID]:
        """Returns the present ids; a topic that does not exist is left out."""
        return self._read(topics, fresh=True)[0]

    def guard(self, topics: Collection[str], *, fresh: bool = False) -> tuple[dict[str, UUID], Check]:
        """Returns the ids, and the check that fails once a topic has changed since they were read. `fresh` bypasses
        the cache."""
        found, version = self._read(topics, fresh=fresh)
        return found, Check(paths.METADATA_VERSION, version)

    def changed_since(self, guard: Check) -> bool:
        """Returns whether this guard fails now."""
        return self._coordination.get(guard.path)[1].version != guard.version

    def _read(self, topics: Collection[str], *, fresh: bool) -> tuple[dict[str, UUID], int]:
        with self._lock:
            version, known = self._version, dict(self._ids)
        missing = [topic for topic in topics if topic not in known]
        if fresh or missing or version < 0:
            now = self._coordination.get(paths.METADATA_VERSION)[1].version
            if now != version:
                known, missing = {}, list(topics)
            known |= {topic: self._read_one(topic) for topic in missing}
            with self._lock:
                # If a topic changed while the ids were read, the check of this older version fails.
                self._ids = known if now != self._version else self._ids | known
                self._version = version = now
        return {topic: found for topic in topics if (found := known[topic]) is not None}, version

    def _read_one(self, topic: str) -> UUID | None:
        path = paths.topic(topic)
        try:
            return TopicNode.decode(path, self._coordination.get(path)[0]).topic_id
        except NoNodeError:
            return None


def is_of(stored: CommittedOffset, topic_id: UUID | None) -> bool:
    """Returns whether an offset belongs to the topic with this id (None: the topic does not exist). An offset without a
    topic id belongs to any."""
    return stored.topic_id is None or stored.topic_id == topic_id


def commit_current(
    store: OffsetStore,
    topics: TopicIds,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    guards: Sequence[Check] = (),
) -> set[TopicPartition]:
    """Stores the offsets whose topic still has the id that they name, all of them or none, while `guards` hold; returns
    the partitions of the others."""
    names = {tp.topic for tp in offsets}
    fresh = False
    for _ in range(_ATTEMPTS):
        ids, unchanged = topics.guard(names, fresh=fresh)
        gone = {tp for tp, offset in offsets.items() if not is_of(offset, ids.get(tp.topic))}
        if gone and not fresh:
            fresh = True
            continue
        try:
            if len(gone) < len(offsets):
                kept = {tp: offset for tp, offset in offsets.items() if tp not in gone}
                store.commit(group, kept, [*guards, unchanged])
        except BadVersionError:
            if not topics.changed_since(unchanged):
                raise  # one of the caller's guards
            fresh = True
            continue
        return gone
    raise CoordinationUnavailableError(f"topics kept changing during {_ATTEMPTS} commits of group {group!r}")
