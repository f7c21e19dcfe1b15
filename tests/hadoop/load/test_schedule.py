"""`klamm load --every`: when runs begin, what ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from klamm.core.cli.config import check
from klamm.core.cli.options import interval_s
from klamm.core.errors import ConfigError, KlammError
from klamm.hadoop.load.cli import load
from klamm.hadoop.load.schedule import Schedule
from klammtest.brokers.served import Served, served


class Clock:
    """Time passes while a run takes `seconds`, and while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.began: list[float] = []
        self.stop = threading.Event()

    def run(self, seconds: Iterator[float]) -> bool:
        self.began.append(self.now - 100.0)
        took = next(seconds, None)
        if took is None:
            self.stop.set()
            return True
        self.now += abs(took)
        return took >= 0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def schedule(self, max_failures: int) -> Schedule:
        return Schedule(10.0, max_failures, self.stop, clock_s=lambda: self.now, wait=self.wait)


def test_runs_begin_at_multiples_or_when_the_one_before_has_ended() -> None:
    clock, times = Clock(), iter([3.0, 9.0, 25.0, 1.0, 10.0])
    assert clock.schedule(1).follow(lambda: clock.run(times))
    assert clock.began == [0.0, 10.0, 20.0, 45.0, 50.0, 60.0]


def test_so_many_failed_runs_in_a_row_are_the_end() -> None:
    """A run that fails is negative here."""
    clock, told = Clock(), list[float]()
    times = iter([-3.0, -12.0, 2.0, -4.0, -1.0, -1.0])
    assert not clock.schedule(3).follow(lambda: clock.run(times), told.append)
    assert clock.began == [0.0, 10.0, 22.0, 30.0, 40.0, 50.0]
    assert told == [7.0, 0.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("2d", 172_800), ("10 min", 600)]
)
def test_intervals(text: str, seconds: int) -> None:
    assert interval_s("--every", text) == seconds


@pytest.mark.parametrize("text", ["10", "0m", "m", "1.5h", "-1s", "10 mins", ""])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--every: expected an interval such as 90s, 10m or 1h"):
        interval_s("--every", text)


def test_an_interval_that_no_clock_can_wait_for_is_refused() -> None:
    assert interval_s("--every", "3650d") == 3650 * 86_400
    with pytest.raises(ConfigError, match="--every: expected an interval of at most 3650d, got '999999d'"):
        interval_s("--every", "999999d")


def config(at: Served, *topics: str) -> Path:
    sink = {"plugin": "hadoop", "topics": [*topics], "path": f"{at.folder}/lake"}
    path = at.folder / "klamm.yaml"
    path.write_text(yaml.safe_dump({"consumer": {"bootstrap.servers": at.bootstrap}, "sinks": {"lake": sink}}))
    return path


def test_a_scheduler_loads_what_comes_and_ends_after_sigterm(tmp_path: Path) -> None:
    """Runs that find nothing new may lie between."""
    with served(tmp_path) as at:
        at.produce(range(10))
        command = [
            Path(sys.executable).parent / "klamm",
            "load",
            "--config",
            config(at, "t"),
            "--every",
            "1s",
            "--json",
        ]
        with subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as running:
            assert running.stdout is not None
            assert loaded(running.stdout) == (1, 10)
            at.produce(range(10, 20))  # one batch: a run has all of it or nothing
            assert loaded(running.stdout) == (2, 10)
            os.killpg(running.pid, signal.SIGTERM)  # the JVM must not get it
            rest, errors = running.communicate(timeout=300)
        assert (running.returncode, errors) == (0, "")
        assert {json.loads(line)["status"] for line in rest.splitlines()} <= {"empty"}


def loaded(stdout: IO[str]) -> tuple[int, int]:
    """The number and the records of the next load; runs that find nothing new come before it."""
    for line in stdout:
        said: dict[str, Any] = json.loads(line)
        if said["status"] != "empty":
            (topic,) = said["topics"]
            return topic["load"], topic["records"]
    raise AssertionError("the scheduler has ended")


def test_a_wrong_schema_file_is_the_same_line_as_of_config_check(tmp_path: Path) -> None:
    (tmp_path / "t.avsc").write_text("no json")
    topics = {"t": {"schema": "t.avsc", "serde": "avro"}, "other": {}}
    for section in ({"topics": ["t"]}, {"topics.regex": "[a-z]"}):
        sink = {"plugin": "hadoop", "path": str(tmp_path / "lake"), **section}
        path = tmp_path / "klamm.yaml"
        path.write_text(yaml.safe_dump({"topics": topics, "sinks": {"lake": sink}}))
        told = []
        for command in ("check", "load"):
            with pytest.raises(ConfigError, match=r"topics\.t\.schema: .*t\.avsc: ") as caught:
                check(config=path) if command == "check" else load(config=path)
            told.append(str(caught.value))
        assert told[0] == told[1]
        assert "\n" not in told[0]


def test_a_scheduler_whose_runs_fail_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path) as at:
        where = config(at, "nowhere")
        with pytest.raises(KlammError, match=r"1 of 1 topics not loaded: nowhere; 2 runs failed in a row"):
            load(config=where, every="1s", max_failures=2)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": UNKNOWN")[0] for line in said[::2]] == ["klamm: load of nowhere"] * 2
    assert said[1].startswith("klamm: 1 of 1 topics not loaded: nowhere; the next run begins in ")
    with pytest.raises(ConfigError, match="--max-failures applies only with --every"):
        load(max_failures=2)
    with pytest.raises(ConfigError, match="--fail-if-empty applies to a single run"):
        load(every="1s", fail_if_empty=True)
