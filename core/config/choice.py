"""A plugin that the YAML file chooses, with its validated configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from ..interfaces.no_config import NoConfig
from .section import ConfigType


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """`plugin` is a provider's name; `config` an instance of its model. In YAML: `{plugin: NAME, key: value}`."""

    plugin: str
    config: BaseModel = field(default_factory=NoConfig)

    def __str__(self) -> str:
        """Returns the name alone, since DescribeConfigs shows it and the configuration may hold a secret."""
        return self.plugin


def _choice(value: Any) -> Any:
    return PluginChoice(value) if isinstance(value, str) else value


def _choices(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_choice(item) for item in items)


OptionalPlugin = Annotated[PluginChoice | None, BeforeValidator(_choice), ConfigType.STRING]
"""One plugin or none; a bare name is a plugin without configuration."""
PluginChoices = Annotated[tuple[PluginChoice, ...], BeforeValidator(_choices), ConfigType.LIST]
"""Several plugins in order; a plain string is the name of one without configuration."""
