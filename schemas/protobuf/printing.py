"""Prints a file descriptor as a `.proto` text: comments are dropped, type names written in full, with a leading dot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from google.protobuf.message import Message
from google.protobuf.text_encoding import CEscape

_MAX_FIELD: Final = 2**29
_MAX_ENUM: Final = 2**31 - 1
_DESCRIPTOR: Final = "google/protobuf/descriptor.proto"
_FIELD: Final = FieldDescriptorProto
_LABELS: Final = {
    _FIELD.LABEL_OPTIONAL: "optional ",
    _FIELD.LABEL_REQUIRED: "required ",
    _FIELD.LABEL_REPEATED: "repeated ",
}
_INDENT: Final = "  "
_Lines = Iterator[str]


def print_file(files: FileDescriptorSet, *, normalize: bool = False, extensions: bool = True) -> str:
    """Returns the text of the last of `files`; the others are its imports. `normalize`: fields by number, imports and
    options sorted. Without `extensions`: no custom options, no `extend`.
    """
    return _Printer(files, normalize, extensions).text()


def scalar_name(field: FieldDescriptorProto) -> str:
    """Returns the keyword of a scalar type; the full name of a message or an enum."""
    return str(field.type_name or _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower())


class _Printer:
    def __init__(self, files: FileDescriptorSet, normalize: bool, extensions: bool) -> None:
        self._file = files.file[-1]
        self._normalize = normalize
        self._extensions = extensions
        self._edition = self._file.syntax == "editions"
        self._proto3 = self._file.syntax == "proto3"
        self._pool = None
        if any(file.name == _DESCRIPTOR for file in files.file):  # custom options: their types are in the pool
            self._pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                self._pool.AddSerializedFile(file.SerializeToString())
        self._packages = {
            ".".join(parts[:size])
            for file in files.file
            for parts in (file.package.split("."),)
            for size in range(1, len(parts) + 1)
        }

    def text(self) -> str:
        options = self._option_lines(self._file.options, ())
        sections = (self._head(), self._imports(), options, self._types(), self._services())
        return "\n".join(text for section in sections if (text := "".join(f"{line}\n" for line in section)))

    def _head(self) -> _Lines:
        if self._edition:
            yield f'edition = "{Edition.Name(self._file.edition).removeprefix("EDITION_")}";'
        else:
            yield f'syntax = "{self._file.syntax or "proto2"}";'
        if self._file.package:
            yield f"package {self._file.package};"

    def _imports(self) -> _Lines:
        file = self._file
        kinds = dict.fromkeys(file.public_dependency, "public ")
        kinds |= dict.fromkeys(file.weak_dependency, "weak ")
        lines = [f'import {kinds.get(at, "")}"{CEscape(name, True)}";' for at, name in enumerate(file.dependency)]
        lines += [f'import option "{CEscape(name, True)}";' for name in file.option_dependency]
        yield from sorted(set(lines)) if self._normalize else lines

    def _types(self) -> _Lines:
        file = self._file
        groups = {field.type_name for field in file.extension if field.type == _FIELD.TYPE_GROUP}
        for message in file.message_type:
            if f".{_joined(file.package, message.name)}" not in groups:
                yield from self._message(message, (message.name,))
        for enum in file.enum_type:
            yield from self._enum(enum, (enum.name,))
        yield from self._extends(file.extension, file.message_type, ())

    def _message(self, message: DescriptorProto, path: Sequence[str], opening: str = "") -> _Lines:
        """`opening` replaces `message Name`: a group's field."""
        yield f"{opening or f'{_visibility(message)}message {message.name}'} {{"
        yield from map(_indented, self._message_parts(message, path))
        yield "}"

    def _message_parts(self, message: DescriptorProto, path: Sequence[str]) -> _Lines:
        yield from self._option_lines(message.options, path)
        yield from self._reserved(message, [_fields(each) for each in message.reserved_range])
        yield from self._fields(message, path)
        full = f".{_joined(self._file.package, *path)}"
        hidden = {field.type_name for field in (*message.field, *message.extension) if field.type == _FIELD.TYPE_GROUP}
        for nested in message.nested_type:
            if not nested.options.map_entry and f"{full}.{nested.name}" not in hidden:
                yield from self._message(nested, (*path, nested.name))
        for enum in message.enum_type:
            yield from self._enum(enum, (*path, enum.name))
        for each in message.extension_range:
            yield f"extensions {_fields(each)}{_bracketed(self._options(each.options, path))};"
        yield from self._extends(message.extension, message.nested_type, path)

    def _fields(self, message: DescriptorProto, path: Sequence[str]) -> _Lines:
        fields = sorted(message.field, key=lambda field: field.number) if self._normalize else list(message.field)
        printed: set[int] = set()
        for field in fields:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._field(field, message.nested_type, path)
            elif field.oneof_index not in printed:
                printed.add(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                yield f"oneof {oneof.name} {{"
                yield from map(_indented, self._option_lines(oneof.options, path))
                for member in fields:
                    if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                        yield from map(_indented, self._field(member, message.nested_type, path, label=""))
                yield "}"

    def _field(
        self,
        field: FieldDescriptorProto,
        nested: Sequence[DescriptorProto],
        path: Sequence[str],
        label: str | None = None,
    ) -> _Lines:
        end = f" = {field.number}{_bracketed(self._field_options(field, path))}"
        if label is None:
            label = self._label(field)
        inner = next((each for each in nested if field.type_name.rpartition(".")[2] == each.name), None)
        if inner is not None and inner.options.map_entry and field.type == _FIELD.TYPE_MESSAGE:
            key, value = inner.field
            yield f"map<{scalar_name(key)}, {scalar_name(value)}> {field.name}{end};"
        elif inner is not None and field.type == _FIELD.TYPE_GROUP:
            yield from self._message(inner, (*path, inner.name), f"{label}group {inner.name}{end}")
        else:
            yield f"{label}{scalar_name(field)} {field.name}{end};"

    def _label(self, field: FieldDescriptorProto) -> str:
        implicit = (
            field.label == _FIELD.LABEL_OPTIONAL and (self._proto3 or self._edition) and not field.proto3_optional
        )
        return "" if implicit else _LABELS[field.label]

    def _field_options(self, field: FieldDescriptorProto, path: Sequence[str]) -> Iterator[str]:
        if field.HasField("default_value"):
            yield f"default = {_default(field)}"
        if field.HasField("json_name") and field.json_name != _json_name(field.name) and not field.extendee:
            yield f"json_name = {_quoted(field.json_name)}"
        yield from self._options(field.options, path)

    def _enum(self, enum: EnumDescriptorProto, path: Sequence[str]) -> _Lines:
        yield f"{_visibility(enum)}enum {enum.name} {{"
        yield from map(_indented, self._enum_parts(enum, path))
        yield "}"

    def _enum_parts(self, enum: EnumDescriptorProto, path: Sequence[str]) -> _Lines:
        yield from self._option_lines(enum.options, path)
        yield from self._reserved(enum, [_range(each.start, each.end, _MAX_ENUM) for each in enum.reserved_range])
        for value in enum.value:
            yield f"{value.name} = {value.number}{_bracketed(self._options(value.options, path))};"

    def _reserved(self, described: DescriptorProto | EnumDescriptorProto, ranges: list[str]) -> _Lines:
        names = [_quoted(name) if not self._edition else name for name in described.reserved_name]
        yield from (f"reserved {', '.join(each)};" for each in (ranges, names) if each)

    def _extends(
        self, fields: Sequence[FieldDescriptorProto], nested: Sequence[DescriptorProto], path: Sequence[str]
    ) -> _Lines:
        if not self._extensions:
            return
        for extendee in dict.fromkeys(field.extendee for field in fields):
            yield f"extend {extendee} {{"
            for field in fields:
                if field.extendee == extendee:
                    yield from map(_indented, self._field(field, nested, path))
            yield "}"

    def _services(self) -> _Lines:
        for service in self._file.service:
            yield f"service {service.name} {{"
            yield from map(_indented, self._option_lines(service.options, (service.name,)))
            for method in service.method:
                yield from map(_indented, self._method(method, (service.name, method.name)))
            yield "}"

    def _method(self, method: MethodDescriptorProto, path: Sequence[str]) -> _Lines:
        of = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        to = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        lines = list(self._option_lines(method.options, path))
        yield f"rpc {method.name} ({of}) returns ({to}){' {' if lines else ';'}"
        yield from map(_indented, lines)
        if lines:
            yield "}"

    def _option_lines(self, options: Message, path: Sequence[str]) -> _Lines:
        yield from (f"option {each};" for each in self._options(options, path))

    def _options(self, options: Message, path: Sequence[str]) -> list[str]:
        """Returns `name = value` for each option."""
        if not options.ByteSize():
            return []
        if self._pool is not None:
            made = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name))()
            made.ParseFromString(options.SerializeToString())
            options = made
        found = [line for field, value in options.ListFields() for line in self._option(field, value, "", path)]
        return sorted(found) if self._normalize else found

    def _option(self, field: FieldDescriptor, value: Any, prefix: str, path: Sequence[str]) -> Iterator[str]:
        if field.is_extension and not self._extensions:
            return
        name = prefix + (f"({self._option_name(field.full_name, path)})" if field.is_extension else field.name)
        if field.name == "features" and not field.is_extension:  # editions: each feature is an option of its own
            for inner, part in value.ListFields():
                yield from self._option(inner, part, f"{name}.", path)
        elif field.name == "map_entry" and not field.is_extension:
            return
        else:
            for each in value if field.is_repeated else (value,):
                yield f"{name} = {_value(field, each)}"

    def _option_name(self, name: str, path: Sequence[str]) -> str:
        """Without a leading dot, as Confluent's clients expect it, unless a scope within has the first part."""
        first = name.partition(".")[0]
        package = self._file.package.split(".") if self._file.package else []
        scopes = (".".join((*package, *path)[:size]) for size in range(1, len(package) + len(path) + 1))
        hidden = any(f"{scope}.{first}" in self._packages for scope in scopes) or first in path
        return f".{name}" if hidden else name


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _indented(line: str) -> str:
    return _INDENT + line


def _quoted(text: str) -> str:
    return f'"{CEscape(text, True)}"'


def _visibility(described: Any) -> str:
    return ("", "local ", "export ")[described.visibility]


def _range(first: int, last: int, maximum: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= maximum else last}"


def _fields(part: Any) -> str:
    """Returns a range of field numbers, whose descriptor has the number after its last."""
    return _range(part.start, part.end - 1, _MAX_FIELD - 1)


def _bracketed(options: Iterable[str]) -> str:
    text = ", ".join(options)
    return f" [{text}]" if text else ""


def _json_name(name: str) -> str:
    """The name that protoc gives a field in JSON: the letter after each `_` is a capital."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def _default(field: FieldDescriptorProto) -> str:
    if field.type == _FIELD.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == _FIELD.TYPE_BYTES:  # escaped already
        return f'"{field.default_value}"'
    return str(field.default_value)


_PRINTERS: Final[dict[int, Callable[[Any], str]]] = {
    FieldDescriptor.CPPTYPE_STRING: lambda value: f'"{CEscape(value, isinstance(value, str))}"',
    FieldDescriptor.CPPTYPE_BOOL: lambda value: str(value).lower(),
    FieldDescriptor.CPPTYPE_FLOAT: lambda value: _float(value),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda value: _float(value),
}


def _value(field: FieldDescriptor, value: Any) -> str:
    if field.message_type is not None:
        inner = text_format.MessageToString(value, as_utf8=True, as_one_line=True, print_unknown_fields=False)
        return f"{{ {inner} }}" if inner else "{ }"
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value if named is None else named.name)
    return _PRINTERS.get(field.cpp_type, str)(value)


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else "nan" if math.isnan(value) else "-inf" if value < 0 else "inf"
