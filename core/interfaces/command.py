"""The command interface: a subcommand of `klamm`, imported only when it runs or its help is shown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """`target` is `module:function`, a function that typer can turn into a command; `summary` is its line of help.
    `install` is the argument for pip if a package that the target needs is missing."""

    name: str
    target: str
    summary: str
    install: str = ""
