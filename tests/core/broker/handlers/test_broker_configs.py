"""A broker's configuration while it runs: from its file, read again, and from the cluster (KIP-226)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from klamm.core.config.dynamic import DEFINITIONS, DYNAMIC_KEYS
from klamm.core.config.kafka_keys import BROKER_KEYS
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import ENVIRONMENT, KLAMM, RunningBroker, running_broker
from klammtest.requests import batch, metadata, new_topic, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

LARGE = batch(b"x" * 5000)
_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("configs")
    with running_broker(folder, log={"format": "json"}) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def admin(broker: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def change_file(broker: RunningBroker, section: str = "broker", **changes: Any) -> None:
    """Set keys of the file (underscores for dots); None takes one out."""
    content = yaml.safe_load(broker.config_path.read_text())
    for name, value in changes.items():
        content[section][name.replace("_", ".")] = value
        if value is None:
            del content[section][name.replace("_", ".")]
    broker.config_path.write_text(yaml.safe_dump(content))


def reload(broker: RunningBroker) -> subprocess.CompletedProcess[str]:
    command = [KLAMM, "config", "reload", "--config", str(broker.config_path)]
    return subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=_PATIENCE_S, check=False)


def described(admin: AdminClient) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")
    (future,) = admin.describe_configs([resource]).values()
    return future.result(_PATIENCE_S)


def alter(admin: AdminClient, name: str, **changes: str | None) -> None:
    """As the cluster's word for a broker; None: no word."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]
    resource = ConfigResource(ConfigResource.Type.BROKER, name, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(_PATIENCE_S)


def alter_all(wire: WireClient, key: str, value: str | None) -> None:
    """As the cluster's word for all brokers, which confluent-kafka has no way to give."""
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = part(api, 1, "AlterableConfig", name=key, config_operation=1 if value is None else 0, value=value)
    resource = part(api, 1, "AlterConfigsResource", resource_type=4, resource_name="", configs=(change,))
    answer = wire.call(api, 1, resources=(resource,), validate_only=False).responses[0]
    assert answer.error_code is ErrorCode.none, answer


def described_for_all(wire: WireClient) -> dict[str, tuple[str, int]]:
    api = ApiKey.DESCRIBE_CONFIGS
    resource = part(api, 4, "DescribeConfigsResource", resource_type=4, resource_name="", configuration_keys=None)
    (result,) = wire.call(api, 4, resources=(resource,)).results
    return {config.name: (config.value, config.config_source) for config in result.configs}


def said(broker: RunningBroker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]


def test_a_reload_applies_what_it_can_and_names_the_rest(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        assert produce(wire, topic, LARGE).error_code is ErrorCode.none
        change_file(broker, message_max_bytes=1000, num_io_threads=3, max_connections=2)
        done = reload(broker)
        assert (done.returncode, done.stderr) == (0, "")
        assert "message.max.bytes is '1000' now" in done.stdout
        assert "max.connections is '2' now" in done.stdout
        assert "needs a restart: num.io.threads\n" in done.stdout
        assert produce(wire, topic, LARGE).error_code is ErrorCode.message_too_large
        with WireClient(broker.bootstrap) as second, WireClient(broker.bootstrap) as third:
            assert metadata(second, []).brokers
            assert third.closed()
        change_file(broker, message_max_bytes=None, max_connections=None, num_io_threads=None)
        os.kill(broker.pid, signal.SIGHUP)
        eventually(lambda: produce(wire, topic, LARGE).error_code is ErrorCode.none, "the default holds again")


def test_a_wrong_file_changes_nothing(broker: RunningBroker) -> None:
    before = broker.config_path.read_text()
    try:
        change_file(broker, message_max_bytes=1000, max_connection=5)
        done = reload(broker)
        assert done.returncode == 2
        assert "broker.max.connection: unknown key; did you mean max.connections?" in done.stderr
        os.kill(broker.pid, signal.SIGHUP)
        refused = "not reloaded, nothing has changed"
        eventually(lambda: any(refused in row["message"] for row in said(broker)), "the file is refused")
        (row,) = [row for row in said(broker) if "not reloaded" in row["message"]]
        assert "broker.max.connection: unknown key" in row["message"]
        assert row["level"] == "ERROR"
        with WireClient(broker.bootstrap) as wire:
            assert produce(wire, new_topic(wire), LARGE).error_code is ErrorCode.none
    finally:
        broker.config_path.write_text(before)


def test_levels_are_reloaded(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        change_file(broker, "log", levels={"klamm.core.broker.handlers": "error"})
        assert '"klamm.core.broker.handlers":"ERROR"' in reload(broker).stdout
        silent = new_topic(wire)
        change_file(broker, "log", levels=None)
        assert reload(broker).returncode == 0
        heard = new_topic(wire)
    rows = [row for row in said(broker) if row["message"].startswith("created topic")]
    names = [row["message"].split()[2].rstrip(":") for row in rows]
    assert [name for name in names if name in (silent, heard)] == [heard]
    assert rows[-1].keys() >= {"time", "level", "logger", "message"}


def test_a_closed_connection_has_its_fields(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        wire.send_raw(b"\xff\xff\xff\xff")
        assert wire.closed()
    eventually(lambda: any(row.get("event") == "connection closed" for row in said(broker)), "it is said")
    (row,) = [row for row in said(broker) if row.get("event") == "connection closed"]
    assert row["client"].startswith("127.0.0.1:")
    assert row["connection"] > 0


def test_the_clusters_word_goes_before_the_file(broker: RunningBroker, admin: AdminClient) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        alter_all(wire, "message.max.bytes", "1000")
        assert produce(wire, topic, LARGE).error_code is ErrorCode.message_too_large
        alter(admin, "0", message_max_bytes="9000", log_cleaner_threads="2")
        assert produce(wire, topic, LARGE).error_code is ErrorCode.none
        entries = described(admin)
        assert entries["message.max.bytes"].value == "9000"
        assert entries["message.max.bytes"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        assert entries["log.cleaner.threads"].value == "2"
        change_file(broker, message_max_bytes=500)
        assert "set in the cluster, which goes before the file: message.max.bytes" in reload(broker).stdout
        assert described_for_all(wire) == {"message.max.bytes": ("1000", 3)}
    broker.restart()
    with WireClient(broker.bootstrap) as wire:
        assert produce(wire, topic, LARGE).error_code is ErrorCode.none
        alter(admin, "0", message_max_bytes=None, log_cleaner_threads=None)
        alter_all(wire, "message.max.bytes", None)
        assert produce(wire, topic, LARGE).error_code is ErrorCode.message_too_large
        assert described(admin)["message.max.bytes"].source == ConfigSource.STATIC_BROKER_CONFIG.value
        change_file(broker, message_max_bytes=None)
        assert reload(broker).returncode == 0


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("listeners", "PLAINTEXT://127.0.0.1:1", "cannot be changed while the broker runs"),
        ("max_connection", "5", "did you mean max.connections?"),
        ("max_connections", "many", "max.connections: should be a valid integer"),
        ("compression_type", "brotli", "'brotli' is no codec"),
    ],
)
def test_a_wrong_word_is_refused(admin: AdminClient, key: str, value: str, why: str) -> None:
    with pytest.raises(KafkaException) as refused:
        alter(admin, "0", **{key: value})
    error = refused.value.args[0]
    assert error.code() == ErrorCode.invalid_request.value
    assert why in error.str()


def test_what_is_read_only_is_said(admin: AdminClient) -> None:
    entries = described(admin)
    assert {name for name, entry in entries.items() if not entry.is_read_only and name in DEFINITIONS} == DYNAMIC_KEYS
    assert entries.keys() == DEFINITIONS.keys() | {name for name, key in BROKER_KEYS.items() if not key.internal}


KERBEROS, MOVES = "sasl.kerberos.min.time.before.relogin", "replica.alter.log.dirs.io.max.bytes.per.second"


def test_kafkas_other_keys_are_kept_and_shown_or_refused_with_a_reason(
    broker: RunningBroker, admin: AdminClient
) -> None:
    with WireClient(broker.bootstrap) as wire:
        alter_all(wire, MOVES, "1000")
        assert described_for_all(wire) == {MOVES: ("1000", 3)}
        alter(admin, "0", **{KERBEROS: "70000"})
        entries = described(admin)
        assert (entries[KERBEROS].value, entries[MOVES].value) == ("70000", "1000")
        assert entries[KERBEROS].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        alter(admin, "0", **{KERBEROS: None})
        alter_all(wire, MOVES, None)
        assert described_for_all(wire) == {}
    entries = described(admin)
    assert (entries[KERBEROS].value, entries[MOVES].value) == ("60000", str(2**63 - 1))
    assert (entries["node.id"].value, entries["group.coordinator.rebalance.protocols"].value) == ("0", "classic")
    assert (entries["ssl.key.password"].is_sensitive, entries["ssl.key.password"].value) == (True, None)
    for key, value, why in (
        ("ssl.keystore.location", "/k", "ssl.keystore.location: Klamm has no TLS yet"),
        (KERBEROS, "soon", f"{KERBEROS}: should be a whole number, got 'soon'"),
        ("num.replica.alter.log.dirs.threads", "3", "cannot be changed while the broker runs"),
        ("nobody.knows.this", "", "nobody.knows.this: unknown broker config"),
    ):
        with pytest.raises(KafkaException) as refused:
            alter(admin, "0", **{key: value})
        assert why in refused.value.args[0].str()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MOVES, None),
        ("ssl.keystore.location", None),
        ("log.dirs", None),
        ("nobody.knows.this", None),
        ("broker.id", "0"),
        ("node.id", "0"),
        ("process.roles", ""),
    ],
)
def test_what_changes_nothing_is_no_error(admin: AdminClient, key: str, value: str | None) -> None:
    before = described(admin)
    alter(admin, "0", **{key: value})
    assert {name: entry.value for name, entry in described(admin).items()} == {
        name: entry.value for name, entry in before.items()
    }


def test_a_key_of_the_file_without_effect_is_shown_and_named_in_the_log(
    broker: RunningBroker, admin: AdminClient
) -> None:
    change_file(broker, num_network_threads=5)
    assert "nothing has changed" in reload(broker).stdout
    entry = described(admin)["num.network.threads"]
    assert (entry.value, entry.source) == ("5", ConfigSource.STATIC_BROKER_CONFIG.value)
    broker.restart()
    assert any(row["message"].endswith("no effect here: num.network.threads") for row in said(broker))
    change_file(broker, num_network_threads=None)
    assert reload(broker).returncode == 0
