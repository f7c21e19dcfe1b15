"""What Kafka's configuration keys mean here: every key of a broker or a topic of Kafka 4 is known.

A key is one of three: obeyed (a field of `BrokerConfig` or `TopicConfig`), refused with a reason (`refusal`: it
would promise what Klamm does not have, or another key replaces it), or without effect. A key without effect is
checked as Kafka checks it, kept and shown, so that tools and files that set it work unchanged. A key of a feature
that Klamm does not have may be set to Kafka's default, if that does not use the feature. Names, types, defaults and
bounds are in `kafka_table`, made from Kafka's own classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .kafka_table import BROKER, TOPIC
from .section import INT_MAX, LONG_MAX, SHORT_MAX, ConfigType, to_string
from .units import in_digits

__all__ = ["BROKER_KEYS", "ELSEWHERE", "ONLY_KAFKA_3", "TOPIC_KEYS", "KafkaKey", "accepted", "refusal"]

_LARGEST: Final = {ConfigType.SHORT: SHORT_MAX, ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}


@dataclass(frozen=True, slots=True)
class KafkaKey:
    """A key of Kafka. `default`: None if Kafka has none. `within`: valid values, as `LOW..HIGH` or names, with
    commas; "" for all of the type. `update`: `cluster-wide` or `per-broker` if Kafka changes it while a broker runs.
    `internal`: Kafka does not show it."""

    name: str
    type: ConfigType
    default: str | None
    within: str
    update: str
    internal: bool

    @property
    def valid(self) -> str:
        """The valid values in words: `>= 1`, `-1 | 1..9`, `a | b`; "" for all."""
        parts = self.within.split(",") if self.within else []
        return " | ".join(f">= {part.removesuffix('..')}" if part.endswith("..") else part for part in parts)

    def checked(self, value: Any) -> str:
        """Returns the value in the form in which Kafka's tools write it. Raises `ValueError` with the valid values."""
        text = to_string(value).strip()
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"should be true or false, got {value!r}")
            return text.lower()
        if self.type in _LARGEST or self.type is ConfigType.DOUBLE:
            self._check_number(text, value)
        elif self.type is ConfigType.LIST:
            for part in filter(None, (part.strip() for part in text.split(","))):
                self._check_within(part, value)
        else:
            self._check_within(text, value)
        return text

    def _check_number(self, text: str, value: Any) -> None:
        largest = _LARGEST.get(self.type)
        try:
            if not in_digits(text):
                raise ValueError(text)
            number = float(text) if largest is None else int(text)
        except ValueError:
            raise ValueError(f"should be a {'whole ' if largest else ''}number, got {value!r}") from None
        if largest is not None and not -largest - 1 <= number <= largest:
            raise ValueError(f"should be {-largest - 1}..{largest}, got {value!r}")
        self._check_within(text, value)

    def _check_within(self, text: str, value: Any) -> None:
        if self.within and not any(_is_within(text, part) for part in self.within.split(",")):
            raise ValueError(f"should be {self.valid}, got {value!r}")


def _is_within(text: str, part: str) -> bool:
    low, dots, high = part.partition("..")
    if not dots:
        return text.lower() == part.lower()
    return float(low) <= float(text) and (not high or float(text) <= float(high))


def _keys(table: str) -> Iterator[KafkaKey]:
    for line in table.splitlines():
        name, kind, default, within, update, internal = line.split("|")
        yield KafkaKey(
            name, ConfigType[kind], None if default == "null" else default, within, update, internal == "internal"
        )


BROKER_KEYS: Final[Mapping[str, KafkaKey]] = {key.name: key for key in _keys(BROKER)}
TOPIC_KEYS: Final[Mapping[str, KafkaKey]] = {key.name: key for key in _keys(TOPIC) if not key.internal}

_NO_KRAFT: Final = "Klamm has no KRaft; the section coordination names what takes its place"
_NO_TIERS: Final = "there is no tiered storage"
_NO_TLS: Final = "Klamm has no TLS yet"
_NO_SASL: Final = "Klamm has no SASL; the key authenticator names a plugin that identifies clients"
_OFFSETS: Final = "it is a key of the section offsets"
ELSEWHERE: Final[Mapping[str, str]] = {
    "log.dir": "the key is log.dirs here",
    "node.id": "the key is broker.id here",
    "offsets.commit.timeout.ms": f"{_OFFSETS}, with `plugin: topic`",
    "offsets.topic.num.partitions": _OFFSETS,
    "offsets.topic.replication.factor": _OFFSETS,
    "offsets.topic.segment.bytes": f"{_OFFSETS}, with `plugin: topic`",
}
"""Keys that another key replaces here. They are refused even with Kafka's default, which need not be the value in
force."""
_REFUSED: Final[Mapping[str, str]] = {
    "authorizer.class.name": "the key authorizer names a plugin that says what a principal may do",
    "config.providers": "a value may be ${NAME} of the environment instead",
    "controller.listener.names": _NO_KRAFT,
    "controller.quorum.auto.join.enable": _NO_KRAFT,
    "controller.quorum.bootstrap.servers": _NO_KRAFT,
    "controller.quorum.voters": _NO_KRAFT,
    "cordoned.log.dirs": "a broker has one log directory",
    "delegation.token.secret.key": "Klamm has no delegation tokens",
    "group.coordinator.rebalance.protocols": "Klamm's brokers have the classic protocol alone",
    "kafka.metrics.reporters": "metrics.port gives metrics to Prometheus",
    "metadata.log.dir": _NO_KRAFT,
    "metric.reporters": "metrics.port gives metrics to Prometheus",
    "process.roles": _NO_KRAFT,
    "remote.log.storage.system.enable": _NO_TIERS,
    "remote.storage.enable": _NO_TIERS,
    "sasl.enabled.mechanisms": _NO_SASL,
    "sasl.jaas.config": _NO_SASL,
    "sasl.mechanism.": _NO_SASL,
    "sasl.oauthbearer.": _NO_SASL,
    "security.inter.broker.protocol": f"{_NO_TLS}, and no SASL",
    "ssl.client.auth": _NO_TLS,
    "ssl.key.password": _NO_TLS,
    "ssl.keystore.": _NO_TLS,
    "ssl.principal.mapping.rules": _NO_TLS,
    "ssl.truststore.": _NO_TLS,
    "transaction.two.phase.commit.enable": "Klamm has no transactions yet",
}
"""Why a key is refused; a name that ends with a dot applies to all keys that begin with it."""
_JAVA: Final = "it names Java classes, which Klamm does not load"
_OF_JAVA: Final = (".class", ".class.name", ".class.path", "security.providers")

ONLY_KAFKA_3: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "delegation.token.master.key",
        "group.coordinator.new.enable",
        "inter.broker.protocol.version",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "offsets.commit.required.acks",
        "password.encoder.cipher.algorithm",
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "password.encoder.old.secret",
        "password.encoder.secret",
        "quota.consumer.default",
        "quota.producer.default",
        "reserved.broker.max.id",
    }
)
"""Keys that Kafka 4 no longer has, for which the nearest known key would be a misleading hint."""


def refusal(name: str) -> str:
    """Returns why a key of Kafka that no section here has is refused; "" if it is accepted, without effect."""
    exact = ELSEWHERE.get(name) or _REFUSED.get(name)
    if exact:
        return exact
    prefix = next((why for start, why in _REFUSED.items() if start.endswith(".") and name.startswith(start)), "")
    return prefix or (_JAVA if name.endswith(_OF_JAVA) else "")


def accepted(key: KafkaKey, value: Any) -> str:
    """Returns the value of a key that no section here has, in the form in which Kafka's tools write it. Raises
    `ValueError` if it is wrong, or refused."""
    text = key.checked(value)
    why = refusal(key.name)
    if why and (text != (key.default or "") or key.name in ELSEWHERE):
        raise ValueError(f"cannot be {text}: {why}" if text in ("true", "false") else why)
    return text
