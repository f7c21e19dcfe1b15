"""The tree keeps to the limits of docs/design.md, section 3: files, functions, annotations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_MAX, FUNCTION_MAX = 600, 70
FILES = sorted(p for room in ("core", "plugins", "schemas", "hadoop") for p in (ROOT / room).rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_keeps_to_the_limits(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_MAX
    long = [f"{f.name}:{f.lineno}" for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > FUNCTION_MAX]
    assert not long, f"over {FUNCTION_MAX} lines: {long}"
    bare = [f"{f.name}:{f.lineno}" for f in functions(path) if f.returns is None]
    assert not bare, f"no return annotation: {bare}"
    assert ast.get_docstring(ast.parse(path.read_text())), "a module says in its docstring what it is"


def test_no_tests_package_shadows_another() -> None:
    """importlib mode needs unique paths, not packages: an `__init__.py` under tests/ would change imports."""
    stray = [p for p in (ROOT / "tests").rglob("__init__.py") if "support" not in p.parts]
    assert not stray
