"""Tests of the suite's own foundations: units of work, and ports that belong to one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from klammtest.broker import ENVIRONMENT
from klammtest.ports import PORTS, free_port, reserve
from klammtest.suite.scheduling import SPREAD, TOGETHER, unit

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
