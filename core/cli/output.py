"""What a command prints: lines, documents, tables and JSON, with names from the wire escaped (`klamm.core.escaping`).

A listing is rows of named values (`say_rows`): a table for people, or with `--json` one JSON object per line.

Everything that a command prints is printed here; `tests/core/test_escaping.py` checks it.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import KlammError
from ..escaping import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Json",
    "Lines",
    "Shown",
    "console",
    "discard_output",
    "flush_output",
    "reader_ended",
    "say",
    "say_document",
    "say_json",
    "say_on",
    "say_rows",
    "text",
    "titled_table",
    "writing",
]

PIPE_WIDTH = 200
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def say(line: str, *, err: bool = False) -> None:
    """Prints a line, on stderr if `err`."""
    _echo(escaped(line), err)


def discard_output(*, err: bool = False) -> None:
    """Redirects stdout, or stderr, to the null device: flushing the rest of the buffer would fail again when the
    interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


@contextmanager
def writing(*, err: bool = False) -> Iterator[None]:
    """Names stdout, or stderr, in an error of writing to it, as of a full disk. A `BrokenPipeError` stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output(err=err)
        raise KlammError(f"standard {'error' if err else 'output'}: {error.strerror}") from error


def flush_output() -> None:
    """Writes what stdout has buffered. Raises `KlammError` if that fails, which names stdout."""
    try:
        with writing():
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def reader_ended() -> bool:
    """Returns True if stdout is a pipe whose reader has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def say_document(document: str, *, err: bool = False) -> None:
    """Prints a text of several lines, such as JSON or YAML, on stderr if `err`."""
    _echo(escaped_lines(document.removesuffix("\n")), err)


def say_on(console: Console, line: str) -> None:
    """Prints a line on a console, which may show a progress bar below it."""
    console.print(text(escaped(line)), soft_wrap=True)


def console() -> Console:
    """Returns a console on stdout; wide if that is not a terminal, so that no text is cut off in a pipe."""
    from rich.console import Console

    class PipedConsole(Console):
        """A console that does not end the command on a broken pipe, as in `_echo`."""

        def on_broken_pipe(self) -> None:
            discard_output()

    return Console() if sys.stdout.isatty() else PipedConsole(width=PIPE_WIDTH)


def _echo(output: str, err: bool) -> None:
    """Prints a text. If its reader has ended (`| head`), the rest of the output is discarded and the command
    continues, since it may change something; its exit status is unaffected."""
    try:
        with writing(err=err):
            typer.echo(output, err=err)
    except BrokenPipeError:
        discard_output(err=err)


class Lines(list[str]):
    """A list of which a table shows each entry on its own line."""


class Shown(int):
    """A number that a table shows as `text`; in JSON it is the number."""

    text: str

    def __new__(cls, value: int, text: str) -> Shown:
        made = super().__new__(cls, value)
        made.text = text
        return made


def say_json(value: Any) -> None:
    """Prints a value as JSON on one line."""
    say(json.dumps(value))


def say_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], as_json: bool = False) -> None:
    """Prints rows as a table with these columns, readable by eye and by `awk`; or, with all of their values, as JSON,
    one object per line.

    A column's heading is its key with spaces for underscores. Columns of numbers are right-aligned, except the first.
    An unknown value is None: `-` in the table, as in Kafka's tools. A list is separated by commas.
    """
    found = list(rows)
    if as_json:
        for row in found:
            say_json(row)
        return
    made = _table_class()(box=None, header_style="bold", pad_edge=False)
    for position, column in enumerate(columns):
        right = position > 0 and any(type(row[column]) in (int, Shown) for row in found)
        made.add_column(column.replace("_", " "), justify="right" if right else "left", overflow="fold")
    for row in found:
        made.add_row(*(_cell(row[column]) for column in columns))
    with writing():
        console().print(made)


def _cell(value: Any) -> str | Text:
    if value is None or value == []:
        return "-"
    if isinstance(value, Shown):
        return value.text
    if isinstance(value, Lines):
        return text("\n".join(value))
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


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
        """A table whose texts are escaped and not interpreted as markup."""

        def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
            super().add_column(text(escaped(header)) if isinstance(header, str) else header, *arguments, **options)

        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(text(escaped(each)) if isinstance(each, str) else each for each in cells), **options)

    return EscapedTable
