"""The systems that are up. One that the next shape wants too stays up, warm as it is; the others are stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from klammbench.systems.base import System


class Pool:
    """`factories` make systems by name, in folders below `folder`. Close it, or processes stay behind."""

    def __init__(self, factories: Mapping[str, Callable[[Path], System]], folder: Path) -> None:
        self._factories = factories
        self._folder = folder
        self._held: dict[str, System] = {}

    def take(self, names: Iterable[str], *, fresh: bool) -> dict[str, System]:
        """These, and no others are up afterwards; `fresh`: none of these either."""
        wanted = list(dict.fromkeys(names))
        for name in [name for name in self._held if fresh or name not in wanted]:
            self._drop(name)
        for name in wanted:
            if name not in self._held:
                self._held[name] = self._factories[name](self._folder / name)
                self._held[name].wipe()  # what a killed run may have left
        return {name: self._held[name] for name in wanted}

    def close(self) -> None:
        for name in list(self._held):
            try:
                self._drop(name)
            except Exception as error:  # the others must end all the same
                print(f"{name} did not stop in order: {type(error).__name__}: {error}", file=sys.stderr)

    def _drop(self, name: str) -> None:
        system = self._held.pop(name)
        try:
            system.stop()
        finally:
            system.wipe()
