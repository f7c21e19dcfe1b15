"""Every path, link and function that a page names exists. Starts no process."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "core|plugins|schemas|hadoop|testing|tests|bench|docs|examples|scripts|src|requirements"

_PATH = re.compile(rf"(?<![\w/.:$<>-])(?:{FOLDERS})/[\w./*-]*[\w/*]")
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_ANCHOR = re.compile(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)")
_HEADING = re.compile(r'"([A-Z][^"\n]{3,50})", (?:above|below)')
_ALERT = re.compile(r"`(Klamm[A-Z]\w+)`")
_STEP = re.compile(r"`((?:core|plugins|schemas|hadoop|testing)/[\w/]+\.py)` `([A-Za-z_][\w.]*)`")


def _ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = {match.group().rstrip("/") for match in _PATH.finditer(page.read_text(encoding="utf-8"))}
    missing = sorted(path for path in named if not _is_there(path))
    assert not missing, f"{page.relative_to(ROOT)} names what does not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = {match.group(1) for match in _LINK.finditer(page.read_text(encoding="utf-8"))}
    missing = sorted(link for link in links if "://" not in link and not (page.parent / link).exists())
    assert not missing, f"{page.relative_to(ROOT)} links to what does not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_heading_that_a_link_or_the_text_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = {(page.parent / file if file else page, anchor) for file, anchor in _ANCHOR.findall(text)}
    missing = sorted(f"{file.name}#{anchor}" for file, anchor in links if anchor not in set(_anchors(file)))
    missing += sorted(name for name in _HEADING.findall(text) if _anchor(name) not in set(_anchors(page)))
    assert not missing, f"{page.relative_to(ROOT)} names headings that do not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_alert_that_a_page_names_is_a_rule(page: Path) -> None:
    known = set(re.findall(r"alert: (\w+)", (ROOT / "examples" / "alerts.yaml").read_text(encoding="utf-8")))
    named = {
        name for name in _ALERT.findall(page.read_text(encoding="utf-8")) if not name.endswith(("Error", "Broker"))
    }
    assert not named - known, f"{page.relative_to(ROOT)} names alerts that do not exist"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_function_named_with_its_file_is_defined_there(page: Path) -> None:
    """A page names a function as `` `path/file.py` `Class.method` ``."""
    steps = _STEP.findall(page.read_text(encoding="utf-8"))
    missing = [f"{file}: {name}" for file, name in steps if name not in set(_defined(ROOT / file))]
    assert not missing, f"{page.relative_to(ROOT)} names what is not defined: {missing}"


def test_the_map_has_functions_and_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(_STEP.findall(page)) > 20
    folders = {
        path.parent.relative_to(ROOT)
        for top in ("core", "plugins", "schemas", "hadoop", "testing")
        for path in (ROOT / top).glob("**/*/__init__.py")
    }
    missing = sorted(str(folder) for folder in folders if f"`{folder}`" not in page)
    assert not missing, f"docs/architecture.md has no line for {missing}"


def _anchors(page: Path) -> Iterator[str]:
    """Yields the anchors of a page's headings, as GitHub makes them."""
    in_fence, seen = False, Counter[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        in_fence ^= line.startswith("```")
        if not in_fence and (heading := re.fullmatch(r"#{1,6} (.*)", line)):
            anchor = _anchor(heading.group(1))
            yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
            seen[anchor] += 1


def _anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def _is_there(path: str) -> bool:
    """A module may be named without `.py`, and `hadoop/SINK` stands for an owner's name, not for a path."""
    if path.rpartition("/")[2].isupper():
        return True
    if "*" in path:
        return any(ROOT.glob(path))
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def _defined(file: Path) -> Iterator[str]:
    """Functions, classes and assigned names of a module, and `Class.method` of its classes."""
    if not file.exists():
        return
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        yield from _names(node)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                yield from (f"{node.name}.{name}" for name in _names(inner))


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
