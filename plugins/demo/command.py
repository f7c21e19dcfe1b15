"""`klamm demo`: the whole pipeline on 336,776 real flights."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from klamm.core.cli.output import say
from klamm.plugin import ConfigError

from .show import Show
from .steps.hdfs import LakeFileSystem
from .steps.plant import Plant
from .story import Size, Story
from .workspace import Workspace


def demo(
    dir_: Annotated[Path, typer.Option("--dir", help="The directory in which each run makes its own.")] = Path(
        "var/demo"
    ),
    plant: Annotated[Plant, typer.Option("--plant", help="Plant this anomaly, which the demo must find.")] = Plant.NONE,
    lake: Annotated[LakeFileSystem, typer.Option("--lake", help="The file system of the lake.")] = LakeFileSystem.HDFS,
    flights: Annotated[
        int, typer.Option("--flights", min=0, help="The number of flights taken from each month; 0: all.")
    ] = 0,
) -> None:
    """Produce, consume, load and audit every flight that left New York in 2013.

    The exit status is 0 only if every flight that was acknowledged is in the lake exactly once, and all tiers agree.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    size = Size.of(flights)
    workspace = Workspace.make(dir_)
    show = Show(Console(), size.all)
    story = Story(workspace, show, plant, lake, flights, size)
    report = story.run()
    say(f"the lake is left in {story.lake_left()}")
    try:
        report.write(workspace.report)
        say(f"the report, for a browser: {workspace.report}")
    except ConfigError as error:  # a full disk does not change what was found
        say(f"there is no report: {error}")
    say(report.verdict.line())
    if not report.verdict.passed:
        raise typer.Exit(1)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as `signal` calls it
    raise KeyboardInterrupt
