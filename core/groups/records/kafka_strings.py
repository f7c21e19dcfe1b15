"""Strings and bytes in the records of `__consumer_offsets`, in the versions that Klamm writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import BrokerError, CorruptRecordError, ErrorCode, ProtocolError
from ...protocol import primitives

LONGEST_STRING: Final = 32_767


def string(text: str | None, *, flexible: bool = False) -> bytes:
    """Returns an encoded string or null. Raises `BrokerError` INVALID_REQUEST for a text that is too long."""
    if text is not None and not flexible and (size := len(text.encode())) > LONGEST_STRING:
        raise BrokerError(
            ErrorCode.invalid_request,
            f"{text[:20]!r}… has {size} bytes: a record of a group may have {LONGEST_STRING}",
        )
    return primitives.string(text, flexible)


def blob(raw: bytes) -> bytes:
    return primitives.INT32.pack(len(raw)) + raw


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translates errors of decoding to `CorruptRecordError`."""
    try:
        yield
    except ProtocolError as error:
        raise CorruptRecordError(f"the {what} record cannot be read: {error}") from error
