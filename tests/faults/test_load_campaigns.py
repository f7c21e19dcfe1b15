"""Short runs of the campaigns of `make faults-load`: faults that no test of `tests/hadoop` has. `PLANT=1` plants
anomalies."""

from __future__ import annotations

import os
import re

import pytest

from klammtest.hadoop.hdfs import NO_HDFS
from klammtest.suite.campaigns import run_campaign

LIMIT_S = 1_200.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S + 60),
    pytest.mark.skipif(os.environ.get(NO_HDFS) == "1", reason=f"{NO_HDFS}=1: no HDFS here"),
]


def test_loads_survive_what_is_killed_around_them() -> None:
    """Loads survive that the NameNode, the DataNode, a Python worker, the broker and ZooKeeper are killed in turn, and
    that a rename is refused.
    """
    done = run_campaign("--loads", "load-mixed", seed=5, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    line = r"^campaign load-mixed injected 6 acknowledged [1-9]\d* lost 0 corrupt-served 0$"
    assert re.search(line, done.stdout, re.MULTILINE)
