"""`klamm plugins`: lists the loaded plugins, their sources and their hooks."""

from __future__ import annotations

from ..config.settings import load_plugins
from ..plugins import plugin_host
from .options import DEFAULT_CONFIG, ConfigFile, named
from .output import Json, Lines, say_rows


def plugins(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the loaded plugins; with a configuration file, also its `plugins.modules`."""
    host = load_plugins(config) if named(config) else plugin_host()
    rows = (
        {
            "plugin": plugin.name,
            "module": plugin.module,
            "source": plugin.source,
            "hooks": Lines(plugin.hooks),
            "provides": Lines(plugin.provides),
        }
        for plugin in host.loaded()
    )
    say_rows(("plugin", "module", "source", "hooks", "provides"), rows, as_json)
