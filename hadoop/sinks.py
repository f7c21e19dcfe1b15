"""The lakes among a configuration's sinks."""

from __future__ import annotations

from klamm.core.config.sections.sink import SinkSettings
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError

from .lake.config import LakeConfig


def choose(settings: Settings, sink: str | None) -> tuple[str, SinkSettings]:
    """Returns the sink by name, or the only one of the plugin `hadoop`."""
    lakes = [name for name, found in settings.sinks.items() if isinstance(found.choice.config, LakeConfig)]
    if sink is None:
        if len(lakes) != 1:
            known = ", ".join(lakes) or "none; `plugin: hadoop` makes one"
            raise ConfigError(f"{settings.source}: sinks: name the one to be loaded (there are: {known})")
        sink = lakes[0]
    if sink not in lakes:
        settings.sink(sink)
        raise ConfigError(f"{settings.source}: sinks.{sink}: `klamm load` fills sinks with `plugin: hadoop` only")
    return sink, settings.sink(sink)
