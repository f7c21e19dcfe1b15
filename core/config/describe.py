"""Configuration as DescribeConfigs shows it: each value with its type, its source and where else it could come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from klamm.core.config.broker import BrokerConfig
from klamm.core.config.section import ConfigType, definitions, to_string, values
from klamm.core.config.topic import BROKER_SYNONYMS, TOPIC_DEFINITIONS


class ConfigSource(IntEnum):
    """Where a value comes from (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config. `synonyms` begins with the one in force."""

    name: str
    value: str
    type: ConfigType
    source: ConfigSource
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]


def describe_topic(configs: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every config of a topic; `configs` are those that the topic sets itself."""
    entries = []
    for name, definition in TOPIC_DEFINITIONS.items():
        synonyms = [Synonym(name, configs[name], ConfigSource.TOPIC)] if name in configs else []
        broker_key, value = broker.topic_default(name)
        if any(broker.is_set(candidate) for candidate, _ in BROKER_SYNONYMS[name]):
            synonyms.append(Synonym(broker_key, to_string(value), ConfigSource.STATIC_BROKER))
        synonyms.append(Synonym(name, to_string(definition.default), ConfigSource.DEFAULT))
        top = synonyms[0]
        entries.append(
            ConfigEntry(name, top.value, definition.type, top.source, definition.doc, False, tuple(synonyms))
        )
    return entries


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Every config of a broker; all are read-only: they are the file's."""
    entries, current = [], values(broker)
    for definition in definitions(BrokerConfig):
        default = Synonym(definition.name, to_string(definition.default), ConfigSource.DEFAULT)
        if broker.is_set(definition.name):
            top = Synonym(definition.name, current[definition.name], ConfigSource.STATIC_BROKER)
            synonyms: tuple[Synonym, ...] = (top, default)
        else:
            synonyms = (Synonym(definition.name, current[definition.name], ConfigSource.DEFAULT),)
        entries.append(
            ConfigEntry(
                definition.name, synonyms[0].value, definition.type, synonyms[0].source, definition.doc, True, synonyms
            )
        )
    return entries
