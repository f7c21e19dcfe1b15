"""Broker keys that can change while the broker runs: in its file, when it is reloaded, and in the cluster (KIP-226).

A key that is not listed here needs a restart. The order of precedence: the cluster's value for one broker, its value
for all brokers, the file, the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .kafka_keys import BROKER_KEYS
from .problems import problems_of, unknown
from .section import definitions, dotted
from .sections.broker import BrokerConfig, kafka_keys_of
from .sections.topic import BROKER_SYNONYMS

__all__ = [
    "DEFINITIONS",
    "DYNAMIC_KEYS",
    "apply_dynamic",
    "check_dynamic",
    "differing",
    "given",
    "is_dynamic",
    "overlaid",
    "validated",
]

_DEFAULTS_OF_TOPICS = frozenset(name for keys in BROKER_SYNONYMS.values() for name, _ in keys)
_LIMITS = frozenset(
    {
        "connections.max.idle.ms",
        "control.request.max.bytes",
        "fetch.max.bytes",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "offset.metadata.max.bytes",
        "queued.max.request.bytes",
        "queued.max.requests",
        "queued.max.response.bytes",
        "shutdown.drain.timeout.ms",
        "socket.receive.timeout.ms",
        "socket.request.max.bytes",
        "socket.send.timeout.ms",
    }
)
_CLEANER = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
    }
)
_TOPICS = frozenset(
    {"auto.create.topics.enable", "default.replication.factor", "delete.topic.enable", "num.partitions"}
)
_REPLICATION = frozenset({"follower.replication.throttled.rate", "leader.replication.throttled.rate"})
DYNAMIC_KEYS = _DEFAULTS_OF_TOPICS | _LIMITS | _CLEANER | _TOPICS | _REPLICATION
DEFINITIONS = {definition.name: definition for definition in definitions(BrokerConfig)}


def given(config: BrokerConfig) -> dict[str, Any]:
    """Returns the keys that were set, with their values."""
    return {dotted(field): getattr(config, field) for field in config.model_fields_set} | dict(config.without_effect)


def overlaid(config: BrokerConfig, *layers: Mapping[str, str]) -> BrokerConfig:
    """Returns `config` overridden by the layers, of which later ones take precedence. Raises `ConfigError` with one
    line if the result is invalid."""
    values = given(config)
    for layer in layers:
        values.update(layer)
    return validated(values)


def apply_dynamic(running: BrokerConfig, wanted: BrokerConfig) -> tuple[BrokerConfig, tuple[str, ...]]:
    """Returns the configuration of a running broker after its file changed, with the new values of the dynamic keys,
    and the names of the other keys that differ. Raises `ConfigError` if the new values do not fit the old ones."""
    old, new = given(running), given(wanted)
    values = {name: value for name, value in old.items() if name in DEFINITIONS and name not in DYNAMIC_KEYS}
    values |= {name: value for name, value in new.items() if name in DYNAMIC_KEYS or name not in DEFINITIONS}
    return validated(values), tuple(name for name in differing(running, wanted) if name not in DYNAMIC_KEYS)


def differing(one: BrokerConfig, other: BrokerConfig) -> list[str]:
    """Returns the keys whose values differ, in the order of the reference."""
    return [name for name in DEFINITIONS if _value(one, name) != _value(other, name)]


def is_dynamic(name: str) -> bool:
    """Returns True if the key can change while a broker runs; for a key without effect, if it can in Kafka."""
    if name in DEFINITIONS:
        return name in DYNAMIC_KEYS
    return name in BROKER_KEYS and BROKER_KEYS[name].update != ""


def check_dynamic(name: str) -> None:
    """Raises `ConfigError` for a key that is unknown or needs a restart."""
    if name not in DEFINITIONS and name not in BROKER_KEYS:
        raise ConfigError(f"{name}: {unknown('broker config', name, DEFINITIONS)}")
    if not is_dynamic(name):
        raise ConfigError(f"{name} cannot be changed while the broker runs: set it in the file, and restart")


def _value(config: BrokerConfig, name: str) -> Any:
    return getattr(config, name.replace(".", "_"))


def validated(values: Mapping[str, Any]) -> BrokerConfig:
    """Returns the configuration with these values by key. Raises `ConfigError` with one line if it is invalid."""
    kafkas, wrong = kafka_keys_of(values)
    if wrong:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in wrong.items()))
    own = {name: value for name, value in values.items() if name not in kafkas}
    try:
        return BrokerConfig.model_validate(own, by_alias=True, by_name=False).with_kafka_keys(kafkas)
    except ValidationError as error:
        raise ConfigError("; ".join(map(str, problems_of(error, BrokerConfig, own)))) from error
