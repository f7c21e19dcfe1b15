"""`klamm demo`: the whole pipeline on real flights. Start reading at `story.py`."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.plugin import Command, hookimpl


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm demo`."""
    return [
        Command(
            "demo",
            "klamm.plugins.demo.command:demo",
            "Run the whole pipeline on 336,776 real flights.",
            "klamm[spark,demo]",
        )
    ]
