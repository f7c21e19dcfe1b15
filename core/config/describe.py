"""Configuration in the form of DescribeConfigs: each value with its type, its source and its synonyms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from .dynamic import DEFINITIONS, is_dynamic
from .kafka_keys import BROKER_KEYS, refusal
from .section import ConfigKey, ConfigSource, ConfigType, to_string, values
from .sections.broker import BrokerConfig
from .sections.topic import BROKER_SYNONYMS, TOPIC_DEFINITIONS


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One configuration key. `synonyms` are in the order of precedence; the first one gives the value. The value is
    None if there is none, or if it is a password."""

    name: str
    value: str | None
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
    configuration in force, which includes the dynamic values `for_all` brokers and `for_this` one."""

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
        synonyms.append(Synonym(name, _shown(definition.default), ConfigSource.DEFAULT))
        top = synonyms[0]
        entries.append(
            ConfigDescription(name, top.value, definition.type, top.source, definition.doc, False, tuple(synonyms))
        )
    return entries


def kafka_keys_in(section: BaseModel) -> dict[str, str]:
    """Returns the keys of Kafka's brokers that another section of the file has, with its values."""
    return {name: value for name, value in values(section).items() if name in BROKER_KEYS}


_IN_FORCE_AS: Final = {"log.dir": "log.dirs", "node.id": "broker.id"}
"""Kafka's alternative names of keys."""
_IN_FORCE: Final = {"group.coordinator.rebalance.protocols": "classic"}
"""Keys of Kafka that are refused, with the value that is in force."""
_NO_EFFECT: Final = "No effect here."


def broker_definitions() -> Iterator[ConfigKey]:
    """Yields every configuration key of a broker: those that are obeyed, then Kafka's others."""
    yield from DEFINITIONS.values()
    for name, key in BROKER_KEYS.items():
        if name not in DEFINITIONS:
            why = refusal(name)
            doc = f"Not here: {why}." if why else _NO_EFFECT
            yield ConfigKey(name, key.type, key.default, doc)


def describe_broker(
    broker: BrokerConfig,
    for_all: Mapping[str, str] | None = None,
    for_this: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> list[ConfigDescription]:
    """Returns every configuration key of a broker: the values of its file, overridden by the dynamic values for all
    brokers, then by those for this one. A key that needs a restart is read-only. `elsewhere`: values in force from
    other sections than the broker's."""
    layers = ((for_this or {}, ConfigSource.DYNAMIC_BROKER), (for_all or {}, ConfigSource.DYNAMIC_DEFAULT_BROKER))
    current = values(broker) | dict(broker.without_effect)
    in_force = {name: current[other] for name, other in _IN_FORCE_AS.items()} | _IN_FORCE | dict(elsewhere or {})
    entries = []
    for definition in broker_definitions():
        name = definition.name
        synonyms = [Synonym(name, layer[name], source) for layer, source in layers if name in layer]
        if name in broker.without_effect or broker.is_set(name):
            synonyms.append(Synonym(name, current[name], ConfigSource.STATIC_BROKER))
        elif name in in_force and name not in DEFINITIONS:
            synonyms.append(Synonym(name, in_force[name], ConfigSource.STATIC_BROKER))
        if not synonyms and _is_internal(name):
            continue
        synonyms.append(Synonym(name, _shown(definition.default), ConfigSource.DEFAULT))
        entries.append(_broker_entry(definition, tuple(synonyms)))
    return entries


def _is_internal(name: str) -> bool:
    return name not in DEFINITIONS and BROKER_KEYS[name].internal


def describe_all_brokers(for_all: Mapping[str, str]) -> list[ConfigDescription]:
    """Returns the dynamic configuration of all brokers."""
    return [
        _broker_entry(definition, (Synonym(name, for_all[name], ConfigSource.DYNAMIC_DEFAULT_BROKER),))
        for definition in broker_definitions()
        if (name := definition.name) in for_all
    ]


def _shown(default: Any) -> str | None:
    return None if default is None else to_string(default)


def _broker_entry(definition: ConfigKey, synonyms: tuple[Synonym, ...]) -> ConfigDescription:
    top, is_secret = synonyms[0], definition.type is ConfigType.PASSWORD
    return ConfigDescription(
        definition.name,
        None if is_secret else top.value,
        definition.type,
        top.source,
        definition.doc,
        not is_dynamic(definition.name),
        () if is_secret else synonyms,
    )
