"""Rules of the tree that ruff and mypy do not check."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "plugins", "schemas", "hadoop")


def test_each_module_says_what_it_provides() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert files
    bare = [str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not bare, f"no docstring: {bare}"


def test_no_tests_package_shadows_another() -> None:
    """importlib mode needs unique paths, not packages: an `__init__.py` under tests/ would change imports."""
    stray = [path for path in (ROOT / "tests").rglob("__init__.py") if "support" not in path.parts]
    assert not stray
