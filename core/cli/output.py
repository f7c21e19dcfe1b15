"""What a command prints: lines, documents and tables, with names from the wire escaped (`klamm.core.escaping`).

Everything that a command prints is printed here; `tests/repository/test_escaping.py` checks it.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from ..escaping import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["PIPE_WIDTH", "console", "discard_output", "say", "say_document", "say_on", "table", "text", "titled_table"]

PIPE_WIDTH = 200


def say(line: str, *, err: bool = False) -> None:
    """Prints a line, on stderr if `err`."""
    typer.echo(escaped(line), err=err)


def discard_output() -> None:
    """Redirects stdout to the null device: flushing the rest of the buffer would fail again when the interpreter
    ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_document(document: str, *, err: bool = False) -> None:
    """Prints a text of several lines, such as JSON or YAML, on stderr if `err`."""
    typer.echo(escaped_lines(document.removesuffix("\n")), err=err)


def say_on(console: Console, line: str) -> None:
    """Prints a line on a console, which may show a progress bar below it."""
    console.print(text(escaped(line)), soft_wrap=True)


def console() -> Console:
    """Returns a console on stdout; wide if that is not a terminal, so that no text is cut off in a pipe."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Returns a table without boxes, readable by eye and by `awk`."""
    made = _table_class()(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def titled_table(title: str) -> Table:
    """Returns a table with a title and lines."""
    return _table_class()(title=text(title), title_justify="left")


def text(value: str, style: str = "") -> Text:
    """Returns a cell or a line for a console: escaped, and without rich's markup."""
    from rich.text import Text

    return Text("\n".join(map(escaped, value.split("\n"))), style)


@cache
def _table_class() -> type[Table]:
    from rich.table import Table

    class EscapedTable(Table):
        """A table whose texts are escaped, and are no markup."""

        def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
            super().add_column(text(escaped(header)) if isinstance(header, str) else header, *arguments, **options)

        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(text(escaped(each)) if isinstance(each, str) else each for each in cells), **options)

    return EscapedTable
