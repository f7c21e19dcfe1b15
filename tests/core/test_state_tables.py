"""Each state machine is a table that the code executes, and each row of it can be reached."""

from __future__ import annotations

import importlib
import inspect
from enum import Enum

import pytest

from klamm.core.state_table import IllegalTransitionError, StateTable

TABLES = {
    "klamm.core.broker.append_placement": "PLACEMENT_STATES",
    "klamm.core.client.producer.batch": "BATCH_STATES",
    "klamm.core.broker.network.connection": "CONNECTION_STATES",
    "klamm.core.client.network.channel": "CHANNEL_STATES",
    "klamm.core.client.network.connection": "CONNECTION_STATES",
    "klamm.core.groups.coordinator.classic_group": "GROUP_STATES",
    "klamm.core.groups.membership.classic_member": "MEMBER_STATES",
    "klamm.core.groups.membership.registry": "REGISTRY_STATES",
    "klamm.hadoop.spark.attempt": "ATTEMPT_STATES",
}


class Light(Enum):
    RED = "red"
    GREEN = "green"


class Signal(Enum):
    GO = "go"
    STOP = "stop"


LIGHTS = StateTable(
    "light", Light, Signal,
    """
    state  event  next state
    red    go     green
    green  stop   red
    """,
)  # fmt: skip


def table_of(module: str) -> StateTable[Enum, Enum]:
    table = getattr(importlib.import_module(module), TABLES[module])
    assert isinstance(table, StateTable)
    return table


@pytest.mark.parametrize("module", TABLES)
def test_the_code_executes_every_row(module: str) -> None:
    """Every event of the table is named in the module or its users, and every state can be reached from the first
    one."""
    table = table_of(module)
    reached = {table.initial}
    while more := {after for state, _, after in table.rows if state in reached} - reached:
        reached |= more
    assert reached == set(type(table.initial)), "a state that no row leads to"
    events = {event for _, event, _ in table.rows}
    assert events == set(type(next(iter(events)))), "an event that no row has"
    assert ".next(" in inspect.getsource(importlib.import_module(module))


def test_an_event_without_a_row_is_an_error_with_both_names() -> None:
    assert LIGHTS.next(Light.RED, Signal.GO) is Light.GREEN
    with pytest.raises(IllegalTransitionError, match="a light in state 'red' cannot take event 'stop'"):
        LIGHTS.next(Light.RED, Signal.STOP)


def test_a_table_has_one_row_for_a_state_and_event() -> None:
    with pytest.raises(ValueError, match="two rows"):
        StateTable("light", Light, Signal, "state  event  next state\nred  go  green\nred  go  red")
