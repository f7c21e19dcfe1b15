"""`make faults`, as tests run it: short, with a fixed seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from klammtest.broker import ENVIRONMENT

_PROGRAM: Final = Path(__file__).resolve().parents[3] / "faults" / "campaign.py"


def run_campaign(*arguments: str, seed: int = 11, limit_s: float = 560.0) -> subprocess.CompletedProcess[str]:
    """Runs `campaign.py --quick` with these arguments."""
    command = [sys.executable, str(_PROGRAM), "--quick", "--seed", str(seed), *arguments]
    env = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=limit_s, check=False)
