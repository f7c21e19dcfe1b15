"""`klamm load`: topics into the lake of a sink."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile
from klamm.core.config.settings import Settings, load_settings
from klamm.core.config.sink import SinkSettings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.process_log import of_command
from klamm.hadoop.session import require_java
from klamm.hadoop.sinks import choose

SinkName = Annotated[str | None, typer.Argument(metavar="SINK", help="The sink's name, if there are several.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic (may be repeated).")]


def load(sink: SinkName = None, config: ConfigFile = DEFAULT_CONFIG, topic: Topics = None) -> None:
    """Load what is new in the sink's topics into its lake: data and offsets in one rename per topic."""
    run_loads(config, sink, topic or [])


def run_loads(config: Path, sink: str | None, only: list[str]) -> None:
    """All topics; one that fails does not keep the others from being loaded. `KlammError` after the last if any did."""
    settings = load_settings(config)
    of_command(settings.log)
    name, chosen = choose(settings, sink)
    topics = _wanted(settings, name, chosen, only)
    require_java()
    # Not before all that can be wrong without Spark has been looked at: importing it takes a second.
    from klamm.hadoop.run import Loader

    errors = Console(stderr=True)
    failed: list[str] = []
    with Loader(settings, name, errors) as loader:
        for each in topics:
            try:
                typer.echo(loader.load(each))
            except KlammError as error:
                failed.append(each)
                errors.print(f"klamm: load of {each}: {error}", highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise KlammError(f"{len(failed)} of {len(topics)} topics not loaded: {', '.join(failed)}")


def _wanted(settings: Settings, name: str, chosen: SinkSettings, only: list[str]) -> list[str]:
    for topic in only:
        if topic not in chosen.topics:
            known = ", ".join(chosen.topics)
            raise ConfigError(f"{settings.source}: sinks.{name}.topics: there is no {topic!r} (there are: {known})")
    return only or list(chosen.topics)
