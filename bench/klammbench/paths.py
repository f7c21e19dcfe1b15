"""Paths of the benchmark: everything that a run makes is under `var/bench`, which git ignores."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VAR = ROOT / "var" / "bench"
RESULTS = VAR / "results"
SYSTEM_DATA = VAR / "systems"
BUILT = VAR / "built"
DOCS = ROOT / "docs"
PYTHON = ROOT / ".venv" / "bin" / "python"
"""The interpreter of the harness and the client programs."""
BROKER_COMMAND = VAR / "venv" / "bin" / "klamm"
"""The measured broker's `klamm` command, in the environment that `bench/install.sh` makes."""
