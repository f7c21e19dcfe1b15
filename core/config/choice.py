"""Which plugin YAML chose, with its validated configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from ..interfaces.provider import NoConfig
from .section import ConfigType


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """`plugin` is a provider's name; `config` an instance of its model. In YAML: `{plugin: NAME, key: value}`."""

    plugin: str
    config: BaseModel = field(default_factory=NoConfig)


def _choices(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(PluginChoice(item) if isinstance(item, str) else item for item in items)


PluginChoices = Annotated[tuple[PluginChoice, ...], BeforeValidator(_choices), ConfigType.LIST]
"""Several, in order; a bare name is one without configuration."""
