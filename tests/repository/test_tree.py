"""Rules of the tree that ruff and mypy do not check."""

from __future__ import annotations

import ast

from klammtest.suite.wheel import FOLDERS, ROOT


def test_each_module_has_a_docstring() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert files
    without = [str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not without


def test_there_is_no_package_of_tests() -> None:
    """In importlib mode a test file's module is named by its path; an `__init__.py` under tests/ would change that."""
    packages = [path for path in (ROOT / "tests").rglob("__init__.py") if "support" not in path.parts]
    assert not packages
