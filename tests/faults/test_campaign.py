"""The campaign of `make faults`, short: no anomaly as it is, and a planted one is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent / "support")}
    command = [sys.executable, str(FOLDER / "campaign.py"), "--quick", "--seed", "11", *arguments]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=280, check=False)


@pytest.mark.parametrize("name", ["kill9-confluent-kafka", "kill9-klamm"])
def test_nothing_is_lost_doubled_or_reordered(name: str) -> None:
    done = campaign("--only", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"campaign {name} injected 2 acknowledged \d+ lost 0 duplicated 0 reordered 0", done.stdout)


def test_a_planted_loss_is_found() -> None:
    done = campaign("--only", "kill9-klamm", "--plant")
    assert done.returncode == 1, done.stdout + done.stderr
    assert not re.search(r" lost 0 ", done.stdout)
