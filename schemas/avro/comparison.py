"""How two Avro schemas differ, as `SchemaCompatibility` of Java's Avro 1.12 reports it: clients and test suites compare
these texts. What Klamm's readers refuse beyond it (a decimal of another scale) is a difference too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from ..differences import Difference, avro_difference
from .model import MISSING, NAMED, AvroField, AvroType
from .resolution import PROMOTIONS, refusals, resolve

MAX_SHOWN: Final = 1000
"""The most differences of two types that are returned: records within records repeat theirs any number of times."""


def differences(writer: AvroType, reader: AvroType) -> list[Difference]:
    """Returns why data of `writer` cannot be read with `reader`; nothing if it can."""
    return _Checker().between(writer, reader, ()) or [
        avro_difference("TYPE_MISMATCH", "/", problem) for problem in refusals(resolve(writer, reader))
    ]


class _Checker:
    """A path is the JSON pointer's parts in the reader's schema. A branch of a union that is tried alone begins a path
    of its own, and a pair of types that is met again has the differences, and the paths, of the first time, as in Java.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], list[Difference]] = {}

    def between(self, writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> list[Difference]:
        pair = (id(writer), id(reader))
        if pair not in self._found:
            self._found[pair] = []  # it counts as compatible while it is being compared
            self._found[pair] = list(islice(self._between(writer, reader, path), MAX_SHOWN))
        return self._found[pair]

    def _compatible(self, writer: AvroType, reader: AvroType) -> bool:
        return not self.between(writer, reader, ())

    def _between(self, writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> Iterator[Difference]:
        if writer.kind == "union":
            if reader.kind == "union":
                for index, branch in enumerate(writer.branches):
                    if not self._compatible(branch, reader):
                        yield _lacking(branch, (*path, str(index)))
            else:
                for branch in writer.branches:
                    yield from self.between(branch, reader, ())
        elif reader.kind == "union":
            if not any(self._compatible(writer, branch) for branch in reader.branches):
                yield _lacking(writer, path)
        elif reader.kind != writer.kind:
            if (writer.kind, reader.kind) not in PROMOTIONS:
                info = f"reader type: {_kind(reader)} not compatible with writer type: {_kind(writer)}"
                yield _difference("TYPE_MISMATCH", path, info)
        elif reader.kind in ("array", "map"):
            part = "items" if reader.kind == "array" else "values"
            yield from self.between(writer.inner, reader.inner, (*path, part))
        elif reader.kind in NAMED:
            yield from self._named(writer, reader, path)

    def _named(self, writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> Iterator[Difference]:
        if writer.short_name != reader.short_name and writer.name not in reader.aliases:
            yield _difference("NAME_MISMATCH", (*path, "name"), f"expected: {writer.name}")
        if reader.kind == "fixed" and writer.size != reader.size:
            yield _difference("FIXED_SIZE_MISMATCH", (*path, "size"), f"expected: {writer.size}, found: {reader.size}")
        elif reader.kind == "enum":
            missing = sorted(set(writer.symbols) - set(reader.symbols))
            if missing and reader.default is None:
                yield _difference("MISSING_ENUM_SYMBOLS", (*path, "symbols"), f"[{', '.join(missing)}]")
        elif reader.kind == "record":
            for index, field in enumerate(reader.fields):
                at = (*path, "fields", str(index))
                source = _source(writer, field)
                if source is not None:
                    yield from self.between(source.type, field.type, (*at, "type"))
                elif field.default is MISSING:
                    yield _difference("READER_FIELD_MISSING_DEFAULT_VALUE", at, field.name)


def _source(writer: AvroType, field: AvroField) -> AvroField | None:
    names = {field.name, *field.aliases}
    return next((one for one in writer.fields if one.name == field.name), None) or next(
        (one for one in writer.fields if one.name in names), None
    )


def _lacking(writer: AvroType, path: tuple[str, ...]) -> Difference:
    return _difference("MISSING_UNION_BRANCH", path, f"reader union lacking writer type: {_kind(writer)}")


def _kind(avro: AvroType) -> str:
    return avro.kind.upper()


def _difference(kind: str, path: tuple[str, ...], info: str) -> Difference:
    return avro_difference(kind, "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path), info)
