"""The parts shared by campaigns that kill a process at each fault point: the choice of the point and of the pass."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

import klamm.core.log
from harness import Result, Run

PLANTED = 10
EACH, EACH_QUICK = 50, 2
_POINT = re.compile(r'fault_point\("([a-z_.]+)"\)')


def points_of_the_log() -> frozenset[str]:
    """Returns every fault point of the log's code."""
    modules = Path(klamm.core.log.__path__[0]).rglob("*.py")
    return frozenset(point for module in modules for point in _POINT.findall(module.read_text()))


@dataclass(frozen=True)
class Kill:
    """A kill at the `nth` pass of a point, in the life scripted by `script`; `folder` holds the log that it leaves."""

    number: int
    script: int
    point: str
    nth: int
    folder: Path
    plant: bool

    @property
    def rules(self) -> str:
        return f"{self.point}@{self.nth}=kill"

    def __str__(self) -> str:
        return f"{self.number} ({self.point}@{self.nth})"


def rehearse(run: Run, scripts: int, live: Callable[[Path, int], dict[str, int]]) -> list[dict[str, int]]:
    """Returns how often each life passes each point when nothing is injected."""
    passes = []
    for script in range(scripts):
        folder = run.folder / f"rehearsal-{script}"
        passes.append(live(folder, script))
        shutil.rmtree(folder)
    return passes


def kill_everywhere(
    run: Run, passes: list[dict[str, int]], one: Callable[[Kill, Result], None], wanted: Set[str]
) -> Result:
    """Kills at each point equally often, in a random pass of a random life that reaches the point. A `wanted` point
    that no life reaches is wrong.
    """
    points = sorted(set().union(*passes))
    number = len(points) * (EACH_QUICK if run.quick else EACH)
    total = Result(wanted=number, figures={"points": len(points)})
    for point in sorted(wanted - set(points)):
        total.wrong("all", f"no life reaches the fault point {point}")
    for i, chance in run.injections(number, number):
        point = points[i % len(points)]
        script = chance.choice([s for s, passed in enumerate(passes) if point in passed])
        nth = chance.randint(1, passes[script][point])
        kill = Kill(i, script, point, nth, run.folder / f"i{i}", run.plant and i < PLANTED)
        one(kill, total)
        shutil.rmtree(kill.folder)
    return total
