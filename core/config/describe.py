"""Configuration in the form of DescribeConfigs: each value with its type, its source and its synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .dynamic import DEFINITIONS, DYNAMIC_KEYS
from .section import ConfigKey, ConfigType, definitions, to_string, values
from .sections.broker import BrokerConfig
from .sections.topic import BROKER_SYNONYMS, TOPIC_DEFINITIONS


class ConfigSource(IntEnum):
    """The source of a value (KIP-226, KIP-412)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One configuration key. `synonyms` are in the order of precedence; the first one gives the value."""

    name: str
    value: str
    type: ConfigType
    source: ConfigSource
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]


def describe_topic(
    configs: Mapping[str, str],
    broker: BrokerConfig,
    for_all: Mapping[str, str] | None = None,
    for_this: Mapping[str, str] | None = None,
) -> list[ConfigDescription]:
    """Returns every configuration key of a topic. `configs` are those that the topic sets itself; `broker` is the
    configuration in force, with the dynamic values `for_all` brokers and `for_this` one in it."""

    def source(broker_key: str) -> ConfigSource:
        if broker_key in (for_this or {}):
            return ConfigSource.DYNAMIC_BROKER
        return ConfigSource.DYNAMIC_DEFAULT_BROKER if broker_key in (for_all or {}) else ConfigSource.STATIC_BROKER

    entries = []
    for name, definition in TOPIC_DEFINITIONS.items():
        synonyms = [Synonym(name, configs[name], ConfigSource.TOPIC)] if name in configs else []
        if any(broker.is_set(candidate) for candidate, _ in BROKER_SYNONYMS.get(name, ())):
            broker_key, value = broker.topic_default(name)
            synonyms.append(Synonym(broker_key, to_string(value), source(broker_key)))
        synonyms.append(Synonym(name, to_string(definition.default), ConfigSource.DEFAULT))
        top = synonyms[0]
        entries.append(
            ConfigDescription(name, top.value, definition.type, top.source, definition.doc, False, tuple(synonyms))
        )
    return entries


def describe_broker(
    broker: BrokerConfig, for_all: Mapping[str, str] | None = None, for_this: Mapping[str, str] | None = None
) -> list[ConfigDescription]:
    """Returns every configuration key of a broker: the values of its file, overridden by the dynamic values for all
    brokers, then by those for this one. A key that needs a restart is read-only."""
    layers = ((for_this or {}, ConfigSource.DYNAMIC_BROKER), (for_all or {}, ConfigSource.DYNAMIC_DEFAULT_BROKER))
    entries, current = [], values(broker)
    for definition in definitions(BrokerConfig):
        name = definition.name
        synonyms = [Synonym(name, layer[name], source) for layer, source in layers if name in layer]
        if broker.is_set(name):
            synonyms.append(Synonym(name, current[name], ConfigSource.STATIC_BROKER))
        synonyms.append(Synonym(name, to_string(definition.default), ConfigSource.DEFAULT))
        entries.append(_broker_entry(definition, tuple(synonyms)))
    return entries


def describe_all_brokers(for_all: Mapping[str, str]) -> list[ConfigDescription]:
    """Returns the dynamic configuration of all brokers."""
    return [
        _broker_entry(DEFINITIONS[name], (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),))
        for name, value in sorted(for_all.items())
        if name in DEFINITIONS
    ]


def _broker_entry(definition: ConfigKey, synonyms: tuple[Synonym, ...]) -> ConfigDescription:
    read_only = definition.name not in DYNAMIC_KEYS
    top = synonyms[0]
    return ConfigDescription(
        definition.name, top.value, definition.type, top.source, definition.doc, read_only, synonyms
    )
