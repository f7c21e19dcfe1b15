"""For envelopes that consist of fixed bytes and a key of fixed size."""

from __future__ import annotations

from klamm.plugin import SchemaError


def key_after(magic: bytes, size: int, data: bytes | memoryview, envelope: str) -> bytes:
    """Returns the key in a payload. Raises `SchemaError` if the payload is too short or begins with other bytes."""
    head = bytes(data[:size])
    if len(head) < size:
        raise SchemaError(f"payload of {len(head)} bytes is too short for the {envelope} envelope ({size} bytes)")
    if not head.startswith(magic):
        found, wanted = head[: len(magic)].hex(), magic.hex()
        raise SchemaError(f"payload does not have the {envelope} envelope: it begins with {found}, not {wanted}")
    return head[len(magic) :]
