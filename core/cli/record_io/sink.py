"""`klamm sink`: writes the records of topics to one of the file's sinks."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ...client.consumer.sink_runner import SinkProgress, SinkRunner
from ...client.errors import SinkError
from ...config.settings import load_settings
from ...process_log import of_command
from ..options import DEFAULT_CONFIG, ConfigFile
from ..output import say, say_document


def sink(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A key of the file's `sinks` section.")],
    once: Annotated[bool, typer.Option("--once", help="End when all present records are written.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the traceback of a sink that fails.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Write the records of the sink's topics, until SIGTERM or Ctrl-C; several processes share the work."""
    settings = load_settings(config)
    of_command(settings.log)
    runner = SinkRunner(settings, name)
    stop = threading.Event()
    received: list[int] = []

    def on_signal(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    columns = (SpinnerColumn(), TextColumn(f"sink {name}: {{task.fields[records]}} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None, records=0)

        def report(progress: SinkProgress) -> None:
            bar.update(task, records=progress.records)

        try:
            progress = runner.run(stop, once=once, report=report)
        except SinkError as error:
            if verbose and error.__cause__ is not None:
                say_document("".join(traceback.format_exception(error.__cause__)), err=True)
            raise
    bad = f", {progress.bad} skipped" if progress.bad else ""
    say(f"sink {name}: {progress.records} records, {progress.flushes} flushes{bad}")
    if signal.SIGINT in received:
        raise KeyboardInterrupt
