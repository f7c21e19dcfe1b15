"""Topic configs: from the topic, else from the broker's file, else Kafka's default; as DescribeConfigs shows them."""

from __future__ import annotations

import pytest

from klamm.core.config.describe import describe_broker, describe_topic
from klamm.core.config.dynamic import DEFINITIONS, DYNAMIC_KEYS
from klamm.core.config.kafka_keys import BROKER_KEYS
from klamm.core.config.section import ConfigSource, ConfigType, values
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.topic import (
    BROKER_SYNONYMS,
    TOPIC_DEFINITIONS,
    SchemaRule,
    TopicConfig,
    topic_values,
)
from klamm.core.errors import ConfigError

KAFKA = {  # Apache Kafka 4.0's documentation of topic configs
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
_TOPIC_NAME = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
OF_TOPICS_ALONE = {
    "confluent.key.schema.validation": "false",
    "confluent.key.subject.name.strategy": _TOPIC_NAME,
    "confluent.value.schema.validation": "false",
    "confluent.value.subject.name.strategy": _TOPIC_NAME,
    "klamm.key.schema.validation": "none",
    "klamm.value.schema.validation": "none",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
}
"""Kafka and Confluent have no broker key with their defaults either."""
OWN = {"verify.payload": "uncompressed"}

IGNORED = {  # Apache Kafka 4.4's, as a broker describes them
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "errors.deadletterqueue.group.enable": "false",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.decompressed.message.bytes": "2147483639",
    "preallocate": "false",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "segment.jitter.ms": "0",
}


def broker(**keys: object) -> BrokerConfig:
    return BrokerConfig.model_validate({name.replace("_", "."): value for name, value in keys.items()})


def test_names_and_defaults_are_kafkas() -> None:
    assert TopicConfig().to_strings() == KAFKA | OWN | OF_TOPICS_ALONE
    assert topic_values({}, TopicConfig()) == KAFKA | OWN | OF_TOPICS_ALONE | IGNORED
    assert set(TOPIC_DEFINITIONS) == set(KAFKA | OWN | OF_TOPICS_ALONE | IGNORED)


def test_every_topic_config_has_a_broker_key_whose_default_is_the_same() -> None:
    assert set(BROKER_SYNONYMS) == set(KAFKA | OWN)
    assert broker().topic_defaults() == TopicConfig()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"log_retention_hours": 2}, 7_200_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3}, 180_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3, "log_retention_ms": 4}, 4),
        ({"log_retention_hours": -1}, -1),
        ({"log_retention_ms": -1}, -1),
    ],
)
def test_the_most_precise_broker_key_wins(keys: dict[str, int], expected: int) -> None:
    assert broker(**keys).topic_defaults().retention_ms == expected


def test_strings_over_the_brokers_defaults() -> None:
    defaults = broker(message_max_bytes=5, log_segment_bytes=1000).topic_defaults()
    config = TopicConfig.from_strings({"segment.bytes": "77", "cleanup.policy": "delete,compact"}, defaults)
    assert (config.max_message_bytes, config.segment_bytes, config.cleanup_policy) == (5, 77, "compact,delete")
    assert (config.deletes, config.compacts) == (True, True)
    assert TopicConfig.from_strings(config.to_strings()) == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"retention": "1"}, "retention: unknown topic config; did you mean retention.ms?"),
        ({"xyz": "1"}, "xyz: unknown topic config"),
        ({"retention.ms": "soon"}, "retention.ms: should be a valid integer"),
        ({"retention.ms": "-2"}, "retention.ms: should be greater than or equal to -1, got '-2'"),
        ({"retention.ms": str(2**63)}, "retention.ms: should be less than or equal to"),
        ({"max.message.bytes": str(2**31)}, "max.message.bytes: should be less than or equal to"),
        ({"message.timestamp.type": "Mine"}, "message.timestamp.type: should be 'CreateTime' or"),
        ({"preallocate": "1"}, "preallocate: should be true or false, got '1'"),
        ({"remote.storage.enable": "true"}, "remote.storage.enable: cannot be true: there is no tiered storage"),
        ({"compression.gzip.level": "0"}, "compression.gzip.level: should be -1 | 1..9, got '0'"),
        ({"compression.lz4.level": "18"}, "compression.lz4.level: should be 1..17, got '18'"),
        ({"segment.jitter.ms": "-1"}, "segment.jitter.ms: should be >= 0, got '-1'"),
        ({"leader.replication.throttled.replicas": "0:1,*"}, "should be * or a list of PARTITION:BROKER"),
        ({"confluent.key.schema.validation": "id"}, "should be true or false, got 'id'"),
        ({"klamm.key.schema.validation": "true"}, "should be 'none', 'id' or 'full', got 'true'"),
        ({"confluent.key.subject.name.strategy": "com.example.Mine"}, "RecordNameStrategy"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "min.compaction.lag.ms: is above"),
    ],
)  # fmt: skip
def test_a_wrong_one_is_one_line(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TopicConfig.from_strings(given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_described_with_type_source_and_synonyms() -> None:
    found = {entry.name: entry for entry in describe_topic({"segment.bytes": "77"}, broker(log_retention_hours=1))}
    assert set(found) == set(KAFKA | OWN | OF_TOPICS_ALONE | IGNORED)
    retention, segment, delay = found["retention.ms"], found["segment.bytes"], found["file.delete.delay.ms"]
    assert (retention.value, retention.source, retention.type) == (
        "3600000",
        ConfigSource.STATIC_BROKER,
        ConfigType.LONG,
    )
    assert [s.name for s in retention.synonyms] == ["log.retention.hours", "retention.ms"]
    assert (segment.value, segment.source) == ("77", ConfigSource.TOPIC)
    assert (delay.value, delay.source, delay.read_only) == ("60000", ConfigSource.DEFAULT, False)
    assert found["cleanup.policy"].type is ConfigType.LIST


def test_a_broker_described() -> None:
    found = {entry.name: entry for entry in describe_broker(broker(broker_id=3))}
    assert (found["broker.id"].value, found["broker.id"].source) == ("3", ConfigSource.STATIC_BROKER)
    assert found["num.partitions"].source == ConfigSource.DEFAULT
    assert {name for name, entry in found.items() if not entry.read_only and name in DEFINITIONS} == DYNAMIC_KEYS
    assert set(found) == set(values(broker())) | {key.name for key in BROKER_KEYS.values() if not key.internal}


def test_a_broker_described_with_the_clusters_word() -> None:
    shown = describe_broker(broker(max_connections=9), {"max.connections": "7"}, {"max.connections": "8"})
    (entry,) = [entry for entry in shown if entry.name == "max.connections"]
    assert (entry.value, entry.source) == ("8", ConfigSource.DYNAMIC_BROKER)
    assert [synonym.value for synonym in entry.synonyms] == ["8", "7", "9", "10000"]


def test_the_keys_of_schemas_make_a_rule_for_keys_and_one_for_values() -> None:
    config = TopicConfig.from_strings(
        {
            "confluent.key.schema.validation": "true",
            "confluent.key.subject.name.strategy": "RecordNameStrategy",
            "klamm.value.schema.validation": "full",
        }
    )
    assert config.key_schema_rule == SchemaRule("RecordNameStrategy", full=False)
    assert config.value_schema_rule == SchemaRule("TopicNameStrategy", full=True)
    assert (TopicConfig().key_schema_rule, TopicConfig().value_schema_rule) == (None, None)
    stored = config.to_strings()["confluent.key.subject.name.strategy"]
    assert stored == "io.confluent.kafka.serializers.subject.RecordNameStrategy"
