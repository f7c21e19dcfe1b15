"""A plugin that plants a fault: a coordinator's commits do not check which broker coordinates the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.core.broker.coordinator.guarded_commits import GuardedCommits
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore
from klamm.core.records.partition import TopicPartition


def _commit(
    _guarded: GuardedCommits,
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


setattr(GuardedCommits, "commit", _commit)  # noqa: B010 - mypy takes an assignment for a mistake
