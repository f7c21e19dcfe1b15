"""Text that may contain names from the wire (groups, clients, members, headers, error messages), as one visible line.

A name can contain line breaks, terminal escape sequences, bidirectional controls and lone surrogates. Written as it is,
it could forge a row of a table or a line of a log, reorder what is printed, or fail to be encoded. It is escaped where
lines are made: by `LineFormatter` for logs, by `KlammError` for messages, by `klamm.core.cli.output` for commands, by
the audit's templates for pages, and by the collector for labels of metrics.
"""

from __future__ import annotations

import logging
from copy import copy
from types import TracebackType

__all__ = ["LineFormatter", "escaped", "escaped_lines"]

_INDENT = "  "


def escaped(text: str) -> str:
    """Returns the text with each character that is not printable as its escape: `\\n`, `\\x1b`, `\\u202e`, `\\ud800`.

    Printable is what Unicode counts as such (`str.isprintable`): no control or format characters, no separators but the
    space, no surrogates, no unassigned characters. A backslash stays one.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped_lines(text: str) -> str:
    """Returns the text with its line breaks as they are, and everything else as `escaped` has it."""
    return "\n".join(map(escaped, text.split("\n")))


class LineFormatter(logging.Formatter):
    """Formats a log record as one line; the lines of a traceback follow, indented, so that none of them can be taken
    for a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            record = copy(record)
            record.exc_text = None  # the text of another handler's formatter
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
