"""Sizes and times with units, in every key of size or time of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.section import ConfigKey, ConfigType, definitions
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.consumer import ConsumerConfig
from klamm.core.config.sections.process_log import ProcessLogConfig
from klamm.core.config.sections.producer import ProducerConfig
from klamm.core.config.sections.sink import SinkSettings
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.config.settings import load_settings
from klamm.core.config.units import in_unit_of, unit_of
from klamm.core.errors import ConfigError
from klamm.core.plugins import Providers, plugin_host

NUMBERS = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
WITHOUT_UNIT = frozenset(
    {
        "broker.id",
        "compression.level",
        "default.replication.factor",
        "flush.messages",
        "flush.records",
        "group.max.size",
        "leader.imbalance.per.broker.percentage",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.threads",
        "log.flush.interval.messages",
        "max.bad.share",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.in.flight.requests.per.connection",
        "max.incremental.fetch.session.cache.slots",
        "max.offsets.per.task",
        "max.poll.records",
        "max.records",
        "metrics.port",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "num.io.threads",
        "num.partitions",
        "num.recovery.threads.per.data.dir",
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "pages.max.events",
        "pages.port",
        "partitions",
        "queued.max.requests",
        "rebalance.max.retries",
        "retries",
        "schema.search.default.limit",
        "socket.listen.backlog.size",
    }
)
"""Numbers that are neither a size nor a time: counts, ids, ports, shares."""


def keys() -> list[ConfigKey]:
    models = [BrokerConfig, TopicConfig, ProducerConfig, ConsumerConfig, SinkSettings, ProcessLogConfig]
    host = plugin_host()
    for providers in (getattr(host, name) for name in dir(host) if not name.startswith("_")):
        if isinstance(providers, Providers):
            models += [providers.get(name).config for name in providers.names()]
    return [key for model in dict.fromkeys(models) for key in definitions(model) if key.type in NUMBERS]


def test_every_number_is_of_size_or_time_or_known_to_be_neither() -> None:
    assert {key.name for key in keys() if unit_of(key.name) is None} == WITHOUT_UNIT
    assert {unit_of(key.name) for key in keys()} == {None, "bytes", "ms", "seconds", "minutes", "hours"}


@pytest.mark.parametrize("key", sorted({key.name for key in keys()} - WITHOUT_UNIT))
def test_each_key_takes_its_unit(key: str) -> None:
    if unit_of(key) == "bytes":
        assert in_unit_of(key, "10g") == 10 * 2**30
        assert in_unit_of(key, "1GB") == in_unit_of(key, "1GiB") == 2**30
    else:
        week_ms = 7 * 86_400_000
        assert (
            in_unit_of(key, "7d")
            == week_ms // {"ms": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}[str(unit_of(key))]
        )
    for unchanged in (5, "5", -1, "-1", None, True, "1e3"):
        assert in_unit_of(key, unchanged) is unchanged


def test_a_file_with_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETENTION", "36h")
    path = tmp_path / "klamm.yaml"
    path.write_text(
        "broker: {log.retention.bytes: 10g, log.retention.ms: '${RETENTION}', log.roll.hours: 7d, "
        "log.cleaner.dedupe.buffer.size: 64 MB, log.cleaner.io.buffer.size: 512k}\n"
        "topics: {t: {config: {retention.ms: 7d, segment.bytes: 128m}}}\n"
        "producer: {linger.ms: 1s, batch.size: 1MB}\n"
        "consumer: {session.timeout.ms: 1m}\n"
        "coordination: {plugin: embedded, path: ./tree, session.timeout.ms: 9s}\n"
        "audit: {plugin: klamm, topics: [t], window.minutes: 1h}\n"
        "sinks: {lake: {plugin: hadoop, topics: [t], path: ./lake, target.file.size: 64m, max.duration.ms: 5m}}\n"
    )
    settings = load_settings(path)
    broker = settings.broker
    assert (broker.log_retention_bytes, broker.log_retention_ms, broker.log_roll_hours) == (
        10 * 2**30,
        129_600_000,
        168,
    )
    assert broker.log_cleaner_dedupe_buffer_size == 64 * 2**20
    assert dict(broker.without_effect)["log.cleaner.io.buffer.size"] == "524288"
    assert settings.topics["t"].config == {"retention.ms": "604800000", "segment.bytes": "134217728"}
    assert (settings.producer.linger_ms, settings.producer.batch_size) == (1000, 2**20)
    assert settings.consumer.session_timeout_ms == 60_000
    assert settings.audit is not None
    plugins = [settings.coordination, settings.audit, settings.sinks["lake"].choice]
    found = [choice.config.model_dump(by_alias=True) for choice in plugins]
    assert [found[0]["session.timeout.ms"], found[1]["window.minutes"]] == [9000, 60]
    assert [found[2]["target.file.size"], found[2]["max.duration.ms"]] == [2**26, 300_000]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "broker: {log.retention.ms: 7days}",
            "broker.log.retention.ms: expected a whole number of ms, or a time such as 90s, 36h or 7d, got '7days'",
        ),
        (
            "broker: {log.retention.hours: 90s}",
            "broker.log.retention.hours: expected a whole number of hours, or a time such as 36h or 7d, got '90s'",
        ),
        (
            "topics: {t: {config: {segment.bytes: 1gbit}}}",
            "topics.t.config.segment.bytes: expected bytes, or a size such as 512k, 128m or 10g, got '1gbit'",
        ),
        (
            "producer: {batch.size: 1.5m}",
            "producer.batch.size: expected bytes, or a size such as 512k, 128m or 10g, got '1.5m'",
        ),
        ("broker: {log.segment.bytes: 10g}", "broker.log.segment.bytes: should be less than or equal to 2147483647"),
        ("broker: {num.partitions: 1k}", "broker.num.partitions: should be a valid integer"),
        ("coordination: {plugin: embedded, path: x, session.timeout.ms: soon}", "coordination.session.timeout.ms: exp"),
    ],
)
def test_what_is_wrong_names_key_value_and_what_is_right(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "klamm.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(caught.value).startswith(f"klamm.yaml:1: {line}")
    assert "\n" not in str(caught.value)
