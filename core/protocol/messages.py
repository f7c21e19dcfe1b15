"""Message schemas: the one place that touches kio (design D1).

A `Schema` is one API's request or response at one version. It is imported on first use, decodes with one error
(`ProtocolError`) and builds messages from keyword arguments, leaving out the fields that the version lacks, so that a
handler is written once for all versions. `Entity` is a message, or a struct in one, of any API and version: what is
built has that type. What was read is `Any`, since its fields differ from version to version.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Hashable
from dataclasses import MISSING, Field, fields
from functools import cache
from types import ModuleType
from typing import Any, cast, get_args, get_origin

from kio.index import (
    load_entity_module,
    load_entity_schema,
    load_payload_module,
    load_request_schema,
    load_response_schema,
)
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType
from kio.static.protocol import Entity

from ..errors import ProtocolError
from . import api_versions
from .apis import ApiKey
from .bounds_check import check_bounds, inner

__all__ = ["Buffer", "Entity", "ErrorCode", "Schema", "data", "request", "response"]

Buffer = bytes | bytearray | memoryview

_DECODE_ERRORS = (SerialError, ValueError, KeyError, IndexError, OverflowError, TypeError, OSError)


class Schema:
    """One message type: `decode` bytes, `build` values, `encode` bytes."""

    def __init__(self, root: type[Any], module: ModuleType) -> None:
        self.root = root
        self.module = module
        self.name = f"{root.__name__} v{root.__version__}"
        self.flexible: bool = root.__flexible__
        header = getattr(root, "__header_schema__", None)  # data that lies within a message has no header of its own
        self.header_flexible: bool = header is not None and header.__flexible__
        self._read: Callable[..., Any] = entity_reader(root)
        self._write: Callable[..., None] = entity_writer(root)

    def decode(self, data: Buffer, offset: int = 0, *, whole: bool = True) -> Any:
        """Returns the message in `data[offset:]`; unknown tagged fields are skipped (KIP-482).

        Raises `ProtocolError` if it cannot be read, holds too many elements, or (unless `whole` is false) bytes are
        left over. The bounds of each message are checked first: kio reserves memory for as many elements as an array
        claims, and a claim that is too large ends the process.
        """
        view = memoryview(data).toreadonly()  # kio refuses data that could change while it reads
        found = check_bounds(self.root, view, offset)
        if found.cuts:
            view, offset = memoryview(found.remains(offset)), 0
        try:
            message, size = self._read(view, offset)
        except _DECODE_ERRORS as error:
            raise ProtocolError(f"cannot read {self.name}: {error}") from error
        if whole and offset + size != len(view):
            raise ProtocolError(f"{len(view) - offset - size} bytes left over after {self.name}")
        return message

    def encode(self, message: Entity) -> bytes:
        buffer = io.BytesIO()
        try:
            self._write(buffer, message)
        except (SerialError, ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise ProtocolError(f"cannot write {self.name}: {error}") from error
        return buffer.getvalue()

    def build(self, **values: object) -> Entity:
        """Returns the root message; names that this version lacks are left out."""
        return _construct(self.root, values)

    def message(self, **values: object) -> Entity:
        """Returns the root message as `build` does; lists are arrays, and dicts the structs in them."""
        message: Entity = _nested(self.root, values)
        return message

    def part(self, type_name: str, **values: object) -> Entity:
        """Returns a nested struct of the message by its class name in Kafka's definition, e.g. `PartitionData`."""
        return _construct(getattr(self.module, type_name), values)


@cache
def _fields(cls: Hashable) -> tuple[Field[Any], ...]:
    return fields(cast("type[Any]", cls))


def _construct(cls: type[Any], values: dict[str, object]) -> Entity:
    message: Entity = cls(
        **{f.name: values[f.name] for f in _fields(cast(Hashable, cls)) if f.name in values or f.default is MISSING}
    )
    return message


def _nested(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_nested(kind, each) for each in value])
    if isinstance(value, dict):
        kinds = _structs(kind)
        return _construct(kind, {name: _nested(kinds[name], each) for name, each in value.items() if name in kinds})
    return value


@cache
def _structs(cls: Hashable) -> dict[str, type[Any]]:
    """Returns the names of a struct's fields, and the struct that each contains or is an array of."""
    kinds = {f.name: inner(f.type) for f in _fields(cls)}
    return {name: inner(get_args(kind)[0]) if get_origin(kind) is tuple else kind for name, kind in kinds.items()}


@cache
def request(api: ApiKey, version: int) -> Schema:
    if api is ApiKey.API_VERSIONS and version == api_versions.VERSION:
        return Schema(api_versions.ApiVersionsRequest, load_payload_module(api, version - 1, EntityType.request))
    return Schema(load_request_schema(api, version), load_payload_module(api, version, EntityType.request))


@cache
def response(api: ApiKey, version: int) -> Schema:
    if api is ApiKey.API_VERSIONS:
        version = min(version, api_versions.VERSION - 1)
    return Schema(load_response_schema(api, version), load_payload_module(api, version, EntityType.response))


@cache
def data(name: str, version: int) -> Schema:
    """Returns the schema of data within other messages, such as a consumer's subscription; by its snake-case name."""
    root = load_entity_schema(name, version, EntityType.data)
    return Schema(root, load_entity_module(name, version, EntityType.data))
