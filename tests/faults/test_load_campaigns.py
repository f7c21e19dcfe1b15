"""`make faults-load`, short, as far as no test of `tests/hadoop` does the same (docs/faults-load.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from klammtest.broker import ENVIRONMENT
from klammtest.hdfs import NO_HDFS

CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.mark.slow
@pytest.mark.timeout(1_600)
@pytest.mark.skipif(os.environ.get(NO_HDFS) == "1", reason=f"{NO_HDFS}=1: no HDFS here")
def test_a_load_survives_the_servers_and_workers_that_it_needs() -> None:
    env = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    command = [sys.executable, str(CAMPAIGN), "--loads", "--quick", "--seed", "11", "load-mixed"]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=1_500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^campaign load-mixed injected 4 acknowledged [1-9]\d* lost 0 corrupt-served 0$", done.stdout, re.MULTILINE
    )
