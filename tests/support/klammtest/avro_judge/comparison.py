"""Asks Java and Klamm about a case and returns what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa

from klamm.schemas.avro.parsing import check_new, parse
from klamm.schemas.avro.resolution import refusals, resolve

from . import rules
from .cases import Case
from .java_avro import JavaAvro
from .klamm_avro import KlammAvro, Outcome, Refused, SparkTask, attempt
from .plants import Plant
from .schemas import definitions, kind_of
from .values import is_decimal
from .values_as import ColumnReading, Part, RecordReading, python_value

Json = Any


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is what was done: `records read`, …; `rule` the name of the rule by which the difference is wanted."""

    path: str
    where: str
    java: Any
    klamm: Any
    rule: str | None = None

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.path}{place}: Java {_short(self.java)}, Klamm {_short(self.klamm)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}…"


@dataclass
class Judged:
    """What became of a case; `unexplained` is empty if Klamm does as Java does, but for the rules in `rules`."""

    case: Case
    unexplained: list[Difference] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    checks: dict[str, int] = field(default_factory=dict)

    def add(self, difference: Difference, java: dict[str, Any]) -> None:
        rule = difference.rule or rules.explain(self.case, difference, java)
        if rule is None:
            self.unexplained.append(difference)
        else:
            self.rules.add(rule)

    def checked(self, path: str, times: int = 1) -> None:
        self.checks[path] = self.checks.get(path, 0) + times


def judge(java: JavaAvro, cases: Sequence[Case], plant: Plant | None = None) -> list[Judged]:
    """Judges the cases together: Java is asked twice, for the cases, and for what Klamm wrote otherwise than Java."""
    found: list[Judged] = []
    written: list[tuple[Judged, str, bytes, Json]] = []
    for case, answer in zip(cases, java.ask(case.question() for case in cases), strict=True):
        one = _OneCase(case, answer, plant)
        one.run()
        found.append(one.judged)
        written += [(one.judged, *other) for other in one.otherwise]
    answers = java.ask(judged.case.back((raw.hex(),)) for judged, _, raw, _ in written)
    for (judged, path, raw, wanted), answer in zip(written, answers, strict=True):
        read = answer["read"][0]
        difference = Difference(path, "", wanted[0], raw.hex())
        same = "stored" in read and _without_branches(read["stored"], judged.case.writer) == _without_branches(
            wanted[1], judged.case.writer
        )
        judged.add(difference if not same else Difference(*_fields(difference), rule=rules.PLAIN), answer)
    return found


def _fields(difference: Difference) -> tuple[str, str, Any, Any]:
    return difference.path, difference.where, difference.java, difference.klamm


def _without_branches(value: Json, schema: Json) -> Json:
    """The value by its numbers and texts alone; equal decimals are equal at every scale and size."""
    return _Plain(definitions(schema)).of(schema, value)


_TIMES: Final = {"time-millis": 1000, "time-micros": 1}
"""The two that a union may have beside each other."""


class _Plain:
    def __init__(self, named: dict[str, Json]) -> None:
        self._named = named

    def of(self, schema: Json, value: Json) -> Json:
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            return self.of(schema[value[0]], value[1])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self.of(kind, value)
        if kind == "record":
            return {f["name"]: self.of(f["type"], v) for f, v in zip(schema["fields"], value, strict=True)}
        if kind == "array":
            return [self.of(schema["items"], item) for item in value]
        if kind == "map":
            return {key: self.of(schema["values"], item) for key, item in value}
        if isinstance(schema, dict) and schema.get("logicalType") in _TIMES:
            return value * _TIMES[schema["logicalType"]]
        if isinstance(schema, dict) and schema.get("logicalType") == "uuid" and kind in ("string", "fixed"):
            return value.replace("-", "").lower()
        if is_decimal(schema):
            unscaled = int.from_bytes(bytes.fromhex(value), signed=True)
            return Fraction(unscaled, 10 ** schema.get("scale", 0))
        if kind in ("float", "double"):
            number = python_value(kind, value, {})
            return "nan" if number != number else number
        return value


class _OneCase:
    def __init__(self, case: Case, answer: dict[str, Any], plant: Plant | None) -> None:
        self.case = case
        self.java = answer
        self.judged = Judged(case)
        self.otherwise: list[tuple[str, bytes, Json]] = []
        """Path, bytes of Klamm, (bytes, value) of Java."""
        self._plant = plant

    def run(self) -> None:
        writer = self._parsed("writer", self.case.writer_text)
        reader = self._parsed("reader", self.case.reader_text)
        if not (writer and reader):
            return
        payloads = [bytes.fromhex(raw) for raw in self.java["bytes"] if isinstance(raw, str)]
        if len(payloads) < len(self.case.values):
            raise RuntimeError(f"{self.case.name}: Java does not write a generated value: {self.java['bytes']}")
        text = self.case.reader_text
        reader_text = text if self._plant is None else self._plant.reader(text)
        self._compatibility(reader_text)
        klamm = KlammAvro(self.case.writer_text, reader_text)
        self._records(klamm, payloads)
        self._columns(klamm, payloads)
        self._spark(klamm, payloads)

    def _differ(self, path: str, where: str, java: Any, klamm: Any, rule: str | None = None) -> None:
        self.judged.add(Difference(path, where, java, klamm, rule), self.java)

    def _parsed(self, which: str, text: str) -> bool:
        theirs = self.java.get(f"{which}_error")
        ours = attempt(lambda: check_new(text))
        self.judged.checked("schemas")
        if isinstance(ours, Refused) != (theirs is not None) or (isinstance(ours, Refused) and not ours.expected):
            self._differ("schema", which, theirs or "accepts", ours if isinstance(ours, Refused) else "accepts")
        return theirs is None and not isinstance(ours, Refused)

    def _compatibility(self, reader_text: str) -> None:
        problems = attempt(lambda: list(refusals(resolve(parse(self.case.writer_text).root, parse(reader_text).root))))
        self.judged.checked("compatibility")
        java = self.java["compatible"]
        if isinstance(problems, Refused) or java != (not problems):
            self._differ("compatibility", "", {"compatible": java, "resolves": self.java["resolves"]}, problems)

    def _records(self, klamm: KlammAvro, payloads: Sequence[bytes]) -> None:
        self._read("records read", klamm.read_records(payloads), RecordReading(definitions(self.case.reader)))
        named = definitions(self.case.writer)
        for value, foreign, raw in zip(self.case.values, self.case.foreign, payloads, strict=True):
            for path, names in (("records write", True), ("records write plain", False)):
                written = klamm.write_record(python_value(self.case.writer, value, named, names))
                self._wrote(path, written, raw, value, foreign)
        for value, raw, back, foreign in zip(
            self.case.values, payloads, klamm.read_back(payloads), self.case.foreign, strict=True
        ):
            if isinstance(back, Refused):
                self._differ("records read back", "", value, back)
            else:
                self._wrote("records write again", klamm.write_record(back), raw, value, foreign)

    def _wrote(self, path: str, written: Outcome, raw: bytes, value: Json, foreign: bool) -> None:
        if isinstance(self.case.writer, list) and self.case.writer[value[0]] == "null":
            return  # a record without a value is a tombstone
        self.judged.checked(path)
        if isinstance(written, Refused):
            if foreign and written.expected:
                self.judged.rules.add(rules.UNREADABLE)
            else:
                self._differ(path, "", value, written)
        elif written != raw:
            if foreign:
                self.judged.rules.add(rules.UNREADABLE)
            else:
                self.otherwise.append((path, written, (raw.hex(), value)))

    def _read(self, path: str, found: Iterable[Outcome], reading: RecordReading | ColumnReading) -> None:
        for theirs, ours in zip(self.java["read"], found, strict=True):
            self.judged.checked(path)
            if isinstance(ours, Refused):
                if "error" not in theirs or not ours.expected:
                    self._differ(path, "", theirs.get("value", theirs), ours)
            elif "error" in theirs:
                self._differ(path, "", theirs, ours)
            else:
                for part in self._parts(reading, theirs["value"], ours):
                    self._differ(path, part.where, part.java, part.klamm, part.rule)

    def _parts(self, reading: RecordReading | ColumnReading, java: Json, klamm: Any) -> Iterator[Part]:
        return reading.compare(self.case.reader, java, klamm)

    def _columns(self, klamm: KlammAvro, payloads: Sequence[bytes]) -> None:
        found = klamm.read_columns(payloads)
        reading = ColumnReading(definitions(self.case.reader))
        if found is None:
            self._differ("columns read", "", "reads", "no columns")
        else:
            self._read("columns read", found, reading)
        if kind_of(self.case.reader) == "record" and self.case.reader["fields"]:
            self._read("lake", klamm.read_lake(payloads), reading)
        rows = klamm.read_columns(payloads, "written")
        if rows is None:
            self._differ("columns read back", "", "reads", "no columns")
            return
        self._write_rows("columns write", rows, payloads, klamm.write_columns)

    def _write_rows(self, path: str, rows: Sequence[Outcome], payloads: Sequence[bytes], write: Any) -> None:
        """Writes rows that were read: together, and one by one if one of them is refused."""
        if not isinstance(self.case.writer, dict) or kind_of(self.case.writer) != "record":
            return  # a table's rows are records
        kept = []
        for row, value, foreign, raw in zip(rows, self.case.values, self.case.foreign, payloads, strict=True):
            if isinstance(row, Refused):
                self._differ(f"{path}: read first", "", value, row)
            else:
                kept.append((row, value, foreign, raw))
        if not kept:
            return
        together = write(_array([row for row, *_ in kept]))
        for at, (row, value, foreign, raw) in enumerate(kept):
            one = together[at] if not isinstance(together, Refused) else write(_array([row]))
            self._wrote(path, one if isinstance(one, (bytes, Refused)) else one[0], raw, value, foreign)

    def _spark(self, klamm: KlammAvro, payloads: Sequence[bytes]) -> None:
        task = klamm.spark()
        if isinstance(task, Refused):
            self._differ("spark read", "", "reads", task)
        else:
            self._read("spark read", task.read(payloads), ColumnReading(definitions(self.case.reader)))
        own = attempt(lambda: SparkTask(self.case.writer_text, self.case.writer_text))
        if isinstance(own, Refused):
            self._differ("spark write", "", "writes", own)
            return
        self._write_rows(
            "spark write", own.read(payloads), payloads, lambda rows: SparkTask.write(self.case.writer_text, rows)
        )


def _array(scalars: Sequence[pa.Scalar]) -> pa.Array:
    return pa.concat_arrays([pa.repeat(one, 1) for one in scalars])
