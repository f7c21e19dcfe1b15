"""`__all__` of the core's modules: each module that anything outside `core` imports from says what it offers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from klammtest.suite.wheel import ROOT

OUTSIDE = ("bench", "examples", "hadoop", "plugins", "schemas", "scripts", "src/klamm", "testing")


def modules_outside() -> Iterator[Path]:
    for folder in OUTSIDE:
        at = ROOT / folder
        # the links in src/klamm lead to the top-level folders, the core among them
        yield from (at.glob("*.py") if folder == "src/klamm" else at.rglob("*.py"))


def source_of(module: str) -> Path | None:
    """The file of a module below `klamm`; None where there is no such module."""
    path = ROOT.joinpath(*module.split(".")[1:])
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def imported_from_core() -> dict[Path, set[str]]:
    """By file of the core: the names that modules outside import from it."""
    found: dict[Path, set[str]] = {}
    for path in modules_outside():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("klamm.core"):
                for alias in node.names:
                    submodule, module = source_of(f"{node.module}.{alias.name}"), source_of(str(node.module))
                    if submodule is not None:
                        found.setdefault(submodule, set())
                    elif module is not None:
                        found.setdefault(module, set()).add(alias.name)
    return found


def all_of(path: Path) -> list[str] | None:
    if not path.exists():  # a compiled module
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def defined_in(path: Path) -> set[str]:
    """The names that a module binds at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for each in ast.walk(node) if isinstance(node, ast.If | ast.Try) else (node,):
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(each.name)
            elif isinstance(each, ast.ImportFrom) and each.names[0].name == "*":
                found |= set(all_of(path.parent / f"{each.module}.py") or ())  # of `native`: the twin has all names
            elif isinstance(each, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in each.names}
            elif isinstance(each, ast.Assign | ast.AnnAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def test_each_module_that_is_imported_from_outside_names_what_it_offers() -> None:
    wanting = {
        str(path.relative_to(ROOT)): sorted(names - set(all_of(path) or ()))
        for path, names in imported_from_core().items()
        if all_of(path) is None or not names <= set(all_of(path) or ())
    }
    assert not wanting


def test_all_names_only_what_there_is() -> None:
    """A name left in `__all__` after its class was renamed fails only at `from … import *`, which nobody writes."""
    files = [path for path in (ROOT / "core").rglob("*.py") if all_of(path) is not None]
    assert len(files) > 50
    assert not {
        str(path.relative_to(ROOT)): missing
        for path in files
        if (missing := set(all_of(path) or ()) - defined_in(path))
    }
