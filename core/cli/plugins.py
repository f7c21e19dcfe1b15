"""`klamm plugins`: lists the loaded plugins, their sources and their hooks."""

from __future__ import annotations

from ..config.settings import load_plugins
from ..plugins import plugin_host
from .options import DEFAULT_CONFIG, ConfigFile, console, named, table
from .output import text


def plugins(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """List the loaded plugins; with a configuration file, also its `plugins.modules`."""
    host = load_plugins(config) if named(config) else plugin_host()
    rows = table("plugin", "module", "source", "hooks", "provides")
    for plugin in host.loaded():
        rows.add_row(
            plugin.name, plugin.module, plugin.source, text("\n".join(plugin.hooks)), text("\n".join(plugin.provides))
        )
    console().print(rows)
