"""The parts shared by campaigns that repeatedly damage a copy of a log, by flipped bits or by a cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import Result, Run
from logs.template import Template

FULL, QUICK, PLANTED = 1_000, 60, 10


@dataclass(frozen=True)
class Damage:
    """One injection: `folder` holds a copy of `template`, which is damaged as `chance` decides."""

    number: int
    chance: random.Random
    template: Template
    folder: Path
    plant: bool


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
    """Chooses a file, each equally likely whatever its size, and one bit of it."""
    path = chance.choice(files)
    return Flip(path, chance.randrange((folder / path).stat().st_size), chance.randrange(8))


def verdict(i: int, flip: Flip, detected: bool, total: Result) -> None:
    total.injected += 1
    if not detected:
        total.count("undetected")
        total.wrong(i, f"{flip}: the damage was not detected")


def damage_each(
    run: Run, templates: int, one: Callable[[Damage, Result], None], *, clean: Callable[[int], bool]
) -> Result:
    """Calls `one` for each injection, on several templates in turn; `clean` returns True for those that were stopped
    cleanly.
    """
    total = Result(wanted=QUICK if run.quick else FULL)
    made = [Template(run.folder / f"t{n}", run.chance(f"template {n}"), clean=clean(n)) for n in range(templates)]
    for i, chance in run.injections(QUICK, FULL):
        template = made[i % templates]
        with template.copy(run.folder / f"i{i}") as folder:
            one(Damage(i, chance, template, folder, run.plant and i < PLANTED), total)
    return total
