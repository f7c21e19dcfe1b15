"""A plugin that plants a fault: a coordinator's commits do not check which broker coordinates the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.core.broker.coordinator.group_service import GroupService
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore
from klamm.core.records.partition import TopicPartition


def _store(
    _service: GroupService,
    store: OffsetStore,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    _guards: object,
) -> set[TopicPartition]:
    store.commit(group, offsets)
    return set()


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Returns no commands; the hook makes this module a plugin."""
    return []


setattr(GroupService, "_store", _store)  # noqa: B010 - mypy takes an assignment for a mistake
