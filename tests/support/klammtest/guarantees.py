"""Guarantees: tests of what Klamm never does, each with a planted fault that it must find.

A test marked by `guarantee` is two: one on the unchanged code, which must pass, and one with its fault planted, which
must fail. A planted run that passes is reported as a failure: the test cannot detect what it claims to detect.
`make test` runs the first; `make guarantees` prints one line for each, by letter (`ONLY=A`), and with `PLANT=1` runs
the planted ones alone, as CI does after the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]
"""Disables the guarantee's mechanism for one test, in this process or (through `setenv`) in the processes it starts."""

NUMBER: Final = re.compile(r"[A-Z][0-9]{1,3}")
PLANTED: Final = "planted"


def guarantee(number: str, claim: str, *, plant: Plant) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a test as the guarantee `number`, a letter and digits such as "A1"; `claim` is one line, in the present
    tense. The test takes its ordinary fixtures; the plant is applied before it is called."""
    if not NUMBER.fullmatch(number):
        raise ValueError(f"{number!r} should be a letter and digits, as in A1")

    def mark(test: Callable[..., Any]) -> Callable[..., Any]:
        both = pytest.mark.parametrize("planted", [None, plant], ids=["holds", PLANTED], indirect=True)
        marked: Callable[..., Any] = both(pytest.mark.guarantee(number, claim)(test))
        return marked

    return mark


@pytest.fixture(autouse=True)
def planted(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Plants the fault of a planted run; the fixture's value is True if there is one."""
    plant: Plant | None = getattr(request, "param", None)
    with pytest.MonkeyPatch.context() as patch:
        if plant is not None:
            plant(patch)
        yield plant is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("guarantees")
    group.addoption("--guarantees", metavar="LETTERS", help="run only the guarantees of these letters, a line for each")
    group.addoption("--plant", action="store_true", help="with --guarantees: the planted runs alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guarantee(number, claim): see klammtest.guarantees")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    letters = config.getoption("--guarantees")
    if letters is None:
        chosen = [item for item in items if not _is_planted(item)]
    else:
        chosen = [item for item in items if _chosen(item, letters, config.getoption("--plant"))]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen if letters is None else sorted(chosen, key=lambda item: _order(_number(item) or ""))


def _chosen(item: pytest.Item, letters: str, plant: bool) -> bool:
    number = _number(item)
    return number is not None and number[0] in letters.upper() and _is_planted(item) == plant


def _order(number: str) -> tuple[str, int]:
    return number[:1], int(number[1:] or 0)


def _number(item: pytest.Item) -> str | None:
    found = item.get_closest_marker("guarantee")
    return None if found is None else str(found.args[0])


def _is_planted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("planted") is not None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Reverses the outcome of a planted run."""
    if not _is_planted(pyfuncitem):
        return (yield)
    try:
        yield
    except (Exception, pytest.fail.Exception):  # the test found the planted fault
        return True
    pytest.fail(f"the fault planted for {_number(pyfuncitem)} was not found", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("guarantee")
    if mark is not None:
        report.user_properties.append(("guarantee", (str(mark.args[0]), str(mark.args[1]), _is_planted(item))))
    return report


class GuaranteeLines:
    """Prints one line for each guarantee and a last one with the sum."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: dict[tuple[str, str, bool], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties).get("guarantee")
        if isinstance(found, (tuple, list)) and (report.when == "call" or report.failed or report.skipped):
            key = (str(found[0]), str(found[1]), bool(found[2]))
            self._results[key] = self._results.get(key, True) and report.passed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("guarantees")
        for (number, claim, plant), passed in sorted(self._results.items(), key=lambda item: _order(item[0][0])):
            word = {(False, True): "holds", (False, False): "BROKEN", (True, True): "found", (True, False): "NOT FOUND"}
            terminalreporter.write_line(f"guarantee {number} {word[plant, passed]}: {claim}")
        good = sum(self._results.values())
        what = "plants found" if self._config.getoption("--plant") else "hold"
        terminalreporter.write_line(f"guarantees: {good} of {len(self._results)} {what}")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--guarantees") is not None:
        session.config.pluginmanager.register(GuaranteeLines(session.config), "guarantee-lines")
