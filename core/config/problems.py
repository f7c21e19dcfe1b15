"""Problems of a configuration as lines: where, what is wrong, and what would be right (design D14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a file without problems may be read for one key
    from pydantic import BaseModel, ValidationError

__all__ = ["ConfigProblem", "Path", "nearest", "problems_of", "unknown", "unknown_key", "without_repetitions"]

Path = tuple[str | int, ...]
_NOT_HERE: Mapping[str, str] = {
    "zookeeper.": "it is a key of the section coordination, with `plugin: zookeeper`",
    "transaction": "Klamm has no transactions yet",
}
"""The message for an unknown key that begins so, as in a broker's file of Kafka, unless a similar known key exists."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem. `path` leads from the root of the document to the key. `meant`: the known key that is most
    similar to an unknown one."""

    path: Path
    message: str
    meant: str = ""

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.path)
        return f"{where}: {self.message}" if where else self.message


def problems_of(
    error: ValidationError, model: type[BaseModel], given: Mapping[str, Any], at: Path = (), also: Iterable[str] = ()
) -> Iterator[ConfigProblem]:
    """Yields pydantic's errors as problems. `given` is the validated value, `at` its path in the document; `also` are
    keys that are allowed there besides those of `model`."""
    from .section import KEY_PROBLEM, MISSING, definitions

    for found in error.errors(include_url=False):
        where, kind = found["loc"], found["type"]
        if kind == "extra_forbidden":
            known = [*(d.name for d in definitions(model)), *also] if len(where) == 1 else []
            yield unknown_key((*at, *where), known)
        elif kind == "missing":
            yield ConfigProblem((*at, *where), MISSING)
        elif kind == KEY_PROBLEM:
            yield ConfigProblem((*at, *where, found["ctx"]["key"]), found["msg"])
        else:
            yield ConfigProblem((*at, *_written(where, given)), _message(found))


def _written(where: Path, given: Any) -> Path:
    """Returns the part of pydantic's path that the user wrote: pydantic adds the names of union members."""
    path: list[str | int] = []
    for part in where:
        in_map = isinstance(given, Mapping) and part in given
        in_list = isinstance(given, list) and isinstance(part, int) and part < len(given)
        if not in_map and not in_list and (path or not isinstance(part, str)):
            break
        path.append(part)
        given = given[part] if in_map or in_list else None
    return tuple(path)


def _message(found: Any) -> str:
    text = str(found["msg"])
    if found["type"] in ("value_error", "assertion_error"):
        return text.partition(", ")[2] or text
    got = found["input"]
    shown = f", got {got!r}" if isinstance(got, str | int | float | bool | list | None) else ""
    return text.replace("Input should be", "should be") + shown


def unknown_key(path: Path, known: Iterable[str]) -> ConfigProblem:
    """Returns the problem of the unknown key at `path`, where the `known` ones are allowed."""
    name = str(path[-1])
    near = nearest(name, known := [*known])
    for start, why in _NOT_HERE.items():
        if name.startswith(start) and not near.startswith(start):
            return ConfigProblem(path, f"unknown key; {why}")
    if path[0] == "broker":
        from .kafka_keys import ONLY_KAFKA_3  # as `difflib` below

        if name in ONLY_KAFKA_3:
            return ConfigProblem(path, "unknown key; Kafka 3 had it, Kafka 4 and Klamm do not: leave it out")
    return ConfigProblem(path, unknown("key", name, known), near)


def without_repetitions(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Returns the problems without "missing" for a key that was mistyped, which is a problem of its own."""
    found = [*problems]
    meant = {(*problem.path[:-1], problem.meant) for problem in found if problem.meant}
    from .section import MISSING

    return [problem for problem in found if problem.message != MISSING or problem.path not in meant]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Returns a message such as `unknown key; did you mean log.retention.hours?`"""
    near = nearest(name, known)
    return f"unknown {what}; did you mean {near}?" if near else f"unknown {what}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the most similar known name, "" if none is similar."""
    normalized = {k.replace("_", ".").lower(): k for k in known}
    import difflib  # a broker without mistakes in its configuration does not need it

    near = difflib.get_close_matches(name.replace("_", ".").lower(), normalized, n=1, cutoff=0.6)
    return normalized[near[0]] if near else ""
