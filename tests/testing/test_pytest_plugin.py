"""The fixtures in another project: a broker for each worker, clean between tests, and no cost without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def klamm_config():
    return {"topics": {"declared": 1}}
"""
TESTS = """
import pytest


@pytest.mark.parametrize("n", range(4))
def test_each_begins_clean(klamm_broker, n):
    assert klamm_broker.topics() == {"declared": 1}
    assert klamm_broker.send("declared", "x") == 0
    klamm_broker.create_topic("own")
    if n == 1:
        klamm_broker.kill()
    print("SERVED", klamm_broker.bootstrap_servers)


def test_the_session_has_one(klamm_broker, klamm_broker_process):
    assert klamm_broker is klamm_broker_process
"""
LOADED = """
import sys
import klamm.testing.pytest_plugin
print(*sorted(name for name in sys.modules if name.startswith("klamm")))
"""


def test_each_worker_has_a_broker_and_each_test_a_clean_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_project.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "load", "-rP", "-p", "no:cacheprovider"],
        cwd=tmp_path, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert len({line for line in done.stdout.splitlines() if line.startswith("SERVED")}) == 2


def test_the_plugin_loads_nothing_of_klamm_before_a_fixture_is_used() -> None:
    shown = subprocess.run([sys.executable, "-c", LOADED], text=True, capture_output=True, timeout=120, check=True)
    assert shown.stdout.split() == ["klamm", "klamm._lazy", "klamm.testing", "klamm.testing.pytest_plugin"]
