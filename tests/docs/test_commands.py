"""Every command, option and target of make that a page names exists. Starts no process."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from klamm.core.cli.main import LazyCommand, app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_COMMAND = re.compile(r"`klamm ((?:[a-z][\w-]*)[^`]*)`|^\s*(?:\$ )?klamm ([a-z].*)$", re.MULTILINE)
_END = re.compile(r"[|>&;#…]|\s{2,}")
_MAKE = re.compile(r"`make ([a-z][\w-]*)")
_OUTPUT = ("broker ready", "brokers ready", "zookeeper ready", "etcd ready", "hdfs ready")
"""Lines that a command prints, which begin as a command does."""


def _ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    named = {_END.split(match.group(1) or match.group(2))[0].strip() for match in _COMMAND.finditer(text)}
    unknown = [f"klamm {line}: {what}" for line in sorted(named) if (what := _unknown(line))]
    assert not unknown, f"{page.relative_to(ROOT)} names what does not exist: {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_target_of_make_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing = set(_MAKE.findall(page.read_text(encoding="utf-8"))) - targets
    assert not missing, f"{page.relative_to(ROOT)} names targets that do not exist: {sorted(missing)}"


def _unknown(line: str) -> str:
    """Returns the first word of a command line that is no command, or the first option that it does not have."""
    if line.startswith(_OUTPUT):
        return ""
    command, options, path = _command(()), _options(_command(())), ()
    words = line.split()
    for word in words:
        below = getattr(command, "commands", None) if path else ()
        if word.startswith("-") or (path and not below):
            break
        path = (*path, word)
        command = _command(path)
        if command is None:
            return word
        options |= _options(command)
    named = (word.partition("=")[0] for word in words if re.match(r"--[a-z]", word))
    return next((option for option in named if option not in options), "")


@cache
def _command(path: tuple[str, ...]) -> Any:
    if not path:
        return get_command(app)
    found = _command(path[:-1]).get_command(None, path[-1])
    return found._load() if isinstance(found, LazyCommand) else found


def _options(command: Any) -> set[str]:
    return {"--help"} | {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
