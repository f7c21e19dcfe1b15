"""Where things are: everything that a run makes is under `var/bench`, which git ignores."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VAR = ROOT / "var" / "bench"
RESULTS = VAR / "results"
SYSTEM_DATA = VAR / "systems"
BUILT = VAR / "built"
DOCS = ROOT / "docs"
PYTHON = ROOT / ".venv" / "bin" / "python"
"""Of the harness and the client programs."""
BROKER_COMMAND = VAR / "venv" / "bin" / "klamm"
"""`klamm` of the environment that the broker is measured in, made by `bench/install.sh`."""
