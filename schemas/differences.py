"""What changed between two versions of a schema, in the words of Confluent's Schema Registry, which clients compare;
and the limits of a comparison.

A comparison is of data written with the *original* schema and read with the *update*. The checkers are `json_schema`
and `protobuf`; `AVRO` has the texts for Avro's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from klamm.core.errors import SchemaError

MAX_STEPS: Final = 500_000
"""Pairs of subschemas and differences of one comparison."""
MAX_SECONDS: Final = 1.0
"""Of the thread's processor time: a busy machine refuses no more than an idle one."""
MAX_NAME: Final = 256
"""Characters of a name within a path; longer ones are cut, so that a message stays short."""


class CompatibilityPolicy(StrEnum):
    """LENIENT accepts optional properties that are added to an open JSON Schema, and properties that are removed."""

    STRICT = "STRICT"
    LENIENT = "LENIENT"


class ComparisonLimitError(SchemaError):
    """Two schemas cannot be compared within the limits."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is where in the schema (`#/properties/a`). `template` is its text, with `{path}`, `{info}` and two `%s`,
    the names of the schemas; it is empty for most compatible ones. `info` is Avro's additional information. `marks` are
    the marks around the type and around the text, as Confluent prints them.
    """

    type: str
    path: str
    compatible: bool
    template: str = ""
    info: str | None = None
    marks: tuple[str, str, str] = ('"', '"', '"')

    def message(self, first: str = "new", second: str = "old") -> str:
        """Returns the entry of a report: (new, old) where the update is the new schema, else (old, new)."""
        names = iter((first, second))
        part, *others = (
            part.replace("{info}", self.info or "").replace("{path}", self.path) for part in self.template.split("%s")
        )
        text = part + "".join(next(names) + other for other in others)
        of_type, opening, closing = self.marks
        more = "" if self.info is None else f", additionalInfo:'{self.info}'"
        return f"{{errorType:{of_type}{self.type}{of_type}, description:{opening}{text}{closing}{more}}}"


def path_of(*names: str) -> str:
    """Returns the path of a part of a schema: `#/a/b`."""
    return "#/" + "/".join(name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…" for name in names)


class Budget:
    """The work that one comparison may cost. Not thread-safe."""

    def __init__(
        self, steps: int = MAX_STEPS, seconds: float = MAX_SECONDS, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._steps = self._left = steps
        self._seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds

    def spend(self, steps: int = 1) -> None:
        """Raises `ComparisonLimitError` when the steps or the time are used up."""
        self._left -= steps
        if self._left < 0:
            raise ComparisonLimitError(
                f"the schemas are too complex to be compared: more than {self._steps} steps; use fewer or smaller"
                " alternatives (oneOf, anyOf, allOf, $ref)"
            )
        if self._left % 64 < steps and self._clock() > self._deadline:
            raise ComparisonLimitError(
                f"the schemas are too complex to be compared within {self._seconds:g} s of processor time"
            )


AVRO: Final[Mapping[str, str]] = {
    "FIXED_SIZE_MISMATCH": (
        "The size of FIXED type field at path '{path}' in the %s schema does not match with the %s schema"
    ),
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the %s schema does not match with the %s schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": "The %s schema is missing enum symbols '{info}' at path '{path}' in the %s schema",
    "MISSING_UNION_BRANCH": "The %s schema is missing a type inside a union field at path '{path}' in the %s schema",
    "READER_FIELD_MISSING_DEFAULT_VALUE": (
        "The field '{info}' at path '{path}' in the %s schema has no default value and is missing in the %s schema"
    ),
}


def avro_difference(kind: str, path: str, info: str) -> Difference:
    """Returns an incompatibility of two Avro schemas. `kind` is a key of `AVRO`."""
    return Difference(kind, path, False, AVRO[kind], info, ("'", "'", "'"))
