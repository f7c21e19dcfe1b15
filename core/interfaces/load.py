"""The load interface: a section of `sinks` that a command fills in whole loads, such as a lake.

`klamm sink` runs a `Sink`, record by record or batch by batch. A load plans offset ranges and publishes them
together, so nothing can be written to it a record at a time: a subcommand of its plugin runs it.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Load"]


class Load(Protocol):
    """One section of `sinks`. Making one connects to nothing and writes nothing: `klamm config check` makes one."""

    @property
    def command(self) -> str:
        """The subcommand that fills it: `load` for `klamm load`."""
        ...

    def check(self, on_bad_record: str) -> None:
        """Checks the section, `on.bad.record` included. Raises `ValueError`, which names the key and the expected
        value. Connects to nothing.
        """
        ...
