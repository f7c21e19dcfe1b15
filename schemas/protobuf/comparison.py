"""Compares two Protobuf schemas: can data of the original be read with the update?

Messages are compared by their full name within the file, fields by number (docs/registry-formats.md). Messages of the
file itself are compared once each; a message of another file is compared where a field has it as its type, with the
path of its own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from klamm.schemas.differences import Budget, ComparisonLimitError, Difference, path_of

from .schema import ProtobufSchema

TEMPLATES: Final[Mapping[str, str]] = {
    "PACKAGE_CHANGED": "The package at '{path}' in the %s schema does not match the package in the %s schema",
    "MESSAGE_REMOVED": "The %s schema is missing a MESSAGE type at path '{path}' in the %s schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}' in the %s schema does not match the %s schema",
    "FIELD_SCALAR_KIND_CHANGED": (
        "The kind of a SCALAR field at path '{path}' in the %s schema does not match its kind in the %s schema"
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "The type of a MESSAGE field at path '{path}' in the %s schema does not match its type in the %s schema"
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "The label for a NUMERIC field at path '{path}' in the %s schema does not match its label in the %s schema"
    ),
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}' in the %s schema is missing in the %s schema",
    "REQUIRED_FIELD_REMOVED": "The %s schema is missing a required field at path: '{path}' in the %s schema",
    "ONEOF_FIELD_REMOVED": "The %s schema is missing a oneof field at path '{path}' in the %s schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "Multiple fields in the oneof at path '{path}' in the %s schema are outside a oneof in the %s schema"
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "A field in the oneof at path '{path}' in the %s schema is outside an existing oneof in the %s schema"
    ),
}
"""The incompatible kinds with their texts (two blanks in one of them, as in Confluent's); all others are compatible."""

_FIELD: Final = FieldDescriptorProto
_KINDS: Final = {
    **dict.fromkeys(
        (_FIELD.TYPE_INT32, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT32, _FIELD.TYPE_UINT64, _FIELD.TYPE_BOOL), "varint"
    ),
    _FIELD.TYPE_ENUM: "varint",
    **dict.fromkeys((_FIELD.TYPE_SINT32, _FIELD.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES), "string"),
    **dict.fromkeys((_FIELD.TYPE_FIXED32, _FIELD.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64), "fixed64"),
    _FIELD.TYPE_FLOAT: "float",
    _FIELD.TYPE_DOUBLE: "double",
}
"""Scalar types of one kind can be read as each other."""
_Path = tuple[str, ...]
_Change = tuple[str, _Path]


def differences(original: ProtobufSchema, update: ProtobufSchema, *, budget: Budget | None = None) -> list[Difference]:
    """Returns the differences; data of `original` can be read with `update` if all of them are compatible.

    Raises `ComparisonLimitError` beyond the budget, `SchemaError` if one of the schemas was not checked before and does
    not compile.
    """
    comparison = _Comparison(original.files, update.files, budget or Budget())
    try:
        changes = list(comparison.run())
    except RecursionError:
        raise ComparisonLimitError("the schemas are too complex to be compared: nested too deeply") from None
    return [Difference(kind, path_of(*path), kind not in TEMPLATES, TEMPLATES.get(kind, "")) for kind, path in changes]


class _Types:
    """The messages of a schema and its imports by full name (with a leading dot)."""

    def __init__(self, files: FileDescriptorSet) -> None:
        self.file = files.file[-1]
        self.messages: dict[str, tuple[FileDescriptorProto, DescriptorProto]] = {}
        for file in files.file:
            self._add(file, f".{file.package}" if file.package else "", file.message_type)

    def _add(self, file: FileDescriptorProto, scope: str, messages: Sequence[DescriptorProto]) -> None:
        for message in messages:
            self.messages[f"{scope}.{message.name}"] = (file, message)
            self._add(file, f"{scope}.{message.name}", message.nested_type)

    def map_of(self, field: FieldDescriptorProto) -> tuple[FieldDescriptorProto, FieldDescriptorProto] | None:
        """Returns the fields of the key and the value if the field is a map."""
        if field.type != _FIELD.TYPE_MESSAGE:
            return None
        message = self.messages[field.type_name][1]
        return (message.field[0], message.field[1]) if message.options.map_entry else None


class _Comparison:
    def __init__(self, original: FileDescriptorSet, update: FileDescriptorSet, budget: Budget) -> None:
        self._old, self._new = _Types(original), _Types(update)
        self._budget = budget
        self._inside: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, str], list[_Change]] = {}

    def run(self) -> Iterator[_Change]:
        old, new = self._old.file, self._new.file
        if old.package != new.package:
            yield "PACKAGE_CHANGED", ()
        yield from self._types(old, new, ())

    def _types(
        self, old: FileDescriptorProto | DescriptorProto, new: FileDescriptorProto | DescriptorProto, path: _Path
    ) -> Iterator[_Change]:
        """Compares the messages and enums that two files or messages define."""
        befores, afters = _messages(old), _messages(new)
        for name in befores | afters:
            at = (*path, name)
            self._budget.spend()
            if name not in afters:
                yield "MESSAGE_REMOVED", at
            elif name not in befores:
                yield "MESSAGE_ADDED", at
            else:
                (index, before), (moved, after) = befores[name], afters[name]
                yield from self._message(before, after, at)
                if index != moved:
                    yield "MESSAGE_MOVED", at
        enums, others = _enums(old), _enums(new)
        for name in enums | others:
            if name in enums and name in others:
                yield from self._enum(enums[name], others[name], (*path, name))
            else:
                yield ("ENUM_REMOVED" if name in enums else "ENUM_ADDED"), (*path, name)

    def _enum(self, old: EnumDescriptorProto, new: EnumDescriptorProto, path: _Path) -> Iterator[_Change]:
        before, after = ({value.number: value.name for value in enum.value} for enum in (old, new))
        for number in before | after:
            self._budget.spend()
            if before.get(number) != after.get(number):
                word = "REMOVED" if number not in after else "ADDED" if number not in before else "CHANGED"
                yield f"ENUM_CONST_{word}", (*path, str(number))

    def _message(self, old: DescriptorProto, new: DescriptorProto, path: _Path) -> Iterator[_Change]:
        befores, afters = ({field.number: field for field in message.field} for message in (old, new))
        yield from _exclusive(old, new, befores, path)
        yield from _oneof_names(old, new, path)
        deleted = {
            name
            for name, members in _oneofs(old).items()
            if name not in _oneofs(new) and not any(number in afters for number in members)
        }
        for number in sorted(befores | afters):
            self._budget.spend()
            before, after = befores.get(number), afters.get(number)
            oneof = _oneof_of(new, after) if after is not None else _oneof_of(old, before)
            at = (*path, *((oneof,) if oneof else ()), str(number))
            if after is None:
                assert before is not None
                if not oneof:
                    yield ("REQUIRED_FIELD_REMOVED" if _required(before) else "FIELD_REMOVED"), at
                elif oneof not in deleted:
                    yield "ONEOF_FIELD_REMOVED", at
            elif before is None:
                required = "REQUIRED_FIELD_ADDED" if _required(after) else "FIELD_ADDED"
                yield ("ONEOF_FIELD_ADDED" if oneof else required), at
            else:
                if _oneof_of(old, before) and not oneof:
                    yield "ONEOF_FIELD_MOVED_TO_TOP_LEVEL", at
                yield from self._field(before, after, at)
        yield from self._types(old, new, path)

    def _field(self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: _Path) -> Iterator[_Change]:
        if old.name != new.name:
            yield "FIELD_NAME_CHANGED", path
        before, after = self._old.map_of(old), self._new.map_of(new)
        if before is not None and after is not None:
            for each, other in zip(before, after, strict=True):
                yield from self._type(each, other, path, labels=False)
        elif before is None and after is None:
            yield from self._type(old, new, path, labels=True)
        else:
            yield "FIELD_KIND_CHANGED", path

    def _type(
        self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: _Path, *, labels: bool
    ) -> Iterator[_Change]:
        before, after = _KINDS.get(old.type), _KINDS.get(new.type)
        if (before is None) != (after is None):
            yield "FIELD_KIND_CHANGED", path
        elif before is None:
            yield from self._message_type(old, new, path)
        elif before != after:
            yield "FIELD_SCALAR_KIND_CHANGED", path
        elif labels and old.label != new.label:
            word = "STRING_OR_BYTES" if before == "string" else "NUMERIC"
            yield f"FIELD_{word}_LABEL_CHANGED", path

    def _message_type(self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: _Path) -> Iterator[_Change]:
        """Names are compared within the package; messages of imports, which are no part of the file, by content."""
        (old_file, before), (new_file, after) = self._old.messages[old.type_name], self._new.messages[new.type_name]
        name = _local(old.type_name, old_file)
        if name != _local(new.type_name, new_file):
            yield "FIELD_NAMED_TYPE_CHANGED", path
            return
        if (old_file is self._old.file and new_file is self._new.file) or (before == after and old_file == new_file):
            return
        pair = (old.type_name, new.type_name)
        if pair in self._inside:
            return
        if pair not in self._known:
            self._inside.add(pair)
            self._known[pair] = list(self._message(before, after, tuple(name.split("."))))
            self._inside.discard(pair)
        changes = self._known[pair]
        self._budget.spend(len(changes))
        yield from changes
        if any(kind in TEMPLATES for kind, _at in changes):
            yield "FIELD_NAMED_TYPE_CHANGED", path


def _messages(scope: FileDescriptorProto | DescriptorProto) -> dict[str, tuple[int, DescriptorProto]]:
    """By name: the place among the messages, and the message."""
    messages = scope.message_type if isinstance(scope, FileDescriptorProto) else scope.nested_type
    real = (message for message in messages if not message.options.map_entry)
    return {message.name: (index, message) for index, message in enumerate(real)}


def _enums(scope: FileDescriptorProto | DescriptorProto) -> dict[str, EnumDescriptorProto]:
    return {enum.name: enum for enum in scope.enum_type}


def _local(name: str, file: FileDescriptorProto) -> str:
    return name.removeprefix(f".{file.package}." if file.package else ".")


def _required(field: FieldDescriptorProto) -> bool:
    return bool(field.label == _FIELD.LABEL_REQUIRED)


def _oneof_of(message: DescriptorProto, field: FieldDescriptorProto | None) -> str:
    """Returns the name of the field's oneof; "" for none. An `optional` field of proto3 has one in name only."""
    if field is None or not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return str(message.oneof_decl[field.oneof_index].name)


def _oneofs(message: DescriptorProto) -> dict[str, list[int]]:
    """The numbers of the members by the oneof's name."""
    found: dict[str, list[int]] = {}
    for field in message.field:
        if name := _oneof_of(message, field):
            found.setdefault(name, []).append(field.number)
    return found


def _oneof_names(old: DescriptorProto, new: DescriptorProto, path: _Path) -> Iterator[_Change]:
    befores, afters = _oneofs(old), _oneofs(new)
    for name in sorted(befores | afters):
        if name not in befores or name not in afters:
            yield ("ONEOF_REMOVED" if name in befores else "ONEOF_ADDED"), (*path, name)


def _exclusive(
    old: DescriptorProto, new: DescriptorProto, befores: Mapping[int, FieldDescriptorProto], path: _Path
) -> Iterator[_Change]:
    """Fields that excluded each other not before, and do in a oneof of the update."""
    for name, numbers in _oneofs(new).items():
        known = [befores[number] for number in numbers if number in befores]
        origins = {_oneof_of(old, field) or field.number for field in known}
        if len(origins) > 1:
            single = sum(not _oneof_of(old, field) for field in known)
            yield ("MULTIPLE_FIELDS_MOVED_TO_ONEOF" if single > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"), (*path, name)
