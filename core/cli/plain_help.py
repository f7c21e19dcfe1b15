"""Help in plain text, without rich, whose import takes as much CPU time as the rest of `klamm --help`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["PlainGroup"]


class PlainGroup(TyperGroup):
    """A group whose help shows the first paragraph of each command's help in full, wrapped, where click cuts it off
    at the end of the line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, " ".join((command.help or "").split("\n\n")[0].split())))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
