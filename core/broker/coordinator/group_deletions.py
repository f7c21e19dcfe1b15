"""DeleteGroups and OffsetDelete (KIP-496); each waits for the group's earlier commits."""

from __future__ import annotations

import logging
from collections.abc import Collection

from ...errors import ErrorCode, KlammError
from ...groups.coordinator.group_view import read_view
from ...groups.group_protocol_lock import GroupProtocol, active_protocol
from ...interfaces.coordination import BadVersionError, Coordination, NoNodeError
from ...records.partition import TopicPartition
from .coordinator_errors import commit_code
from .group_parts import GroupPart, GroupParts

log = logging.getLogger(__name__)


class GroupDeletions(GroupPart):
    """Belongs to the event loop."""

    def __init__(self, parts: GroupParts, coordination: Coordination) -> None:
        super().__init__(parts)
        self._coordination = coordination

    async def delete(self, group: str) -> ErrorCode:
        """Deletes an empty group and its offsets. While the former coordinator holds the group's lock, this broker
        cannot know whether the group is empty."""
        return await self._runtime.in_turn(group, self._delete(group))

    async def _delete(self, group: str) -> ErrorCode:
        refused = self._not_mine(group)
        if refused is not None:
            return refused
        try:
            async with self._locks.pinned(group) as (protocol, unchanged):
                if protocol is GroupProtocol.REGISTRY:
                    return ErrorCode.non_empty_group
                if protocol is GroupProtocol.CLASSIC and await self._locks.held_elsewhere(group):
                    return ErrorCode.coordinator_not_available
                await self._metadata.saved(group)  # that its last member has left is stored before the deletion
                stored = await self._offsets.stored(group, None)
                code = self._coordinator.delete(group, has_offsets=bool(stored))
                if code is ErrorCode.none:
                    await self._offsets.delete_group(group, [*self._offsets.guards(group), *unchanged])
        except (BadVersionError, NoNodeError) as error:
            log.info("group %s is not deleted: %s", group, error)
            return await self._lost(group)
        except KlammError as error:
            return commit_code(error)
        return code

    async def _lost(self, group: str) -> ErrorCode:
        """Returns the error code after a guard failed: a retriable one if only the in-sync replicas have changed."""
        renewed = await self._offsets.renewed(group)
        return ErrorCode.coordinator_not_available if renewed else ErrorCode.not_coordinator

    async def delete_offsets(
        self, group: str, names: Collection[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Deletes some offsets of a group. Returns a code for each, `group_subscribed_to_topic` if a member reads the
        topic; or one code if the whole group is refused."""
        return await self._runtime.in_turn(group, self._delete_offsets(group, names))

    async def _delete_offsets(
        self, group: str, names: Collection[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        refused = self._not_mine(group)
        if refused is not None:
            return refused
        try:
            if await self._locks.held_elsewhere(group):
                return ErrorCode.coordinator_not_available
            read = await self._workers.coordination(self._registry_topics, group)
            stored = bool(await self._offsets.stored(group, None))
            codes = {
                name: ErrorCode.group_subscribed_to_topic
                if name.topic in read
                else self._coordinator.delete_offsets_error(group, name.topic, has_offsets=stored or bool(read))
                for name in names
            }
            for code in (ErrorCode.group_id_not_found, ErrorCode.non_empty_group):
                if code in codes.values():
                    return code
            chosen = [name for name, code in codes.items() if code is ErrorCode.none]
            if chosen:
                guards = self._offsets.guards(group)
                await self._workers.offsets(self._offsets.store(group).delete, group, chosen, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("offsets of group %s are not deleted: %s", group, error)
            return await self._lost(group)
        except KlammError as error:
            return commit_code(error)
        return codes

    def _registry_topics(self, group: str) -> frozenset[str]:
        """Returns the topics that the members of a registry group subscribe to; none if it has no members. Blocking."""
        if active_protocol(self._coordination, group) is not GroupProtocol.REGISTRY:
            return frozenset()
        members = read_view(self._coordination, group, ()).subscriptions.values()
        return frozenset(topic for subscription in members for topic in subscription)
