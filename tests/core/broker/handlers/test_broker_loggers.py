"""KIP-412: the levels of a broker's loggers, read and changed while it runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import RunningBroker, running_broker
from klammtest.requests import new_topic, produce
from klammtest.wire import WireClient, part

PRODUCE = "klamm.core.broker.handlers.produce"
SAID = f"DEBUG {PRODUCE}: refused a batch"
LOGGER = 8
SET, DELETE, APPEND = 0, 1, 2
_PATIENCE_S = 60.0
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("loggers"), log={"levels": {"klamm.core.log": "ERROR"}}) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[Any]:
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def loggers(configs: Any = None) -> list[Any]:
    from kafka.admin import ConfigResource, ConfigResourceType

    return [ConfigResource(ConfigResourceType.BROKER_LOGGER, "0", configs)]


def levels(admin: Any) -> dict[str, str]:
    found = admin.describe_configs(loggers(), config_filter="all")["broker_logger"]["0"]
    assert {entry["config_source"] for entry in found.values()} <= {6, "DYNAMIC_BROKER_LOGGER_CONFIG"}
    return {name: entry["value"] for name, entry in found.items()}


def refuse_one(wire: WireClient) -> None:
    assert produce(wire, new_topic(wire), b"no batch").error_code is ErrorCode.invalid_record


def alter(wire: WireClient, *changes: tuple[str, int, str | None], broker: str = "0", dry: bool = False) -> Any:
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = tuple(
        part(api, 1, "AlterableConfig", name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    )
    resource = part(api, 1, "AlterConfigsResource", resource_type=LOGGER, resource_name=broker, configs=configs)
    return wire.call(api, 1, resources=(resource,), validate_only=dry).responses[0]


def test_kafka_python_reads_changes_and_resets_a_level(broker: RunningBroker, wire: WireClient, admin: Any) -> None:
    before = levels(admin)
    assert (before["root"], before[PRODUCE], before["klamm.core.log"]) == ("INFO", "INFO", "ERROR")
    refuse_one(wire)
    assert SAID not in broker.log()
    admin.alter_configs(loggers({"klamm.core.broker": "DEBUG"}))
    now = levels(admin)
    assert (now["klamm.core.broker"], now[PRODUCE], now["root"]) == ("DEBUG", "DEBUG", "INFO")
    refuse_one(wire)
    assert broker.log().count(SAID) == 1
    admin.reset_configs(loggers(["klamm.core.broker"]))
    assert levels(admin) == before
    refuse_one(wire)
    assert broker.log().count(SAID) == 1


def test_a_deleted_level_is_what_the_file_says(wire: WireClient, admin: Any) -> None:
    assert alter(wire, ("klamm.core.log", SET, "FATAL"), ("root", SET, "WARN")).error_code is ErrorCode.none
    now = levels(admin)
    assert (now["klamm.core.log"], now["root"], now[PRODUCE]) == ("FATAL", "WARN", "WARN")
    assert alter(wire, ("klamm.core.log", DELETE, None), ("root", SET, "INFO")).error_code is ErrorCode.none
    assert levels(admin)["klamm.core.log"] == "ERROR"


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ((PRODUCE, SET, "LOUD"), ErrorCode.invalid_config, "'LOUD' is no level (there are: TRACE, DEBUG, INFO, "),
        ((PRODUCE, SET, None), ErrorCode.invalid_request, "a value is missing for"),
        (("klamm.nobody", SET, "INFO"), ErrorCode.invalid_config, "logger 'klamm.nobody' does not exist"),
        ((PRODUCE, APPEND, "INFO"), ErrorCode.invalid_request, "a level is set or deleted, nothing else"),
        (("root", DELETE, None), ErrorCode.invalid_request, "the level of root cannot be deleted"),
    ],
)
def test_what_cannot_be_changes_nothing(
    wire: WireClient, admin: Any, change: tuple[str, int, str | None], code: ErrorCode, why: str
) -> None:
    before = levels(admin)
    answer = alter(wire, ("kazoo", SET, "DEBUG"), change)
    assert answer.error_code is code
    assert why in answer.error_message
    assert levels(admin) == before


def test_a_change_may_be_tried(wire: WireClient, admin: Any) -> None:
    before = levels(admin)
    assert alter(wire, (PRODUCE, SET, "DEBUG"), dry=True).error_code is ErrorCode.none
    assert levels(admin) == before


@pytest.mark.parametrize("name", ["", "1"])
def test_another_broker_s_loggers_are_asked_of_that_one(wire: WireClient, name: str) -> None:
    answer = alter(wire, (PRODUCE, SET, "DEBUG"), broker=name)
    assert answer.error_code is ErrorCode.invalid_request
    assert "ask it itself; this is broker 0" in answer.error_message


def test_a_restart_forgets_them_and_so_does_another_section_in_the_file(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with WireClient(broker.bootstrap) as wire:
            assert alter(wire, (PRODUCE, SET, "DEBUG")).error_code is ErrorCode.none
            content = yaml.safe_load(broker.config_path.read_text())
            broker.config_path.write_text(yaml.safe_dump({**content, "log": {"level": "WARNING"}}))
            os.kill(broker.pid, signal.SIGHUP)
            deadline = time.monotonic() + _PATIENCE_S
            while described(wire)["root"] != "WARN":
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert described(wire)[PRODUCE] == "WARN"
            assert alter(wire, (PRODUCE, SET, "ERROR")).error_code is ErrorCode.none
        broker.restart()
        with WireClient(broker.bootstrap) as wire:
            assert described(wire)[PRODUCE] == "WARN"


def described(wire: WireClient) -> dict[str, str]:
    resource = part(
        ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsResource",
        resource_type=LOGGER, resource_name="0", configuration_keys=None,
    )  # fmt: skip
    answer = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,)).results[0]
    assert answer.error_code is ErrorCode.none
    return {entry.name: entry.value for entry in answer.configs}
