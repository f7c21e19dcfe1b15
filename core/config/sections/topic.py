"""The configuration of a topic: Kafka's names, types and defaults, and the broker keys that set the defaults. Keys of
Kafka that have no effect here are accepted with Kafka's checks, and shown (`kafka_keys`).

A value comes from the topic itself, else from the broker's file, else from this module. -1 means unlimited, as in
Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, ValidationError, model_validator

from ...errors import ConfigError
from ..kafka_keys import TOPIC_KEYS, accepted
from ..problems import problems_of, unknown
from ..section import (
    LONG_MAX,
    ConfigKey,
    ConfigType,
    Double,
    Int,
    Long,
    Names,
    Section,
    definitions,
    key,
    to_string,
    values,
    wrong_key,
)

__all__ = [
    "BROKER_SYNONYMS",
    "TOPIC_DEFINITIONS",
    "CleanupPolicy",
    "SchemaRule",
    "SubjectNameStrategy",
    "TimestampType",
    "TopicConfig",
    "VerifyPayload",
    "check_topic_key",
    "topic_values",
]


_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


def _boolean(value: Any) -> Any:
    """Parses a boolean as Kafka does: pydantic also accepts yes, on and 1."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"should be true or false, got {value!r}")
    return text == "true"


def _policy(value: Any) -> Any:
    """Normalizes the policy: Kafka writes a list in any order, and an empty one cleans nothing (Kafka 4.2)."""
    names = value.split(",") if isinstance(value, str) else value
    parts = sorted({str(name).strip() for name in names} - {""}) if isinstance(names, list | tuple) else None
    if parts is None or not set(parts) <= {"compact", "delete"}:
        raise ValueError(f"should be delete, compact, compact,delete or empty, got {to_string(value)!r}")
    return ",".join(parts)


def _replicas(value: Any) -> Any:
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)
    if names != ["*"] and not all(_REPLICA.fullmatch(str(name)) for name in names):
        raise ValueError(f"should be * or a list of PARTITION:BROKER, got {value!r}")
    return names


Boolean = Annotated[bool, BeforeValidator(_boolean), ConfigType.BOOLEAN]
CleanupPolicy = Annotated[str, BeforeValidator(_policy), ConfigType.LIST]
ReplicaList = Annotated[Names, BeforeValidator(_replicas)]
TimestampType = Literal["CreateTime", "LogAppendTime"]
VerifyPayload = Literal["none", "uncompressed", "all"]
SchemaValidation = Literal["none", "id", "full"]
_STRATEGIES: Final = "io.confluent.kafka.serializers.subject."
SubjectNameStrategy = Annotated[
    Literal[
        "io.confluent.kafka.serializers.subject.TopicNameStrategy",
        "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy",
    ],
    BeforeValidator(lambda value: f"{_STRATEGIES}{value}" if isinstance(value, str) and "." not in value else value),
    ConfigType.STRING,
]
"""Confluent's classes; the name without its package will do."""


class SchemaRule(NamedTuple):
    """What the keys or the values of a topic's records must have: a schema by the subject `strategy`, the name of one
    of Confluent's classes without its package; `full`: they are decoded."""

    strategy: str
    full: bool


class TopicConfig(Section):
    """The log settings of one topic. Times are in ms, sizes in bytes."""

    cleanup_policy: CleanupPolicy = key(
        "delete",
        "delete: old segments are deleted; compact: the last record of each key is kept; both; or empty: neither.",
    )
    compression_type: str = key(
        "producer", "The codec of stored batches: `producer` keeps the producer's; a third party's codec must be named."
    )
    confluent_key_schema_validation: Boolean = key(
        False, "Whether a record's key must have the id of a schema of its subject (klamm.key.schema.validation=id)."
    )
    confluent_key_subject_name_strategy: SubjectNameStrategy = key(
        "io.confluent.kafka.serializers.subject.TopicNameStrategy", "What the subject of keys is named after."
    )
    confluent_value_schema_validation: Boolean = key(
        False, "Whether a value must have the id of a schema of its subject (klamm.value.schema.validation=id)."
    )
    confluent_value_subject_name_strategy: SubjectNameStrategy = key(
        "io.confluent.kafka.serializers.subject.TopicNameStrategy", "What the subject of values is named after."
    )
    delete_retention_ms: Long = key(86_400_000, "Time that a compacted topic keeps tombstones.", ge=0)
    file_delete_delay_ms: Long = key(60_000, "Time that a deleted file stays on disk.", ge=0)
    flush_messages: Long = key(LONG_MAX, "Number of records after which the log is flushed to disk.", ge=1)
    flush_ms: Long = key(LONG_MAX, "Time after which the log is flushed to disk.", ge=0)
    follower_replication_throttled_replicas: ReplicaList = key(
        (), "Replicas that are throttled as followers: * or PARTITION:BROKER (follower.replication.throttled.rate)."
    )
    index_interval_bytes: Int = key(4096, "Bytes of log between two entries of the offset index.", ge=0)
    klamm_key_schema_validation: SchemaValidation = key(
        "none", "id: a key must have the id of a schema of its subject; full: and be decoded by it."
    )
    klamm_value_schema_validation: SchemaValidation = key(
        "none", "id: a value must have the id of a schema of its subject; full: and be decoded by it."
    )
    leader_replication_throttled_replicas: ReplicaList = key(
        (), "Replicas that are throttled as leaders: * or PARTITION:BROKER (leader.replication.throttled.rate)."
    )
    max_compaction_lag_ms: Long = key(LONG_MAX, "Time after which a record is compacted at the latest.", ge=1)
    max_message_bytes: Int = key(1_048_588, "The largest batch accepted, compressed.", ge=0)
    message_timestamp_after_max_ms: Long = key(
        3_600_000, "Maximum time by which a record's timestamp may be ahead of the broker's clock.", ge=0
    )
    message_timestamp_before_max_ms: Long = key(
        LONG_MAX, "Maximum time by which a record's timestamp may be behind the broker's clock.", ge=0
    )
    message_timestamp_type: TimestampType = key(
        "CreateTime", "The time in a record: that of its creation, or of its append by the broker."
    )
    min_cleanable_dirty_ratio: Double = key(
        0.5, "Fraction of the log not yet compacted at which compaction starts.", ge=0, le=1
    )
    min_compaction_lag_ms: Long = key(0, "Minimum time before a record is compacted.", ge=0)
    min_insync_replicas: Int = key(1, "In-sync replicas that acks=all needs.", ge=1)
    retention_bytes: Long = key(-1, "Size of a partition above which old segments are deleted; -1: unlimited.", ge=-1)
    retention_ms: Long = key(604_800_000, "Age at which a segment is deleted; -1: never.", ge=-1)
    segment_bytes: Int = key(1_073_741_824, "Size at which a segment is rolled.", ge=14)
    segment_index_bytes: Int = key(10_485_760, "Size at which an index is full and its segment is rolled.", ge=4)
    segment_ms: Long = key(604_800_000, "Age at which a segment is rolled.", ge=1)
    unclean_leader_election_enable: Boolean = key(
        False, "Whether a replica that is not in sync may lead if no other can; acknowledged records are then lost."
    )
    verify_payload: VerifyPayload = key(
        "uncompressed", "The batches whose records the broker checks before it appends them; of others only the header."
    )

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def key_schema_rule(self) -> SchemaRule | None:
        """What the topic's keys must have; None if any will do."""
        wanted = self.klamm_key_schema_validation
        if wanted == "none" and not self.confluent_key_schema_validation:
            return None
        return SchemaRule(self.confluent_key_subject_name_strategy.removeprefix(_STRATEGIES), wanted == "full")

    @property
    def value_schema_rule(self) -> SchemaRule | None:
        """What the topic's values must have; None if any will do."""
        wanted = self.klamm_value_schema_validation
        if wanted == "none" and not self.confluent_value_schema_validation:
            return None
        return SchemaRule(self.confluent_value_subject_name_strategy.removeprefix(_STRATEGIES), wanted == "full")

    @model_validator(mode="after")
    def _lags_in_order(self) -> TopicConfig:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise wrong_key("min.compaction.lag.ms", "is above max.compaction.lag.ms")
        return self

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: TopicConfig | None = None) -> TopicConfig:
        """Returns `defaults` overridden by `given`. Raises `ConfigError` with one line for an unknown name or an
        invalid value."""
        base = defaults or cls()
        if not given:
            return base
        for name in given:
            if name not in TOPIC_DEFINITIONS:
                raise ConfigError(f"{name}: {unknown('topic config', name, TOPIC_DEFINITIONS)}")
        _checked(given)
        own = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
        try:
            return cls.model_validate({**base.model_dump(by_alias=True), **own}, by_alias=True, by_name=False)
        except ValidationError as error:
            raise ConfigError("; ".join(str(problem) for problem in problems_of(error, cls, given))) from error

    def to_strings(self) -> dict[str, str]:
        """Returns every config that has an effect, by its name, in the form in which Kafka's tools write it."""
        return values(self)


_OWN = {d.name: d for d in definitions(TopicConfig)}
_WITHOUT_EFFECT = {name: key for name, key in TOPIC_KEYS.items() if name not in _OWN}
TOPIC_DEFINITIONS = _OWN | {
    name: ConfigKey(name, key.type, key.default, "No effect here.") for name, key in _WITHOUT_EFFECT.items()
}
"""The configs that have an effect, then those that have none."""


def check_topic_key(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields (key, problem) for one config of a topic, whose name is in `TOPIC_DEFINITIONS`."""
    if name in _WITHOUT_EFFECT:
        try:
            accepted(_WITHOUT_EFFECT[name], value)
        except ValueError as error:
            yield name, str(error)
        return
    try:
        TopicConfig.model_validate({name: value}, by_alias=True, by_name=False)
    except ValidationError as error:
        for problem in problems_of(error, TopicConfig, {name: value}):
            yield str(problem.path[-1]), problem.message


def topic_values(given: Mapping[str, str], defaults: TopicConfig) -> dict[str, str]:
    """Returns every config of a topic that sets `given`, in the form in which Kafka's tools write it. Raises as
    `from_strings` does."""
    without_effect = {name: accepted(kafkas, kafkas.default) for name, kafkas in _WITHOUT_EFFECT.items()}
    return TopicConfig.from_strings(given, defaults).to_strings() | without_effect | _checked(given)


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the given configs that have no effect. Raises `ConfigError` with one line."""
    found = {}
    for name in filter(_WITHOUT_EFFECT.__contains__, given):
        try:
            found[name] = accepted(_WITHOUT_EFFECT[name], given[name])
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found


_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000

BROKER_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.type": (("compression.type", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
    "verify.payload": (("log.verify.payload", 1),),
}
"""The broker keys that set the default of a topic config, in the order of precedence, each with its factor (hours to
ms)."""
