"""The disk of a broker's process, as a test wants it: syncs that fail, syncs and writes that take long, no room, and a
loss of power that drops what was written and not synced. It is a library that the process preloads (`disk.c`).
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

TOOLS: Final = ("gcc=gcc",)
_SOURCE: Final = Path(__file__).with_suffix(".c")
_CONTROL: Final = struct.Struct("=qqqqq")


def build(folder: Path) -> Path:
    """Compiles the library into `folder`."""
    library = folder / "disk.so"
    command = ("gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl")
    subprocess.run(command, check=True)
    return library


class Disk:
    """The disk below `under`, for the processes that are started with `environment`. `folder` holds its files."""

    def __init__(self, library: Path, folder: Path, under: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.under = under.resolve()
        self._library = library
        self._journal = folder / "journal"
        self._control = folder / "control"
        self._boot_id = folder / "boot_id"
        self._control.write_bytes(bytes(_CONTROL.size))
        self._boot()

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "KLAMM_DISK_UNDER": str(self.under),
            "KLAMM_DISK_JOURNAL": str(self._journal),
            "KLAMM_DISK_CONTROL": str(self._control),
            "KLAMM_DISK_BOOT_ID": str(self._boot_id),
        }

    def control(
        self, *, failing_syncs: int = 0, sync_delay_ms: int = 0, write_delay_ms: int = 0, room: int | None = None
    ) -> None:
        """Sets, at once, how many of the next syncs of segments fail, how long syncs and writes of them take, and how
        many bytes can still be written; None for as many as there are.
        """
        with self._control.open("r+b") as file:
            file.write(_CONTROL.pack(failing_syncs, sync_delay_ms, write_delay_ms, room is not None, room or 0))

    @property
    def syncs_to_fail(self) -> int:
        """Returns how many syncs still have to fail."""
        return max(self._state()[0], 0)

    @property
    def full(self) -> bool:
        """Returns True once a write has failed for lack of room."""
        *_, limited, room = self._state()
        return bool(limited) and room < 0

    def _state(self) -> tuple[int, ...]:
        return _CONTROL.unpack(self._control.read_bytes())

    def forget(self) -> None:
        """Notes that the folder was emptied, not by a process that has the library: nothing of its files is synced."""
        with self._journal.open("a") as journal:
            journal.writelines(f"T 0 {path}\n" for path in self._synced())

    def lose_power(self, chance: random.Random) -> int:
        """Drops what was not synced, as a loss of power may: the end of each file, from a random place on. The kernel
        has another boot id afterwards. Call it while the broker is dead; returns the bytes that are gone.
        """
        synced, dropped = self._synced(), 0
        for path in sorted(self.under.rglob("*")):
            if not path.is_file():
                continue
            size, safe = path.stat().st_size, synced.get(str(path), 0)
            if safe < size:
                left = safe if chance.random() < 0.5 else chance.randint(safe, size)
                with path.open("r+b") as file:
                    file.truncate(left)
                dropped += size - left
                with self._journal.open("a") as journal:
                    journal.write(f"T {left} {path}\n")
        self._boot()
        return dropped

    def _synced(self) -> dict[str, int]:
        """Returns the size up to which each file is certainly on the disk."""
        sizes: dict[str, int] = {}
        text = self._journal.read_text() if self._journal.exists() else ""
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "R":
                source, _, target = rest.partition("\t")
                sizes[target] = sizes.pop(source, 0)
                continue
            size, _, path = rest.partition(" ")
            if kind == "S":
                sizes[path] = int(size)
            elif kind == "T":
                sizes[path] = min(sizes.get(path, 0), int(size))
        return sizes

    def _boot(self) -> None:
        self._boot_id.write_text(f"{uuid4()}\n")
