"""What is wrong with a configuration, as lines: where, what, and what would be right (design D14)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from klamm.core.config.section import definitions

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` leads from the root of the document to the key."""

    path: Path
    message: str

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.path)
        return f"{where}: {self.message}" if where else self.message


def problems_of(error: ValidationError, model: type[BaseModel], at: Path = ()) -> Iterator[Problem]:
    """Pydantic's findings in our words. `at` is where the section stands in the document."""
    for found in error.errors(include_url=False):
        where, kind = found["loc"], found["type"]
        if kind == "extra_forbidden":
            known = [d.name for d in definitions(model)] if len(where) == 1 else []
            yield Problem((*at, *where), unknown("key", str(where[-1]), known))
        elif kind == "missing":
            yield Problem((*at, *where), "is required and missing")
        else:
            yield Problem((*at, *_plain(where)), _message(found))


def _plain(where: Path) -> Path:
    """Without the names of union members, which pydantic puts at the end."""
    return where[:1] if len(where) > 1 and not isinstance(where[1], int) else where


def _message(found: Any) -> str:
    got = found["input"]
    shown = f", got {got!r}" if isinstance(got, str | int | float | bool | None) else ""
    text = found["msg"]
    if found["type"] in ("value_error", "assertion_error"):
        return str(text).partition(", ")[2] or str(text)
    return text[:1].lower() + text[1:].replace("Input should be", "should be") + shown if text else shown


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown key; did you mean log.retention.hours?`"""
    near = nearest(name, known)
    return f"unknown {what}; did you mean {near}?" if near else f"unknown {what}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The most alike of the known names, "" when none is."""
    plain = {k.replace("_", ".").lower(): k for k in known}
    near = difflib.get_close_matches(name.replace("_", ".").lower(), plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else ""
