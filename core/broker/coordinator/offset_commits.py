"""OffsetCommit: the offsets of a member, or of a consumer outside the group."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from ...errors import ErrorCode, KlammError
from ...groups.group_protocol_lock import GroupProtocol
from ...interfaces.coordination import BadVersionError, Check, NoNodeError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from ..session.session_contact import SessionContact
from .coordinator_errors import commit_code
from .group_parts import GroupPart, GroupParts
from .guarded_commits import GuardedCommits

log = logging.getLogger(__name__)
_FENCE_ATTEMPTS = 5
"""Each failure means that the in-sync replicas of the group's partition changed during a commit."""


class OffsetCommitter(NamedTuple):
    """The sender of a commit; without member id and with generation -1, a consumer that is no member of the group."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class OffsetCommits(GroupPart):
    """Belongs to the event loop."""

    def __init__(self, parts: GroupParts, guarded: GuardedCommits, session: SessionContact) -> None:
        super().__init__(parts)
        self._guarded = guarded
        self._session = session

    async def commit(
        self, group: str, committer: OffsetCommitter, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        """Stores the offsets; returns a code for each. The commits of a group are stored in the order of their
        requests. A commit whose client has disconnected is still stored, before the next one."""
        return await self._runtime.in_turn(group, self._commit(group, committer, offsets))

    async def _commit(
        self, group: str, committer: OffsetCommitter, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        code, deleted = ErrorCode.not_coordinator, set[TopicPartition]()
        for _ in range(_FENCE_ATTEMPTS):
            if self._session.expired:  # another broker may coordinate the group by now
                break
            try:
                self._offsets.check_reachable()
                guards = await self._guards(group, committer)
                if isinstance(guards, ErrorCode):
                    code = guards
                    break
                store = self._offsets.store(group)
                deleted = await self._workers.offsets(self._guarded.commit, store, group, offsets, guards)
                code = ErrorCode.none
                break
            except (BadVersionError, NoNodeError) as error:
                log.info("offsets of group %s were refused: %s", group, error)
                if await self._renewed(group):
                    continue
                await self._locks.check(group)
                break
            except KlammError as error:
                code = commit_code(error)
                break
        return {name: ErrorCode.unknown_topic_or_partition if name in deleted else code for name in offsets}

    async def _renewed(self, group: str) -> bool:
        try:
            return await self._offsets.renewed(group)
        except KlammError as error:
            log.info("the state of the partition of group %s cannot be read: %s", group, error)
            return False

    async def _guards(self, group: str, committer: OffsetCommitter) -> list[Check] | ErrorCode:
        """Returns the checks for the transaction that stores the offsets, or the error that refuses the commit. A
        commit from outside the group is refused while the group has registry members."""
        refused = self._not_mine(group)
        if refused is not None:
            return refused
        code = self._coordinator.commit_error(group, committer.member_id, committer.generation, committer.instance_id)
        if code is not ErrorCode.none:
            return code
        guards = self._offsets.guards(group)
        if self._coordinator.populated(group):
            unchanged_lock = self._locks.guard(group)
            if unchanged_lock is None:
                self._locks.taken_over(group, "this broker does not hold its lock")
                return ErrorCode.not_coordinator
            return [*guards, unchanged_lock]
        protocol, unchanged = await self._locks.read(group)
        return ErrorCode.inconsistent_group_protocol if protocol is GroupProtocol.REGISTRY else [*guards, *unchanged]
