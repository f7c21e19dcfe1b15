"""What IncrementalAlterConfigs asks for, key by key (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from klamm.core.config.section import ConfigType
from klamm.core.errors import BrokerError, ErrorCode


class Operation(IntEnum):
    """What is done with a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def check_named_once(what: str, changes: Iterable[Any]) -> None:
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise BrokerError(ErrorCode.invalid_request, f"{what}: a config is named more than once")


def changed(change: Any, kind: ConfigType, current: str) -> str | None:
    """The new value of one config; None: back to what holds without it."""
    if change.config_operation == Operation.DELETE:
        return None
    if change.value is None:
        raise BrokerError(ErrorCode.invalid_config, f"{change.name}: a value is missing")
    if change.config_operation == Operation.SET:
        return str(change.value)
    if change.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise BrokerError(ErrorCode.invalid_request, f"{change.name}: operation {change.config_operation} is not one")
    if kind is not ConfigType.LIST:
        raise BrokerError(ErrorCode.invalid_config, f"{change.name} is not a list: nothing can be added or taken away")
    return ",".join(_combined(current.split(","), change.value.split(","), change.config_operation))


def _combined(current: Iterable[str], given: Iterable[str], operation: int) -> list[str]:
    parts, changed = [p.strip() for p in current if p.strip()], [p.strip() for p in given if p.strip()]
    if operation == Operation.APPEND:
        return list(dict.fromkeys([*parts, *changed]))
    return [part for part in parts if part not in changed]
