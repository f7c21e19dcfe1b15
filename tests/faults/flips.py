"""What the three campaigns of flipped bits share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from harness import Result


@dataclass(frozen=True)
class Flip:
    path: Path
    byte: int
    bit: int

    def apply(self, folder: Path) -> None:
        with (folder / self.path).open("r+b") as file:
            file.seek(self.byte)
            value = file.read(1)[0]
            file.seek(self.byte)
            file.write(bytes([value ^ 1 << self.bit]))

    def __str__(self) -> str:
        return f"{self.path} byte {self.byte} bit {self.bit}"


def choose(folder: Path, files: list[Path], chance: random.Random) -> Flip:
    """Any bit of the files, each file as likely as its size where they are alike, never a small one left out."""
    path = chance.choice(files)
    return Flip(path, chance.randrange((folder / path).stat().st_size), chance.randrange(8))


def verdict(i: int, flip: Flip, detected: bool, total: Result) -> None:
    total.injected += 1
    if not detected:
        total.count("undetected")
        total.wrong(i, f"{flip}: nothing noticed it")
