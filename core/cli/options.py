"""What the commands share: the `--config` option, tables, a client to the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML file.")]
DEFAULT_CONFIG = Path("klamm.yaml")
PIPE_WIDTH = 200


def console() -> Console:
    """To stdout; wide where it is no terminal, so that nothing is cut off in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Without boxes, so that it can be read by eye and by `awk`."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made
