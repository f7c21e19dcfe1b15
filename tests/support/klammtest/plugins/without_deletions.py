"""A plugin that plants a fault: no broker finishes a topic deletion that a killed broker began."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.broker.coordinator.topic_deletions import TopicDeletions
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command


def _nothing(_: TopicDeletions) -> None:
    return


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Returns no commands; the hook makes this module a plugin."""
    return []


setattr(TopicDeletions, "start", _nothing)  # noqa: B010 - mypy takes an assignment for a mistake
