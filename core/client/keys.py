"""The types of a record's key, and its bytes."""

from __future__ import annotations

from typing import Any

from ..errors import SchemaError


def key_bytes(topic: str, key: Any) -> bytes | None:
    """Returns a key's bytes: bytes unchanged, str as UTF-8, int as its decimal digits (as Kafka's tools show it); None
    stays None.
    """
    kind = key.__class__
    if kind is bytes:
        given: bytes = key
        return given
    if kind is str:
        text: str = key
        return text.encode()
    if key is None:
        return None
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key).encode("ascii")
    raise SchemaError(f"topic {topic}: a key is bytes, str or int, not {kind.__name__}")
