"""The interface of a campaign, and the objects that it receives. A new campaign is a file below `campaigns/` with a
`CAMPAIGNS` list.

All randomness of a campaign comes from `Run.chance(i)`, so that seed and number of an injection replay it alone.
"""

from __future__ import annotations

import importlib
import logging
import random
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
PROBLEMS_KEPT = 20


class Kept:
    """Objects that are slow to start, made once below `folder` and shared by the campaigns of a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._made: dict[str, Any] = {}

    def of(self, what: str, make: Callable[[Path], AbstractContextManager[T]]) -> T:
        """Returns the object of that name, or makes it in an empty folder."""
        if what not in self._made:
            self._folder.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{what}-", dir=self._folder))
            self._made[what] = self._stack.enter_context(make(folder))
        found: T = self._made[what]
        return found

    def close(self) -> None:
        """Closes all objects; `of` makes them again."""
        self._made.clear()
        self._stack.close()


@dataclass(frozen=True)
class Run:
    """`folder` is empty and for this campaign only; `kept` may hold objects of another campaign. `only` is the one
    injection to replay; None for all. `soak_s`: how long a campaign that is bounded by time injects faults, in
    seconds; None for its own limit."""

    name: str
    seed: int
    quick: bool
    plant: bool
    folder: Path
    kept: Kept
    only: int | None = None
    soak_s: float | None = None

    def chance(self, injection: object) -> random.Random:
        """Returns the randomness of one injection, which does not depend on those before it."""
        return random.Random(f"{self.seed} {self.name} {injection}")

    def injections(self, quick: int, full: int) -> Iterator[tuple[int, random.Random]]:
        """Yields number and randomness of each injection: `quick` or `full` of them, or the one to replay."""
        for i in range(quick if self.quick else full) if self.only is None else (self.only,):
            yield i, self.chance(i)


@dataclass
class Result:
    """The counts of a campaign. It passes if nothing was lost, served corrupt or otherwise wrong, and at least `wanted`
    faults were injected.
    """

    wanted: int = 0
    injected: int = 0
    acknowledged: int = 0
    lost: int = 0
    corrupt_served: int = 0
    figures: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    broke_off: bool = False

    def count(self, figure: str, by: int = 1) -> None:
        """Adds to one of the further figures at the end of the line."""
        self.figures[figure] = self.figures.get(figure, 0) + by

    def require(self, injection: object, figure: str, holds: bool, what: str) -> None:
        """Counts, as a further figure, an injection that met its condition; records any other as wrong, for the reason
        `what`.
        """
        self.count(figure, holds)
        if not holds:
            self.wrong(injection, f"not {figure}: {what}")

    def wrong(self, injection: object, what: str) -> None:
        """Records a violation; `injection` replays it. The first violations are printed."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(f"at {injection}: {what}")

    def lose(self, injection: object, what: str, records: int = 1) -> None:
        self.lost += records
        self.wrong(injection, what)

    def corrupt(self, injection: object, what: str) -> None:
        self.corrupt_served += 1
        self.wrong(injection, what)

    def break_off(self, why: str) -> None:
        """Records that the campaign cannot continue: it has failed, and has found nothing."""
        self.broke_off = True
        self.wrong("all", why)

    @property
    def found(self) -> bool:
        """True if the campaign noticed something wrong; too few faults, or a campaign that broke off, do not count as
        finding the plant.
        """
        return not self.broke_off and self._wrong

    @property
    def passed(self) -> bool:
        return not self._wrong and self.injected >= max(self.wanted, 1)

    @property
    def _wrong(self) -> bool:
        return bool(self.lost or self.corrupt_served or self.problem_count)

    def line(self, name: str) -> str:
        return (
            f"campaign {name} injected {self.injected} acknowledged {self.acknowledged} lost {self.lost} "
            f"corrupt-served {self.corrupt_served}"
        )


class Campaign(Protocol):
    """`injects`, `asserts` and `plants` are one line each for the report; `tools` are the system commands that it
    needs.
    """

    @property
    def name(self) -> str: ...

    @property
    def injects(self) -> str: ...

    @property
    def asserts(self) -> str: ...

    @property
    def plants(self) -> str: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    def run(self, run: Run) -> Result:
        """Runs the campaign. With `run.plant` it does one wrong thing of its own kind: the result must then not
        pass."""
        ...


def all_campaigns(package: str = "campaigns", names: Collection[str] = ()) -> dict[str, Campaign]:
    """Returns campaigns by name, from every file below `campaigns/` or below the folder of another package.

    With `names`, files that contain one of them are imported first, and no others once all are found: to import every
    campaign takes more than a second, and many runs are of one.
    """
    found: dict[str, Campaign] = {}
    here = Path(__file__).parent
    files = sorted(here.joinpath(*package.split(".")).rglob("*.py"))
    texts = {file: file.read_text() for file in files} if names else {}
    files.sort(key=lambda file: not any(f'"{name}"' in texts[file] for name in names))
    for file in files:
        if names and found.keys() >= set(names):
            break
        module = ".".join(file.relative_to(here).with_suffix("").parts)
        for campaign in importlib.import_module(module).CAMPAIGNS:
            found[campaign.name] = campaign
    return found


@contextmanager
def heard(name: str = "klamm") -> Iterator[list[str]]:
    """Yields a list that receives the warnings and errors logged meanwhile; they are not printed."""
    said: list[str] = []

    class Ears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, ears = logging.getLogger(name), Ears(logging.WARNING)
    logger.addHandler(ears)
    before, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(ears)
        logger.propagate = before
