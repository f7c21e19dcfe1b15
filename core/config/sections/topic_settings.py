"""The section of one topic: how it is created, and how its values are serialized."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from ...interfaces.no_config import NoConfig
from ...records.partition import counted
from ..defaults import DEFAULT_ENVELOPE
from ..section import SHORT_MAX, ConfigPath, Int, Section, key
from .topic import TopicConfig

__all__ = ["MINIMUM", "TopicSettings", "check_names", "name_problem", "too_high_minimum"]

MINIMUM = "min.insync.replicas"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class TopicSettings(Section):
    """A topic. Other keys are the serde's own and are validated by its model."""

    partitions: Int | None = key(None, "Partitions at creation; the broker's num.partitions when not set.", ge=1)
    replication_factor: Int | None = key(
        None, "Replicas; the broker's default.replication.factor when not set.", ge=1, le=SHORT_MAX
    )
    config: dict[str, str] = key({}, "Topic configs, by Kafka's names.")
    serde: str | None = key(None, "The plugin that serializes values; avro if there is a schema, else raw bytes.")
    envelope: str = key(
        DEFAULT_ENVELOPE, "The format of the schema id in a value: confluent, linkedin, single-object or a plugin's."
    )
    schema_file: ConfigPath | None = Field(
        default=None, alias="schema", description="The file with the schema of the values."
    )
    options: BaseModel = Field(default_factory=NoConfig, exclude=True)

    def topic_config(self, defaults: TopicConfig | None = None) -> TopicConfig:
        return TopicConfig.from_strings(self.config, defaults)


def too_high_minimum(topic: str, configs: Mapping[str, str | None], replicas: int) -> str:
    """Returns a warning if the `min.insync.replicas` of a topic's valid configs is above its number of replicas, which
    is then the minimum; "" otherwise."""
    given = configs.get(MINIMUM)
    if given is None or TopicConfig.from_strings({MINIMUM: given}).min_insync_replicas <= replicas:
        return ""
    return f"topic {topic!r}: {MINIMUM}={given} counts as {replicas}, since it has {counted(replicas, 'replica')}"


def name_problem(name: Any) -> str:
    """Returns why a topic name is invalid (Kafka's rules), "" if it is valid."""
    if not isinstance(name, str) or not name:
        return "a topic needs a name"
    if name in (".", ".."):
        return f"{name!r} is not a valid topic name"
    if len(name) > 249:
        return f"a topic's name has at most 249 characters, not {len(name)}"
    if not _NAME.fullmatch(name):
        return f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed"
    return ""


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names. Raises `ValueError` with the first that no topic can have."""
    for name in names:
        problem = name_problem(name)
        if problem:
            raise ValueError(problem)
    return names
