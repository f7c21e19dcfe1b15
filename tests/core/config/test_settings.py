"""One file, validated before anything starts: what is right is typed, what is wrong is a line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import OffsetStore

FULL = """
broker: {broker.id: 3, listeners: "PLAINTEXT://127.0.0.1:19092", log.dirs: ./data, log.retention.hours: 24}
coordination: {plugin: zookeeper, zookeeper.connect: "${KLAMM_TEST_ZK:-127.0.0.1:2181}/klamm"}
offsets: {plugin: coordination}
topics:
  flights: {partitions: 6, replication.factor: 1, config: {retention.ms: -1, cleanup.policy: [compact, delete]},
            schema: flights.avsc, envelope: linkedin, compatibility: FULL}
  raw: {partitions: 1}
producer: {bootstrap.servers: "127.0.0.1:9092", acks: all, compression.type: zstd, linger.ms: 5, batch.size: 65536}
consumer: {bootstrap.servers: [127.0.0.1:9092, 127.0.0.2:9092], group.id: g, auto.offset.reset: smallest}
audit: {plugin: klamm, topics: [flights]}
sinks: {archive: {plugin: files, topics: [flights], path: out, flush.records: 7}}
serdes: {avro: {schemas.topic: _other}}
plugins: {modules: []}
"""


@pytest.fixture
def full(tmp_path: Path) -> Path:
    (tmp_path / "flights.avsc").write_text('{"type": "record", "name": "F", "fields": []}')
    path = tmp_path / "klamm.yaml"
    path.write_text(FULL)
    return path


def test_every_section_is_typed(full: Path) -> None:
    settings = load_settings(full)
    assert (settings.broker.broker_id, settings.broker.topic_defaults().retention_ms) == (3, 24 * 3_600_000)
    assert settings.coordination.plugin == "zookeeper"
    assert settings.topics["flights"].partitions == 6
    assert settings.topics["flights"].topic_config().cleanup_policy == "compact,delete"
    assert settings.topics["flights"].topic_config().retention_ms == -1
    assert (settings.producer.acks, settings.producer.compression_type) == (-1, "zstd")
    assert [str(at) for at in settings.consumer.bootstrap()] == ["127.0.0.1:9092", "127.0.0.2:9092"]
    assert (settings.consumer.auto_offset_reset, settings.consumer.group_protocol) == ("earliest", "registry")
    assert settings.audit is not None
    assert settings.sinks["archive"].flush_records == 7
    assert settings.sinks["archive"].group_id == "sink-archive"


def test_relative_paths_start_at_the_file(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    settings = load_settings(full)
    assert settings.broker.log_dirs == tmp_path / "data"
    assert settings.topics["flights"].schema_file == tmp_path / "flights.avsc"
    chosen: Any = settings.sinks["archive"].choice.config
    assert chosen.path == tmp_path / "out"


def test_a_mapping_will_do() -> None:
    settings = load_settings({"broker": {"broker.id": 4}, "producer": None})
    assert settings.broker.broker_id == 4
    assert settings.broker.log_dirs == Path.cwd() / "data"


def test_a_topics_format(full: Path) -> None:
    settings = load_settings(full)
    said = settings.topic_format("flights")
    assert (said.envelope.name, settings.serde_name("flights")) == ("linkedin", "avro")
    assert said.schema == '{"type": "record", "name": "F", "fields": []}'
    assert (said.options["compatibility"], said.options["schemas.topic"]) == ("FULL", "_other")
    assert settings.serde_name("raw") is None
    assert settings.serde_name("unheard.of") is None
    assert settings.topic_format("flights") is said


def test_plugin_objects_are_made(full: Path, tmp_path: Path) -> None:
    settings = load_settings(full)
    coordination: Coordination = settings.make_coordination()
    offsets: OffsetStore = settings.make_offset_store(coordination)
    assert offsets is not None
    assert settings.make_audit() is not None
    assert settings.make_sink("archive") is not None
    assert {"gzip", "snappy", "lz4", "zstd"} <= set(settings.codec_table().names())
    assert [type(made).__name__ for made in settings.make_topic_validators()] == ["SchemaValidator"]
    assert settings.make_producer_interceptors() == []
    assert settings.make_consumer_interceptors() == []
    with pytest.raises(ConfigError, match=r"sinks.nope: there is no such sink \(there are: archive\)"):
        settings.make_sink("nope")


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({}, "classic"),
        ({"coordination": {}}, "registry"),
        ({"coordination": {"plugin": "zookeeper"}, "consumer": {"group.protocol": "classic"}}, "classic"),
        ({"consumer": {"group.protocol": "registry"}}, "registry"),
    ],
)
def test_the_group_protocol_follows_the_coordination(given: dict[str, Any], protocol: str) -> None:
    assert load_settings(given).consumer.group_protocol == protocol


WRONG = [
    ("broker: {log.retention.hour: 3}", "broker.log.retention.hour: unknown key; did you mean log.retention.hours?"),
    ("broker: {zookeeper.connect: h}", "broker.zookeeper.connect: unknown key; it is a key of the section"),
    ("coordination: {plugin: embedded, zookeeper.connect: h}", "coordination.zookeeper.connect: unknown key; it is a"),
    ("broker: {process.roles: broker}", "broker.process.roles: Klamm has no KRaft"),
    ("broker: {transaction.two.phase.commit.enable: true}", "broker.transaction.two.phase.commit.enable: cannot be"),
    ("producer: {transactional.id: t}", "producer.transactional.id: unknown key; Klamm has no transactions yet"),
    ("broker: {offsets.topic.replication.factor: 3}", "broker.offsets.topic.replication.factor: it is a key of"),
    ("broker: {offsets.topic.segment.bytes: 3}", "broker.offsets.topic.segment.bytes: it is a key of the section"),
    ("offsets: {offsets.topic.num.partition: 3}", "offsets.offsets.topic.num.partition: unknown key; did"),
    ("broker: {num.replica.fetchers: 0}", "broker.num.replica.fetchers: should be >= 1, got 0"),
    ("broker: {num.network.threads: true}", "broker.num.network.threads: should be a whole number, got True"),
    ("broker: {ssl.keystore.location: k}", "broker.ssl.keystore.location: Klamm has no TLS yet"),
    ("broker: {authorizer.class.name: c}", "broker.authorizer.class.name: the key authorizer names a plugin"),
    ("broker: {controlled.shutdown.max.retries: 3}", "broker.controlled.shutdown.max.retries: unknown key; Kafka 3"),
    ("broker: {log.dir: d}", "broker.log.dir: the key is log.dirs here"),
    ("broker: {broker.id: [0]}", "broker.broker.id: should be a valid integer, got [0]"),
    ("broker: {inter.broker.listener.name: FOO}", "broker.inter.broker.listener.name: FOO is not in listeners"),
    ("broker: {default.replication.factor: 99999}", "broker.default.replication.factor: should be less than or equal"),
    ("offsets: {plugin: topic, offsets.topic.num.partitions: 1001}", "offsets.offsets.topic.num.partitions: should be"),
    ("offsets: {offsets.topic.num.partitions: 2000}", "offsets.offsets.topic.num.partitions: should be less than or"),
    ("offsets: {offsets.topic.replication.factor: 40000}", "offsets.offsets.topic.replication.factor: should be less"),
    ("broker: {log.dirs: ${NOPE}}", "not YAML: expected ',' or '}', but got '{'; quote ${…} inside braces"),
    ("broker: {broker_id: 3}", "broker.broker_id: unknown key; did you mean broker.id?"),
    ("broker: {num.partitions: many}", "broker.num.partitions: should be a valid integer"),
    ("broker: {num.partitions: '1_0'}", "broker.num.partitions: expected a number in the digits 0 to 9, got '1_0'"),
    ("broker: {num.partitions: '１０'}", "broker.num.partitions: expected a number in the digits 0 to 9, got '１０'"),
    ("broker: {num.partitions: '3.0'}", "broker.num.partitions: expected a whole number, got '3.0'"),
    ("topics: {t: {partitions: '1_0'}}", "topics.t.partitions: expected a number in the digits 0 to 9, got '1_0'"),
    ("topics: {t: {config: {retention.ms: '1_0'}}}", "topics.t.config.retention.ms: expected a number in the digits"),
    ("topics: {t: {config: {min.cleanable.dirty.ratio: '0.5_0'}}}", "topics.t.config.min.cleanable.dirty.ratio:"),
    ("broker: {num.partitions: true}", "broker.num.partitions: expected a whole number, got a boolean"),
    ("broker: {num.partitions: 0}", "broker.num.partitions: should be greater than or equal to 1, got 0"),
    ("broker: {auto.create.topics.enable: maybe}", "broker.auto.create.topics.enable: should be a valid boolean"),
    ("broker: {listeners: here}", "broker.listeners: expected NAME://host:port, got 'here'"),
    ("broker: {listeners: 'SSL://h:1'}", "broker.listeners: listener 'SSL://h:1': its name 'SSL' is not in listener."),
    ("broker: {listeners: 'PLAINTEXT://h:99999'}", "broker.listeners: expected host:port with a port up to 65535"),
    ("broker: {listeners: 'PLAINTEXT://0.0.0.0:9092'}", "broker.advertised.listeners: clients cannot connect to"),
    ("broker: {log.dirs: 'a,b'}", "broker.log.dirs: expected one directory"),
    ("broker: {compression.type: zsdt}", "broker.compression.type: unknown codec 'zsdt'; did you mean zstd?"),
    ("broker: 5", "broker: expected keys with values, got 5"),
    ("brokers: {}", "brokers: unknown section; did you mean broker?"),
    ("coordination: {plugin: zookeper}", "coordination.plugin: unknown coordination 'zookeper'; did you mean"),
    ("coordination: {zookeeper.conect: h}", "coordination.zookeeper.conect: unknown key; did you mean"),
    ("topics: {a/b: {}}", "topics.a/b: topic name 'a/b': only letters, digits"),
    ("topics: {..: {}}", "topics...: '..' is not a valid topic name"),
    ("topics: {t: {config: {retention.mss: 3}}}", "topics.t.config.retention.mss: unknown topic config; did"),
    ("topics: {t: {config: {retention.ms: x}}}", "topics.t.config.retention.ms: expected a whole number of ms"),
    ("topics: {t: {config: {cleanup.policy: shred}}}", "topics.t.config.cleanup.policy: should be delete, compact,"),
    ("topics: {t: {partition: 3}}", "topics.t.partition: unknown key; did you mean partitions?"),
    ("topics: {t: {schema: no.avsc}}", "topics.t.schema: no such file:"),
    ("topics: {t: {serde: avro, envelope: confluant}}", "topics.t.envelope: unknown envelope 'confluant'; did"),
    ("topics: {t: {serde: avor}}", "topics.t.serde: unknown serde 'avor'; did you mean 'avro'?"),
    ("topics: {t: {serde: avro, compatibilty: FULL}}", "topics.t.compatibilty: unknown key; did you mean"),
    ("topics: {t: {serde: avro, compatibility: SOME}}", "topics.t.compatibility: should be 'NONE', 'BACKWARD'"),
    ("producer: {acks: 2}", "producer.acks: should be all, 1 or 0, got 2"),
    ("producer: {acks: 1, enable.idempotence: true}", "producer.enable.idempotence: needs acks: all"),
    ("producer: {delivery.timeout.ms: 10}", "producer.delivery.timeout.ms: 10 is below linger.ms + request"),
    ("producer: {bootstrap.servers: localhost}", "producer.bootstrap.servers: expected host:port"),
    ("producer: {interceptors: [nope]}", "producer.interceptors.0.plugin: unknown producer interceptor 'nope'"),
    ("consumer: {group.protocol: clasic}", "consumer.group.protocol: should be 'registry' or 'classic', got 'clasic'"),
    ("consumer: {heartbeat.interval.ms: 60000}", "consumer.heartbeat.interval.ms: should be below session.timeout.ms"),
    ("consumer: {partition.assignment.strategy: best}", "consumer.partition.assignment.strategy: should be range or"),
    ("audit: {}", "audit: needs `plugin:` (there are: klamm"),
    ("audit: {plugin: klamm, window.minutes: 0}", "audit.window.minutes: should be greater than or equal to 1"),
    ("sinks: {s: {plugin: fils, topics: [t]}}", "sinks.s.plugin: unknown sink 'fils'; did you mean 'files'?"),
    ("sinks: {s: {topics: [t]}}", "sinks.s.plugin: is missing; it names one of: files, hadoop"),
    ("sinks: {s: {plugin: files, path: p}}", "sinks.s.topics: is required and missing"),
    ("sinks: {s: {plugin: files, path: p, topics: []}}", "sinks.s.topics: expected the name of at least one topic"),
    ("sinks: {s: {plugin: files, path: p, topics: t, topics.regex: t}}", "sinks.s.topics.regex: cannot be combined"),
    ("sinks: {s: {plugin: files, path: p, topics.regex: 't('}}", "sinks.s.topics.regex: is not a regular expression: "),
    ("sinks: {s: {plugin: files, topics: [t]}}", "sinks.s.path: is required and missing"),
    ("sinks: {s: {plugin: hadoop, topic: [t], path: p}}", "sinks.s.topic: unknown key; did you mean topics?"),
    ("sinks: {s: {plugin: hadoop, topics: [t], pth: p}}", "sinks.s.pth: unknown key; did you mean path?"),
    ("sinks: {s: {plugin: files, topics: [t], path: p, groupid: g}}", "sinks.s.groupid: unknown key; did you mean"),
    ("sinks: {s: {plugn: hadoop, topics: [t], path: p}}", "sinks.s.plugn: unknown key; did you mean plugin?"),
    ("coordination: {plugn: embedded}", "coordination.plugn: unknown key; did you mean plugin?"),
    ("audit: {plugins: klamm}", "audit.plugins: unknown key; did you mean plugin?"),
    ("producer: {interceptors: [{plugn: x}]}", "producer.interceptors.0.plugn: unknown key; did you mean plugin?"),
    ("producer: {ack: all}", "producer.ack: unknown key; did you mean acks?"),
    ("topics: {t: {serde: avro, partition: 3}}", "topics.t.partition: unknown key; did you mean partitions?"),
    ("plugins: {modules: false}", "plugins.modules: expected a list of module names"),
    ("plugins: {modules: [no.such.module]}", "plugins: plugin 'no.such.module'"),
    ("listeners: 'PLAINTEXT://:9092'", "listeners: unknown section; the key listeners belongs under `broker:`"),
    ("acks: all", "acks: unknown section; the key acks belongs under `producer:`"),
    ("coordination: zookeeper", "coordination: expected keys with values, got 'zookeeper'"),
    ("topics: {t: {retention.ms: 3}}", "topics.t.retention.ms: is a topic config: it belongs under this topic's"),
    ("topics: {t: {serde: avro, retention.ms: 3}}", "topics.t.retention.ms: is a topic config: it belongs under"),
    ("topics: {t: {serde: avro, record.class: Trip}}", "topics.t.record.class: should be module:Class, got 'Trip'"),
    ("producer: {partitioner: random}", "producer.partitioner: should be murmur2 or module:callable, got 'random'"),
    ("consumer: {group.id: ''}", "consumer.group.id: "),
    ("consumer: {interceptors: [{}]}", "consumer.interceptors.0.plugin: is missing; it names one of: none"),
    ("broker: {log.dirs: '${HOME'}", "broker.log.dirs: '${' is not closed by '}'"),
    ("plugins: {modules: [json]}", "plugins: plugin 'json' has no hook: none of its functions is marked"),
    ("producer: {client.id: '${KLAMM_NOPE}'}", "producer.client.id: environment variable KLAMM_NOPE is not set"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[text[:40] for text, _ in WRONG])
def test_what_is_wrong_is_one_line_with_file_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "klamm.yaml"
    path.write_text(f"# a comment\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(caught.value).startswith(f"klamm.yaml:2: {words}")
    assert "\n" not in str(caught.value)


def test_several_errors_are_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "klamm.yaml"
    path.write_text("broker:\n  broker.id: x\n  liseners: y\nproducer:\n  acks: 7\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "klamm.yaml:2", "klamm.yaml:3", "klamm.yaml:5",
    ]  # fmt: skip


@pytest.mark.parametrize("tree", [[], "text", 3])
def test_a_document_that_is_no_mapping(tmp_path: Path, tree: Any) -> None:
    path = tmp_path / "klamm.yaml"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"klamm.yaml: expected sections"):
        load_settings(path)
