"""The ids of topics as the coordination has them, and commits that hold only for the topic they were read in.

An offset means something in one topic id only (design D5a). A commit is stored in a transaction that checks the version
of `/admin/metadata_version`, which every change of a topic sets: as long as it is the version at which the ids were
read, each topic is the one that the offset is of. What is read is kept, so that a commit costs no round trip more; when
the check fails, it is read again, and only a topic that has another id now, or is gone, refuses its offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from ...cluster import paths
from ...cluster.nodes import TopicNode
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
        """The ids at this moment; a topic that is not there is left out."""
        return self._read(topics, fresh=True)[0]

    def guard(self, topics: Collection[str], *, fresh: bool = False) -> tuple[dict[str, UUID], Check]:
        """The ids, and the check that fails once a topic has changed since they were read. `fresh`: not from memory."""
        found, version = self._read(topics, fresh=fresh)
        return found, Check(paths.METADATA_VERSION, version)

    def changed_since(self, guard: Check) -> bool:
        """Whether it is this guard that fails now."""
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
                # A change while they were read makes the version's check fail, whichever of the two was seen.
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
    """Whether an offset is one in the topic of this id, None for no topic; one without an id is taken for it."""
    return stored.topic_id is None or stored.topic_id == topic_id


def commit_current(
    store: OffsetStore,
    topics: TopicIds,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    guards: Sequence[Check] = (),
) -> set[TopicPartition]:
    """Stores the offsets whose topic is still the one that they name, all of them or none, while `guards` hold; returns
    the others."""
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
