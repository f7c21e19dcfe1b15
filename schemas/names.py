"""The names that all of `schemas` shares: the types of schemas, and the topic in which schemas live by default."""

from __future__ import annotations

from typing import Final

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
SCHEMA_TOPIC: Final = "_schemas"
