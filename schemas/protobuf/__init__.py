"""Protobuf in the registry: `parse` checks a text, `differences` compares two schemas.

A `.proto` text is compiled by protoc in a process of its own (`compiler`), in a folder that has only the text, its
references and the well-known imports. Needs the packages of the extra `registry`.
"""

from __future__ import annotations

from .comparison import differences
from .schema import ProtobufSchema, parse

__all__ = ["ProtobufSchema", "differences", "parse"]
