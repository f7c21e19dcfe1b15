"""A plugin that plants a fault: a coordinator takes commits of members that it does not know."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.errors import ErrorCode
from klamm.core.groups.coordinator.coordinator import GroupCoordinator
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command


def _none(*_: object) -> ErrorCode:
    return ErrorCode.none


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Returns no commands; the hook makes this module a plugin."""
    return []


setattr(GroupCoordinator, "commit_error", _none)  # noqa: B010 - mypy takes an assignment for a mistake
