"""The wheel of this tree, as `make wheel` builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = ("core", "plugins", "schemas", "hadoop", "testing")
"""The top-level folders of the package."""


def copy_tree(copy: Path) -> None:
    """Copies what an installation needs. setuptools leaves a `build/` in a tree, and would take stale modules from it
    the next time."""
    for name in (*FOLDERS, "src", "docs", "examples"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, copy)


def build_wheel(folder: Path, *, compiler: str | None = None) -> Path:
    """Builds the wheel below `folder` from a copy of the tree. `compiler` replaces the C compiler."""
    environment = {**os.environ, **({} if compiler is None else {"CC": compiler})}
    copy = folder / "tree"
    copy_tree(copy)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(copy)],
        check=True, capture_output=True, timeout=120, env=environment,
    )  # fmt: skip
    (wheel,) = (folder / "dist").glob("klamm-*.whl")
    return wheel
