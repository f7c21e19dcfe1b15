"""The order of the tests and their spread over pytest-xdist's workers; which tests `make test FAST=1` leaves out.

A file is one unit of work, since its tests share brokers. The tests of a file in `SPREAD` share nothing: each is a
unit. The files of a folder in `TOGETHER` share an object that is slow to start: they are one unit. Units start in the
order of their cost, the longest first, so that no worker ends long after the others. `tests/costs.json` has their costs
in seconds; `make test COSTS=1` measures them again.

Every worker collects all tests, each in another order of the folders: on a fresh clone, where a module is compiled by
the first worker that imports it, each of them compiles a part.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

_T = TypeVar("_T")

ROOT: Final = Path(__file__).resolve().parents[4]
COSTS: Final = ROOT / "tests" / "costs.json"
UNKNOWN_S: Final = 30.0
"""Seconds assumed for a unit that was not measured: it starts early, which costs nothing if it is short."""

SPREAD: Final = (
    "tests/plugins/demo/test_demo.py",
    "tests/docs/test_examples.py",
    "tests/faults/test_campaign.py",
    "tests/faults/test_load_campaigns.py",
)
TOGETHER: Final = ("tests/hadoop/spark", "tests/hadoop")
"""Folders that share one Spark each; a file belongs to the first that contains it."""

FAST_UNIT_S: Final = 15.0
"""Units that cost more seconds are left out of the inner loop."""

JVM_FIXTURES: Final = frozenset({"hdfs_server", "spark", "zookeeper_ensemble", "zookeeper_server"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scheduling")
    group.addoption("--fast", action="store_true", help="leave out tests with a JVM or marked `slow`, and costly files")
    group.addoption("--record-costs", action="store_true", help=f"write {COSTS.name} from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out by --fast")
    if config.getoption("--record-costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostRecorder(), "cost-recorder")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores costly files with `--fast`, so that they are not even imported."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(ROOT):
        return None
    path = str(collection_path.relative_to(ROOT))
    costs = known_costs()
    cost = sum(costs[name] for name in costs if _file(name) == path) if path in SPREAD else costs.get(unit(path), 0.0)
    return cost > FAST_UNIT_S or None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each worker begin at another entry of a folder. `pytest_collection_modifyitems` restores one order."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and isinstance(collector, pytest.Directory) and collector.config.getoption("--guarantees") is None:
        number = int(worker["workerid"].removeprefix("gw"))
        report.result = rotated(report.result, number, worker["workercount"])
    return report


def rotated(entries: Sequence[_T], worker: int, workers: int) -> list[_T]:
    """Returns the entries in the order in which a worker collects them."""
    first = len(entries) * worker // workers
    return [*entries[first:], *entries[:first]]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        slow = [_is_slow(item) for item in items]
        config.hook.pytest_deselected(items=[item for item, is_slow in zip(items, slow, strict=True) if is_slow])
        items[:] = [item for item, is_slow in zip(items, slow, strict=True) if not is_slow]
    if config.getoption("--guarantees") is None:  # guarantees have their own order
        costs = known_costs()
        of = {item: unit(item.nodeid) for item in items}
        items.sort(key=lambda item: (-costs.get(of[item], UNKNOWN_S), of[item], _file(item.nodeid)))  # stable in a file


def _is_slow(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    on_jvm = callspec is not None and not {"hdfs", "zookeeper", "ensemble"}.isdisjoint(
        str(value) for value in callspec.params.values() if not isinstance(value, (int, dict, list))
    )
    jvm = on_jvm or not JVM_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return jvm or item.get_closest_marker("slow") is not None


def unit(nodeid: str) -> str:
    """Returns the unit of a test, which one worker runs as a whole: a folder, a file, or a single test."""
    file = _file(nodeid)
    return nodeid if file in SPREAD else next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@lru_cache(maxsize=1)
def known_costs() -> dict[str, float]:
    """Returns seconds by unit; empty if none were measured."""
    return dict(json.loads(COSTS.read_text())) if COSTS.exists() else {}


class CostRecorder:
    """Adds up the time of each unit's tests, with the set-up and teardown of their fixtures."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[unit(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        measured = {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        kept = {name: cost for name, cost in known_costs().items() if (ROOT / _file(name)).exists()}
        COSTS.write_text(json.dumps({**kept, **measured}, indent=1, sort_keys=True) + "\n")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns a scheduler of pytest-xdist; None unless `--dist` is `loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByCost(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        """Schedules units in the order of collection, which is that of their costs."""

        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False
    return ByCost(config, log)
