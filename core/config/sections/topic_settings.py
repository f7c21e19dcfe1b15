"""What YAML says of one topic: how it is created, and how its values are written."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, Field

from ...interfaces.no_config import NoConfig
from ..section import ConfigPath, Int, Section, key
from .topic import TopicConfig

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class TopicSettings(Section):
    """A topic. Keys that are not here are the serde's own, validated by its model."""

    partitions: Int | None = key(None, "Partitions at creation; the broker's num.partitions when not set.", ge=1)
    replication_factor: Int | None = key(None, "Replicas; the broker's default.replication.factor when not set.", ge=1)
    config: dict[str, str] = key({}, "Topic configs, by Kafka's names.")
    serde: str | None = key(None, "How values are written, a plugin's name; avro with a schema, else raw bytes.")
    envelope: str = key("confluent", "How a value names its schema: confluent, linkedin, single-object or a plugin's.")
    schema_file: ConfigPath | None = Field(
        default=None, alias="schema", description="The file of the schema that values are written with."
    )
    options: BaseModel = Field(default_factory=NoConfig, exclude=True)

    def topic_config(self, defaults: TopicConfig | None = None) -> TopicConfig:
        return TopicConfig.from_strings(self.config, defaults)


def name_problem(name: Any) -> str:
    """Why a topic cannot be called so (Kafka's rule), "" when it can."""
    if not isinstance(name, str) or not name:
        return "a topic needs a name"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > 249:
        return f"a topic's name has at most 249 characters, not {len(name)}"
    if not _NAME.fullmatch(name):
        return f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed"
    return ""
