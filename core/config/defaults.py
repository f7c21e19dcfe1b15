"""The plugins that apply if a file names none. Only their names: the core imports no plugin."""

from __future__ import annotations

from typing import Final

DEFAULT_COORDINATION: Final = "zookeeper"
DEFAULT_OFFSET_STORE: Final = "coordination"
DEFAULT_ENVELOPE: Final = "confluent"
DEFAULT_SERDE: Final = "avro"
"""The serde of a topic with a schema; without one, values are raw bytes."""
SCHEMA_VALIDATOR: Final = "schemas"
"""The topic validator that a topic's configuration alone turns on."""
