"""The changes of IncrementalAlterConfigs (KIP-339) and AlterConfigs requests, key by key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ....config.section import ConfigType
from ....errors import BrokerError, ErrorCode


class AlterConfigOp(IntEnum):
    """The operation on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The change of one key; `value` is None only if the key is deleted."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class Alteration:
    """The changes of one resource. `replaces`: keys that the request does not name are reset to their defaults."""

    resource_type: int
    resource_name: str
    configs: tuple[ConfigChange, ...]
    replaces: bool

    def changes(self, stored: Iterable[str]) -> tuple[ConfigChange, ...]:
        """Returns the changes to a resource on which the keys `stored` are set."""
        if not self.replaces:
            return self.configs
        named = {change.name for change in self.configs}
        gone = (ConfigChange(name, AlterConfigOp.DELETE, None) for name in sorted(stored) if name not in named)
        return (*self.configs, *gone)


def incremental(resource: Any) -> Alteration:
    """Converts one resource of an IncrementalAlterConfigs request."""
    changes = tuple(ConfigChange(c.name, c.config_operation, c.value) for c in resource.configs)
    return Alteration(resource.resource_type, resource.resource_name, changes, replaces=False)


def legacy(resource: Any) -> Alteration:
    """Converts one resource of an AlterConfigs request, which names every key that is to be set."""
    changes = tuple(ConfigChange(c.name, AlterConfigOp.SET, c.value) for c in resource.configs)
    return Alteration(resource.resource_type, resource.resource_name, changes, replaces=True)


def check_well_formed(what: str, changes: Iterable[ConfigChange]) -> None:
    """Raises INVALID_REQUEST if a key is named twice or a value is missing, as Kafka does before it checks the keys."""
    given = list(changes)
    if len({change.name for change in given}) < len(given):
        raise BrokerError(ErrorCode.invalid_request, f"{what}: a config is named more than once")
    missing = [c.name for c in given if c.value is None and c.config_operation != AlterConfigOp.DELETE]
    if missing:
        raise BrokerError(ErrorCode.invalid_request, f"{what}: a value is missing for {', '.join(missing)}")


def changed(change: ConfigChange, kind: ConfigType, current: str) -> str | None:
    """Returns the new value of one config; None resets it to the value that applies without it."""
    if change.value is None or change.config_operation == AlterConfigOp.DELETE:
        return None
    if change.config_operation == AlterConfigOp.SET:
        return change.value
    if change.config_operation not in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
        raise BrokerError(ErrorCode.invalid_request, f"{change.name}: operation {change.config_operation} is not one")
    if kind is not ConfigType.LIST:
        raise BrokerError(
            ErrorCode.invalid_config, f"{change.name} is not a list: nothing can be appended or subtracted"
        )
    return ",".join(_combined(current.split(","), change.value.split(","), change.config_operation))


def _combined(current: Iterable[str], given: Iterable[str], operation: int) -> list[str]:
    parts, changed = [p.strip() for p in current if p.strip()], [p.strip() for p in given if p.strip()]
    if operation == AlterConfigOp.APPEND:
        return list(dict.fromkeys([*parts, *changed]))
    return [part for part in parts if part not in changed]
