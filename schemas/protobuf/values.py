"""Protobuf messages from dicts, and dicts from messages.

A field that is not set is None if its presence is known (messages, `optional`, members of a `oneof`), else its default.
Enums are names; `bytes` are bytes; 64-bit numbers are numbers. Of the well-known types, Timestamp is a `datetime` in
UTC, Duration a `timedelta`, a wrapper its value, and Struct, Value and ListValue are their JSON values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from klamm.core.errors import SchemaError

from ..avro.logical import misfit

_GOOGLE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_GOOGLE}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON: Final = frozenset(f"{_GOOGLE}{kind}" for kind in ("Struct", "Value", "ListValue"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def fill(message: Message, value: Any) -> None:
    """Sets a message's fields from a dict, a dataclass or a message of its type. Raises `SchemaError`, which names the
    field, for what does not fit."""
    try:
        _fill(message, value, "")
    except RecursionError as error:
        raise SchemaError("it is nested too deeply") from error


def _fill(message: Message, value: Any, path: str) -> None:
    name = message.DESCRIPTOR.full_name
    if isinstance(value, Message):
        if value.DESCRIPTOR.full_name != name:
            raise misfit(path, f"expected a message {name}, got {value.DESCRIPTOR.full_name}")
        message.MergeFromString(value.SerializePartialToString())
    elif name == f"{_GOOGLE}Timestamp" and isinstance(value, datetime):
        if value.tzinfo is None:
            raise misfit(path, "expected a datetime with a time zone")
        _fill_time(message, value - _EPOCH)
    elif name == f"{_GOOGLE}Duration" and isinstance(value, timedelta):
        _fill_time(message, value)
    elif name in _WRAPPERS:
        _set(partial(setattr, message, "value"), message.DESCRIPTOR.fields_by_name["value"], value, path)
        message.SetInParent()
    elif name in _JSON:
        _fill_json(message, value, path)
    else:
        _fill_fields(message, _fields(value, path, name), path)


def _fields(value: Any, path: str, name: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise misfit(path, f"expected a dict or a message {name}, got {value!r:.100}")


def _fill_fields(message: Message, given: Mapping[str, Any], path: str) -> None:
    known = message.DESCRIPTOR.fields_by_name
    for name, item in given.items():
        at = f"{path}.{name}" if path else str(name)
        field = known.get(name)
        if field is None:
            raise misfit(at, f"{message.DESCRIPTOR.full_name} has no such field")
        if item is not None:
            _fill_field(message, field, item, at)
    for one in message.DESCRIPTOR.oneofs:
        there = [field.name for field in one.fields if given.get(field.name) is not None]
        if len(there) > 1:
            raise misfit(path or one.name, f"{' and '.join(there)} are of the oneof {one.name}: give one of them")


def _fill_field(message: Message, field: FieldDescriptor, item: Any, path: str) -> None:
    if is_map(field):
        _fill_map(getattr(message, field.name), field.message_type.fields_by_name["value"], item, path)
    elif field.is_repeated:
        if isinstance(item, str | bytes | Mapping) or not isinstance(item, Iterable):
            raise misfit(path, f"expected a list, got {item!r:.100}")
        entries = getattr(message, field.name)
        for number, one in enumerate(item):
            if field.message_type is not None:
                _fill(entries.add(), one, f"{path}[{number}]")
            else:
                _set(entries.append, field, one, f"{path}[{number}]")
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _fill(inner, item, path)
    else:
        _set(partial(setattr, message, field.name), field, item, path)


def _fill_map(entries: Any, kind: FieldDescriptor, given: Any, path: str) -> None:
    if not isinstance(given, Mapping):
        raise misfit(path, f"expected a dict, got {given!r:.100}")
    for key, one in given.items():
        at = f"{path}[{key!r}]"
        if kind.message_type is None:
            _set(partial(entries.__setitem__, key), kind, one, at)
            continue
        try:
            entry = entries[key]
        except (TypeError, ValueError, OverflowError) as error:
            raise misfit(at, " ".join(str(error).split())[:300]) from error
        _fill(entry, one, at)


def _set(put: Callable[[Any], Any], field: FieldDescriptor, item: Any, path: str) -> None:
    value = _scalar(field, item, path)
    try:
        put(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise misfit(path, " ".join(str(error).split())[:300]) from error


def _scalar(field: FieldDescriptor, item: Any, path: str) -> Any:
    if isinstance(item, bool) and field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        raise misfit(path, f"expected no boolean, got {item!r}")
    if field.enum_type is not None and isinstance(item, str):
        if item not in field.enum_type.values_by_name:
            raise misfit(path, f"{field.enum_type.full_name} has no value {item!r:.100}")
        return field.enum_type.values_by_name[item].number
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(item, bytearray | memoryview):
        return bytes(item)
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(item, str):
        raise misfit(path, f"expected bytes, got {item!r:.100}")
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(item, str):
        raise misfit(path, f"expected text, got {item!r:.100}")
    return item


def _fill_time(message: Any, passed: timedelta) -> None:
    micros = passed // _MICROSECOND
    negative = message.DESCRIPTOR.full_name == f"{_GOOGLE}Duration" and micros < 0  # both parts have its sign
    seconds, rest = divmod(-micros if negative else micros, 1_000_000)
    sign = -1 if negative else 1
    message.seconds, message.nanos = sign * seconds, sign * rest * 1000
    message.SetInParent()


def _fill_json(message: Message, value: Any, path: str) -> None:
    try:
        json_format.ParseDict(value, message)
    except (json_format.Error, TypeError, ValueError) as error:
        raise misfit(path, " ".join(str(error).split())[:300]) from error


def plain(message: Message) -> Any:
    """Returns a message as a dict, or a well-known type as the value that the module names."""
    name = message.DESCRIPTOR.full_name
    if name.startswith(_GOOGLE):
        made: Any = message
        if name in (f"{_GOOGLE}Timestamp", f"{_GOOGLE}Duration"):
            passed = timedelta(seconds=made.seconds, microseconds=made.nanos // 1000)
            return _EPOCH + passed if name.endswith("Timestamp") else passed
        if name in _WRAPPERS:
            return made.value
        if name in _JSON:
            return json_format.MessageToDict(message)
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields}


def _plain_field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        part = _part(field.message_type.fields_by_name["value"])
        return {key: part(item) for key, item in value.items()}
    part = _part(field)
    if field.is_repeated:
        return [part(item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return part(value)


def _part(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return plain
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    return lambda value: value


def is_map(field: FieldDescriptor) -> bool:
    kind: Descriptor | None = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)
