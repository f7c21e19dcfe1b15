"""Makes a case that fails smaller, as long as it fails on the same path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from .cases import Case
from .schemas import closed, definitions

Json = Any
Fails = Callable[[Case], bool]
TRIES = 150


def shrink(case: Case, fails: Fails) -> Case:
    """Returns the smallest case found. `fails` says whether a case fails as the first did."""
    tries = 0
    smaller = True
    while smaller and tries < TRIES:
        smaller = False
        for candidate in _smaller(case):
            tries += 1
            if tries >= TRIES:
                break
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    if len(case.values) > 1:
        for value, foreign in zip(case.values, case.foreign, strict=True):
            yield case.with_schemas(case.writer, case.reader, (value,), (foreign,))
    if not _has_fields(case.writer):
        return
    known = definitions(case.writer)
    for number, field in enumerate(case.writer["fields"]):
        writer = _without(case.writer, [number])
        gone = [i for i, f in enumerate(_fields(case.reader)) if field["name"] in (f["name"], *f.get("aliases", ()))]
        reader = _without(case.reader, gone) if _has_fields(case.reader) else case.reader
        values = tuple([item for i, item in enumerate(value) if i != number] for value in case.values)
        yield case.with_schemas(
            closed(writer, known), closed(reader, known | definitions(case.reader)), values, case.foreign
        )  # fmt: skip
    names = {field["name"] for field in case.writer["fields"]}
    for number, field in enumerate(_fields(case.reader)):
        if field["name"] not in names:
            reader = closed(_without(case.reader, [number]), known | definitions(case.reader))
            yield case.with_schemas(case.writer, reader, case.values, case.foreign)


def _has_fields(schema: Json) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record" and isinstance(schema.get("fields"), list)


def _fields(schema: Json) -> list[Json]:
    return schema["fields"] if _has_fields(schema) else []


def _without(schema: Json, numbers: list[int]) -> Json:
    made = json.loads(json.dumps(schema))
    made["fields"] = [field for number, field in enumerate(made["fields"]) if number not in numbers]
    return made
