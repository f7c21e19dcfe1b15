"""A plugin that plants a fault: a broker on restored logs keeps the leader epoch that clients know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from klamm.core.broker import server
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.replication import elections
from klamm.core.replication.partition_state import PartitionState

_elected = elections._changed


def _nothing(*_: Any) -> dict[Any, int]:
    return {}


def _keeps_epoch(state: PartitionState, *changes: Any) -> PartitionState:
    return replace(_elected(state, *changes), leader_epoch=state.leader_epoch)


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Returns no commands; the hook makes this module a plugin."""
    return []


setattr(server, "_begun_epochs", _nothing)  # noqa: B010 - mypy takes an assignment for a mistake
setattr(elections, "_changed", _keeps_epoch)  # noqa: B010
