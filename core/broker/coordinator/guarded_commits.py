"""Stores offsets under guards in the coordination. While that does not answer, stores them as long as this broker's
session cannot have ended: then no other broker leads the partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...groups.membership.topic_ids import TopicIds, commit_current
from ...interfaces.coordination import Check, CoordinationUnavailableError
from ...interfaces.offsets import CommittedOffset, OffsetStore
from ...records.partition import TopicPartition
from ..session.session_contact import SessionContact


class GuardedCommits:
    """Blocking: not for the event loop."""

    def __init__(self, topics: TopicIds, session: SessionContact, clock: Callable[[], float]) -> None:
        self._topics = topics
        self._session = session
        self._clock = clock

    @property
    def coordination_unavailable(self) -> bool:
        """True if the coordination does not answer now: `commit` then checks no guards."""
        return self._session.unavailable

    def commit(
        self,
        store: OffsetStore,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        guards: list[Check],
    ) -> set[TopicPartition]:
        """Stores the offsets whose topic exists; returns the others. Raises `BadVersionError` or `NoNodeError` if one
        of the guards fails, `CoordinationUnavailableError` if the session may have ended."""
        if self._session.unavailable:  # the store works without the coordination, as partitions do
            self._check_session()
            store.commit(group, offsets)
            self._check_session()
            return set()
        asked_s = self._clock()
        deleted = commit_current(store, self._topics, group, offsets, guards)
        if len(deleted) < len(offsets):
            self._session.heard(asked_s)
        return deleted

    def _check_session(self) -> None:
        if not self._session.certain:
            raise CoordinationUnavailableError(
                "the coordination is unavailable, and this broker's session may have ended"
            )
