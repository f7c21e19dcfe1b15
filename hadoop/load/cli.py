"""`klamm load`: topics into the lake of a sink."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile, interval_s
from klamm.core.cli.output import say, say_on
from klamm.core.config.sections.sink import SinkSettings
from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.process_log import of_command

from ..lake.config import choose_lake
from ..session import require_java
from .interrupt import EXIT_STATUS
from .metrics import LoadMetrics
from .report import Status
from .schedule import Schedule, stop_on_sigterm

if TYPE_CHECKING:
    from .report import RunReport, TopicReport

MAX_FAILURES = 10
EMPTY = 99
"""The exit status of a run with nothing new, with `--fail-if-empty`: Airflow's BashOperator treats it as "skipped"
(`skip_on_exit_code`)."""

SinkName = Annotated[
    str | None, typer.Argument(metavar="SINK", help="The sink's name; needed if the file has several sinks.")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print what was loaded as one JSON object.")]
FailIfEmpty = Annotated[bool, typer.Option("--fail-if-empty", help="Exit with status 99 if no topic has new records.")]


Every = Annotated[
    str | None,
    typer.Option("--every", metavar="INTERVAL", help="Run again at this interval (90s, 10m, 1h) until SIGTERM."),
]
MaxFailures = Annotated[
    int | None,
    typer.Option(
        "--max-failures", min=1, help="With --every: exit after this many failed runs in a row; 10 if not given."
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file", metavar="PATH", help="Write Prometheus metrics of each run (for node_exporter's textfiles)."
    ),
]


def load(
    sink: SinkName = None,
    config: ConfigFile = DEFAULT_CONFIG,
    topic: Topics = None,
    as_json: Json = False,
    fail_if_empty: FailIfEmpty = False,
    every: Every = None,
    max_failures: MaxFailures = None,
    metrics_file: MetricsFile = None,
) -> None:
    """Load the new records of the sink's topics into its lake; one rename per topic publishes data and offsets.

    Exit status 0: each topic is loaded or has no new records. 1: a topic failed; the others are loaded. 2: the command
    or the YAML file is wrong. 99: with --fail-if-empty, no topic has new records. 130: Ctrl-C. With --every, SIGTERM
    ends the command after the current run with status 0; too many failed runs in a row end it with status 1.
    """
    every_s = None if every is None else interval_s("--every", every)
    if every_s is not None and fail_if_empty:
        raise ConfigError("--fail-if-empty applies to a single run; it cannot be combined with --every")
    if every_s is None and max_failures is not None:
        raise ConfigError("--max-failures applies only with --every")
    with _interruption_reported(), _prepared(config, sink, topic or [], as_json, metrics_file) as run:
        if every_s is None:
            _end(run(), fail_if_empty)
        else:
            _go_on(run, every_s, MAX_FAILURES if max_failures is None else max_failures)


@contextmanager
def _interruption_reported() -> Iterator[None]:
    try:
        yield
    except SystemExit as ended:
        if ended.code == EXIT_STATUS:
            say("klamm: interrupted; a load that was not yet published has published nothing", err=True)
        raise


def _end(report: RunReport, fail_if_empty: bool) -> None:
    if (failure := report.failure()) is not None:
        raise KlammError(failure)
    if fail_if_empty and report.status is Status.EMPTY:
        raise typer.Exit(EMPTY)


def _go_on(run: Callable[[], RunReport], every_s: int, max_failures: int) -> None:
    failure: str | None = None

    def once() -> bool:
        nonlocal failure
        failure = run().failure()
        return failure is None

    def failed(left_s: float) -> None:
        say(f"klamm: {failure}; the next run begins in {left_s:.0f} s", err=True)

    with stop_on_sigterm() as stop:
        if not Schedule(every_s, max_failures, stop).follow(once, failed):
            raise KlammError(f"{failure}; {max_failures} runs failed in a row")


@contextmanager
def _prepared(
    config: Path, sink: str | None, only: list[str], as_json: bool, metrics_file: Path | None
) -> Iterator[Callable[[], RunReport]]:
    """Yields a function that makes a run over all topics, or `only` some.

    The function reports on stdout, when a topic is done or as one JSON object at the end, and errors on stderr.
    """
    settings = load_settings(config)
    of_command(settings.log)
    name, chosen = choose_lake(settings, sink)
    _check_topics(settings, name, chosen, only)
    for topic in only or _known_topics(settings, chosen):
        settings.check_topic(topic)
    require_java()
    # Imported after all checks that need no Spark: importing it takes a second.
    from .loader import Loader

    errors = Console(stderr=True)

    def tell(report: TopicReport) -> None:
        for line in () if as_json else report.lines():
            say(line)
        if report.error is not None:
            said = f"klamm: load of {report.topic}: {report.error}"
            say_on(errors, said)

    metrics = None if metrics_file is None else LoadMetrics(metrics_file, name)
    with ExitStack() as stack:
        with _failure_noted(metrics):
            loader = stack.enter_context(Loader(settings, name, errors))

        def run() -> RunReport:
            with _failure_noted(metrics):
                report = loader.run(only, tell)
            if as_json:
                say(report.to_json())
            if metrics is not None:
                metrics.write(report)
            return report

        yield run


@contextmanager
def _failure_noted(metrics: LoadMetrics | None) -> Iterator[None]:
    """Writes to the metrics that Spark could not start, or that a run ended with an error that concerns no single
    topic."""
    started = time.monotonic()
    try:
        yield
    except Exception:
        if metrics is not None:
            metrics.write_failure(time.monotonic() - started)
        raise


def _known_topics(settings: Settings, chosen: SinkSettings) -> list[str]:
    """Returns the topics of the sink that the file names; for a pattern those with a section."""
    pattern = chosen.topics_regex
    return list(chosen.topics) if pattern is None else [name for name in settings.topics if re.fullmatch(pattern, name)]


def _check_topics(settings: Settings, name: str, chosen: SinkSettings, only: list[str]) -> None:
    for topic in only:
        if chosen.topics_regex is not None:
            if not re.fullmatch(chosen.topics_regex, topic):
                raise ConfigError(f"{settings.source}: sinks.{name}.topics.regex: {topic!r} does not match it")
        elif topic not in chosen.topics:
            known = ", ".join(chosen.topics)
            raise ConfigError(f"{settings.source}: sinks.{name}.topics: there is no {topic!r} (there are: {known})")
