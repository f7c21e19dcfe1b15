"""Short runs of the campaigns of `make faults-cluster`: three real brokers and real clients, and planted anomalies."""

from __future__ import annotations

import re
import shutil

import pytest

from klammtest.suite.campaigns import run_campaign

QUICK = [
    "kill-leader",
    pytest.param("isolate", marks=pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)")),
    pytest.param("power-two", marks=pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")),
]


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_lost_by_three_brokers(name: str) -> None:
    done = run_campaign("--cluster", name)
    assert done.returncode == 0, done.stdout + done.stderr
    line = rf"^campaign {name} injected [1-9]\d* acknowledged [1-9]\d* lost 0 corrupt-served 0$"
    assert re.search(line, done.stdout, re.MULTILINE)
    assert re.search(r"\bdoubled 0 reordered 0\b", done.stdout)


def test_what_is_planted_in_a_cluster_is_found() -> None:
    done = run_campaign("--cluster", "--plant", "kill-all-embedded")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plant found" in done.stdout


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_a_soak_takes_a_positive_time(minutes: str) -> None:
    done = run_campaign("--cluster", "--soak", minutes, "soak")
    assert done.returncode == 2
    assert "--soak is a number of minutes, and positive" in done.stderr
