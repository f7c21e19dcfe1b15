"""Tests of the suite's own foundations: units of work, ports that belong to one process, forked brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from klammtest.broker import ENVIRONMENT, KLAMM, running_broker
from klammtest.forking import fork_server
from klammtest.ports import PORTS, free_port, reserve
from klammtest.suite.scheduling import SPREAD, TOGETHER, rotated, unit

ROOT = Path(__file__).resolve().parents[2]
ANOTHER = """
import sys
from klammtest.ports import free_port, reserve
print(free_port(), reserve(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_file_is_one_unit_unless_it_is_named() -> None:
    assert unit("tests/core/log/segment/test_read.py::test_a[x]") == "tests/core/log/segment/test_read.py"
    assert unit(f"{SPREAD[0]}::test_a[x]") == f"{SPREAD[0]}::test_a[x]"
    assert unit(f"{TOGETHER[0]}/test_job.py::test_a") == TOGETHER[0]
    assert [name for name in (*SPREAD, *TOGETHER) if not (ROOT / name).exists()] == []


def test_each_worker_collects_all_from_another_place() -> None:
    assert [rotated("abcde", worker, 4) for worker in range(4)] == [
        list(o) for o in ("abcde", "bcdea", "cdeab", "deabc")
    ]
    assert rotated("", 3, 4) == []


def test_a_port_is_of_one_process_though_nobody_listens_on_it() -> None:
    mine = free_port()
    assert mine in PORTS
    assert not reserve(mine)
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(mine)], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        theirs, got_mine = other.stdout.readline().split()
        assert got_mine == "False"
        assert not reserve(int(theirs))
        other.communicate("")
    assert reserve(int(theirs)), "its end gives it back"


def test_a_forked_command_ends_as_a_started_one(tmp_path: Path) -> None:
    command = [KLAMM, "broker", "--config", "missing.yaml"]
    started = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    with (tmp_path / "out").open("w") as out:
        forked = fork_server(ENVIRONMENT).start(command, tmp_path, out.fileno())
    assert forked.wait(60) == started.returncode == 2
    assert (tmp_path / "out").read_text() == started.stdout + started.stderr


def test_a_forked_broker_is_a_process_of_its_own(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        assert Path(f"/proc/{broker.pid}/cwd").resolve() == tmp_path
        assert not broker.died()
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.died(within_s=60)
        with pytest.raises(ProcessLookupError):
            os.kill(broker.pid, 0)
        broker.start()
        assert broker.stop() == 0
        broker.start()
        assert broker.stop(signal.SIGINT) == 130
