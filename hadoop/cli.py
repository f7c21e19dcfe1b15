"""`klamm load`: topics into the lake of a sink."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile
from klamm.core.config.settings import Settings, load_settings
from klamm.core.config.sink import SinkSettings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.process_log import of_command
from klamm.hadoop.report import Status
from klamm.hadoop.session import require_java
from klamm.hadoop.sinks import choose

if TYPE_CHECKING:
    from klamm.hadoop.report import RunReport, TopicReport

EMPTY = 99
"""The exit status of a run with nothing new, where `--fail-if-empty` asks for one: Airflow's BashOperator takes it for
"skipped" (`skip_on_exit_code`)."""

SinkName = Annotated[str | None, typer.Argument(metavar="SINK", help="The sink's name, if there are several.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic (may be repeated).")]
Json = Annotated[bool, typer.Option("--json", help="Say what was loaded as one JSON object.")]
FailIfEmpty = Annotated[bool, typer.Option("--fail-if-empty", help="Exit status 99 when no topic has anything new.")]


def load(
    sink: SinkName = None,
    config: ConfigFile = DEFAULT_CONFIG,
    topic: Topics = None,
    as_json: Json = False,
    fail_if_empty: FailIfEmpty = False,
) -> None:
    """Load what is new in the sink's topics into its lake: data and offsets in one rename per topic.

    Exit status 0: all topics are loaded, or have nothing new. 1: a topic failed; the others are loaded. 2: the command
    or the file is wrong. 99: nothing is new, with --fail-if-empty.
    """
    report = run_loads(config, sink, topic or [], as_json=as_json)
    if (failure := report.failure()) is not None:
        raise KlammError(failure)
    if fail_if_empty and report.status is Status.EMPTY:
        raise typer.Exit(EMPTY)


def run_loads(config: Path, sink: str | None, only: list[str], *, as_json: bool = False) -> RunReport:
    """One run over all topics, or `only` some. Each topic's lines are written when it is done, what went wrong to
    stderr."""
    settings = load_settings(config)
    of_command(settings.log)
    name, chosen = choose(settings, sink)
    _check_topics(settings, name, chosen, only)
    require_java()
    # Not before all that can be wrong without Spark has been looked at: importing it takes a second.
    from klamm.hadoop.run import Loader

    errors = Console(stderr=True)

    def tell(report: TopicReport) -> None:
        for line in () if as_json else report.lines():
            typer.echo(line)
        if report.error is not None:
            said = f"klamm: load of {report.topic}: {report.error}"
            errors.print(said, highlight=False, markup=False, soft_wrap=True)

    with Loader(settings, name, errors) as loader:
        report = loader.run(only, tell)
    if as_json:
        typer.echo(report.to_json())
    return report


def _check_topics(settings: Settings, name: str, chosen: SinkSettings, only: list[str]) -> None:
    for topic in only:
        if chosen.topics_regex is not None:
            if not re.fullmatch(chosen.topics_regex, topic):
                raise ConfigError(f"{settings.source}: sinks.{name}.topics.regex: {topic!r} does not match it")
        elif topic not in chosen.topics:
            known = ", ".join(chosen.topics)
            raise ConfigError(f"{settings.source}: sinks.{name}.topics: there is no {topic!r} (there are: {known})")
