"""The YAML keys of the `avro` serde: in a topic's own section, or under `serdes.avro` for all topics."""

from __future__ import annotations

import dataclasses
from importlib import import_module

from pydantic import field_validator

from klamm.core.config.section import Section, key
from klamm.core.errors import ConfigError

from .compatibility import Compatibility

SCHEMA_TOPIC = "_schemas"


class AvroOptions(Section):
    """A topic's values as Avro."""

    compatibility: Compatibility | None = key(
        None,
        "What a new version of the schema must keep. It is stored with the subject's first version, and what is stored "
        "counts; when not set, the registry's level, BACKWARD unless it has another.",
    )
    record_class: str | None = key(None, "Values are read as this dataclass, module:Class; as dicts when not set.")
    subject: str | None = key(None, "The name under which versions are counted; TOPIC-value when not set.")
    schemas_topic: str = key(SCHEMA_TOPIC, "The topic in which schemas live; one per cluster.")

    @field_validator("record_class")
    @classmethod
    def _module_and_class(cls, value: str | None) -> str | None:
        if value is not None and not all(value.partition(":")):
            raise ValueError(f"should be module:Class, got {value!r}")
        return value

    def subject_of(self, topic: str) -> str:
        return self.subject or f"{topic}-value"

    def load_class(self, topic: str) -> type | None:
        """Returns the class; raises `ConfigError` if `record.class` does not name a dataclass."""
        if self.record_class is None:
            return None
        module, _, name = self.record_class.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"topics.{topic}.record.class: {self.record_class} cannot be loaded: {error}") from error
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise ConfigError(f"topics.{topic}.record.class: {self.record_class} is not a dataclass")
        return found
