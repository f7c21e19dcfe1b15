"""Checks bytes by a Protobuf schema. Fields that the schema does not have are no fault: a message is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from klamm.core.errors import SchemaError

from ..protobuf.schema import parse

__all__ = ["ProtobufPayload"]


class ProtobufPayload:
    """Implements `klamm.schemas.validation.payload.PayloadFormat`."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        files = parse(text, references, new=False).files.file
        pool = DescriptorPool()
        try:
            for file in files:
                pool.Add(file)
            self._file = pool.FindFileByName(files[-1].name)
        except (TypeError, KeyError) as error:
            raise SchemaError(f"its schema cannot be read: {str(error)[:200]}") from error
        self._nested = files[-1]
        self._classes: dict[tuple[int, ...], Any] = {}

    def name(self, message: Sequence[int]) -> str | None:
        return str(self._class(message).DESCRIPTOR.full_name)

    def check(self, payload: bytes, start: int, message: Sequence[int]) -> None:
        try:
            made = self._class(message).FromString(payload[start:])
        except DecodeError as error:
            raise SchemaError(f"the payload does not fit its schema: {str(error)[:200]}") from None
        if not made.IsInitialized():
            missing = ", ".join(made.FindInitializationErrors())
            raise SchemaError(f"the payload does not fit its schema: required fields are missing: {missing[:200]}")

    def _class(self, message: Sequence[int]) -> Any:
        """Returns the class of the message at these indexes, each that of a message within the one before."""
        wanted = tuple(message)
        if wanted not in self._classes:
            within, found = self._nested.message_type, None
            for index in wanted:
                if not 0 <= index < len(within):
                    raise SchemaError(f"its schema has no message {list(wanted)}")
                name = within[index].name
                found = self._file.message_types_by_name[name] if found is None else found.nested_types_by_name[name]
                within = within[index].nested_type
            self._classes[wanted] = GetMessageClass(found)
        return self._classes[wanted]
