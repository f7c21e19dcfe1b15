"""JSON Schema in the registry: `parse` checks a text, `differences` compares two schemas. No I/O: references are passed
in, `$ref` is never retrieved, and no regular expression of a schema is run by an engine that can backtrack.

Needs the packages of the extra `registry`.
"""

from __future__ import annotations

from .comparison import differences
from .schema import JsonSchema, parse

__all__ = ["JsonSchema", "differences", "parse"]
