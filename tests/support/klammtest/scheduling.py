"""The order of the test files and their spread over pytest-xdist's workers; which tests `make test FAST=1` leaves out.

Files start in the order of their cost, the longest first, so that no worker ends long after the others. Their costs in
seconds are in `tests/costs.json`; `make test COSTS=1` measures them again. A file is one unit of work, since its tests
share brokers; the files of `SPREAD` are not, their tests share nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
COSTS: Final = ROOT / "tests" / "costs.json"
UNKNOWN_S: Final = 30.0
"""Of a file that was not measured: it starts early, which costs nothing if it is short."""

SPREAD: Final = frozenset(
    {"tests/plugins/demo/test_demo.py", "tests/docs/test_readme.py", "tests/docs/test_examples.py"}
)
FAST_FILE_S: Final = 15.0
"""What a file may cost to be in the inner loop."""

JVM_FIXTURES: Final = frozenset({"spark", "zookeeper_server"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scheduling")
    group.addoption("--fast", action="store_true", help="leave out tests with a JVM or marked `slow`, and costly files")
    group.addoption("--record-costs", action="store_true", help=f"write {COSTS.name} from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out by --fast")
    if config.getoption("--record-costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostRecorder(), "cost-recorder")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A costly file is not even imported by `--fast`."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(ROOT):
        return None
    return known_costs().get(str(collection_path.relative_to(ROOT)), 0.0) > FAST_FILE_S or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        slow = [_is_slow(item) for item in items]
        config.hook.pytest_deselected(items=[item for item, is_slow in zip(items, slow, strict=True) if is_slow])
        items[:] = [item for item, is_slow in zip(items, slow, strict=True) if not is_slow]
    if config.getoption("--guarantees") is None:  # these have an order of their own
        costs = known_costs()
        items.sort(key=lambda item: -costs.get(_file(item.nodeid), UNKNOWN_S))  # stable: within a file as written


def _is_slow(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    on_zookeeper = callspec is not None and "zookeeper" in callspec.params.values()
    jvm = on_zookeeper or not JVM_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return jvm or item.get_closest_marker("slow") is not None


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@lru_cache(maxsize=1)
def known_costs() -> dict[str, float]:
    """Seconds by file; empty if none were measured."""
    return dict(json.loads(COSTS.read_text())) if COSTS.exists() else {}


class CostRecorder:
    """Adds up what each file's tests took, with the set-up and the end of their fixtures."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        measured = {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        kept = {file: cost for file, cost in known_costs().items() if (ROOT / file).exists()}
        COSTS.write_text(json.dumps({**kept, **measured}, indent=1, sort_keys=True) + "\n")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler of pytest-xdist; None for any `--dist` but `loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByCost(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        """Units of work in the order of collection, which is that of their costs."""

        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _file(nodeid) in SPREAD else _file(nodeid)

    config.option.loadscopereorder = False
    return ByCost(config, log)
