"""The running systems. A system that the next shape also uses stays up and warm; the others are stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from klammbench.systems.base import System


class Pool:
    """`factories` make systems by name, in folders below `folder`. Close the pool, or processes stay behind."""

    def __init__(self, factories: Mapping[str, Callable[[Path], System]], folder: Path) -> None:
        self._factories = factories
        self._folder = folder
        self._held: dict[str, System] = {}

    def take(self, names: Iterable[str], *, fresh: bool) -> dict[str, System]:
        """Starts these systems and stops all others. `fresh`: these are restarted too."""
        wanted = list(dict.fromkeys(names))
        for name in [name for name in self._held if fresh or name not in wanted]:
            self._drop(name)
        for name in wanted:
            if name not in self._held:
                self._held[name] = self._factories[name](self._folder / name)
                self._held[name].wipe()  # a killed run may have left data
        return {name: self._held[name] for name in wanted}

    def close(self) -> None:
        for name in list(self._held):
            try:
                self._drop(name)
            except Exception as error:  # the others must be stopped all the same
                print(f"{name} did not stop cleanly: {type(error).__name__}: {error}", file=sys.stderr)

    def _drop(self, name: str) -> None:
        system = self._held.pop(name)
        try:
            system.stop()
        finally:
            system.wipe()
