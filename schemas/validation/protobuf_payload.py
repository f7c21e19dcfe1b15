"""Checks bytes by a Protobuf schema. Fields that the schema does not have are no fault: a message is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from klamm.core.errors import SchemaError

from ..protobuf.messages import Messages
from ..protobuf.schema import parse


class ProtobufPayload:
    """Implements `klamm.schemas.validation.payload.PayloadFormat`."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        try:
            self._messages = Messages(parse(text, references, new=False))
        except (TypeError, KeyError) as error:
            raise SchemaError(f"its schema cannot be read: {str(error)[:200]}") from error

    def name(self, message: Sequence[int]) -> str | None:
        return str(self._messages.at(tuple(message)).DESCRIPTOR.full_name)

    def check(self, payload: bytes, start: int, message: Sequence[int]) -> None:
        try:
            made = self._messages.at(tuple(message)).FromString(payload[start:])
        except DecodeError as error:
            raise SchemaError(f"the payload does not fit its schema: {str(error)[:200]}") from None
        if not made.IsInitialized():
            missing = ", ".join(made.FindInitializationErrors())
            raise SchemaError(f"the payload does not fit its schema: required fields are missing: {missing[:200]}")
