"""The campaign `connections`, short: no time is judged; bounds, release and what the client wrote are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from klammtest.broker import ENVIRONMENT

FOLDER = Path(__file__).parent


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    command = [sys.executable, str(FOLDER / "campaign.py"), "connections", "--quick", "--seed", "11", *arguments]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=560, check=False)


def test_a_crowd_of_connections_holds_no_more_than_it_may() -> None:
    done = campaign()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^campaign connections injected 585 acknowledged [1-9]\d* lost 0 corrupt-served 0\b", done.stdout, re.MULTILINE
    )


def test_unbounded_responses_are_found() -> None:
    done = campaign("--plant")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plant found" in done.stdout
