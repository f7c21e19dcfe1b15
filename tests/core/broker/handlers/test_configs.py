from __future__ import annotations

from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import batch, new_topic, produce
from klammtest.wire import WireClient, part

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    wire: WireClient, kind: int, name: str, keys: tuple[str, ...] | None = None, version: int = 4, **more: Any
) -> Any:
    resource = part(
        ApiKey.DESCRIBE_CONFIGS, version, "DescribeConfigsResource",
        resource_type=kind, resource_name=name, configuration_keys=keys,
    )  # fmt: skip
    return wire.call(ApiKey.DESCRIBE_CONFIGS, version, resources=(resource,), **more).results[0]


def alter(wire: WireClient, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, **more: Any) -> Any:
    configs = tuple(
        part(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "AlterableConfig", name=key, config_operation=how, value=value)
        for key, how, value in changes
    )
    resource = part(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "AlterConfigsResource",
        resource_type=kind, resource_name=name, configs=configs,
    )  # fmt: skip
    fields = {"validate_only": False, **more}
    return wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=(resource,), **fields).responses[0]


def value_of(wire: WireClient, topic: str, key: str) -> tuple[str, int]:
    (config,) = describe(wire, TOPIC, topic, (key,)).configs
    return config.value, config.config_source


@pytest.mark.parametrize("version", range(SERVED[ApiKey.DESCRIBE_CONFIGS][0], SERVED[ApiKey.DESCRIBE_CONFIGS][1] + 1))
def test_every_version_describes_a_topic(wire: WireClient, version: int) -> None:
    answer = describe(wire, TOPIC, "small", version=version, include_synonyms=True)
    assert answer.error_code is ErrorCode.none
    configs = {c.name: c for c in answer.configs}
    small = configs["max.message.bytes"]
    assert (small.value, small.config_source, small.read_only) == ("1000", 1, False)
    assert [(s.name, s.value, s.source) for s in small.synonyms] == [
        ("max.message.bytes", "1000", 1),
        ("max.message.bytes", "1048588", 5),
    ]
    assert configs["retention.ms"].config_source == 5


def test_documentation_and_types_come_when_asked_for(wire: WireClient) -> None:
    (plain,) = describe(wire, TOPIC, "small", ("retention.ms",)).configs
    assert plain.documentation is None
    (full,) = describe(wire, TOPIC, "small", ("retention.ms",), include_documentation=True).configs
    assert full.documentation
    assert full.config_type == 5


def test_a_broker_describes_itself(wire: WireClient) -> None:
    (listeners,) = describe(wire, BROKER, "0", ("listeners",)).configs
    assert (listeners.read_only, listeners.config_source) == (True, 4)
    assert describe(wire, BROKER, "").configs == ()


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", ErrorCode.unknown_topic_or_partition),
        (BROKER, "7", ErrorCode.invalid_request),
        (GROUP, "g", ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_described(wire: WireClient, kind: int, name: str, error: ErrorCode) -> None:
    answer = describe(wire, kind, name)
    assert answer.error_code is error
    assert answer.error_message


def test_a_change_applies_to_the_running_log(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire)
    large = batch(b"x" * 5000)
    assert produce(wire, topic, large).error_code is ErrorCode.none
    assert alter(wire, topic, ("max.message.bytes", SET, "1000")).error_code is ErrorCode.none
    assert produce(wire, topic, large).error_code is ErrorCode.message_too_large
    assert value_of(wire, topic, "max.message.bytes") == ("1000", 1)
    assert alter(wire, topic, ("max.message.bytes", DELETE, None)).error_code is ErrorCode.none
    assert produce(wire, topic, large).error_code is ErrorCode.none
    assert value_of(wire, topic, "max.message.bytes") == ("1048588", 5)


def test_lists_are_added_to_and_taken_from(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert alter(wire, topic, ("cleanup.policy", APPEND, "compact")).error_code is ErrorCode.none
    assert value_of(wire, topic, "cleanup.policy")[0] in ("delete,compact", "compact,delete")
    assert alter(wire, topic, ("cleanup.policy", SUBTRACT, "delete")).error_code is ErrorCode.none
    assert value_of(wire, topic, "cleanup.policy")[0] == "compact"


def test_validate_only_changes_nothing(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert alter(wire, topic, ("retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert value_of(wire, topic, "retention.ms") == ("604800000", 5)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("retention.mss", SET, "5"), ErrorCode.invalid_config),
        (("retention.ms", SET, "soon"), ErrorCode.invalid_config),
        (("retention.ms", SET, None), ErrorCode.invalid_request),
        (("retention.ms", APPEND, "5"), ErrorCode.invalid_config),
        (("compression.type", SET, "brotli"), ErrorCode.invalid_config),
        (("retention.ms", 9, "5"), ErrorCode.invalid_request),
    ],
)
def test_a_wrong_change_is_refused(
    broker: RunningBroker, wire: WireClient, change: tuple[str, int, str | None], error: ErrorCode
) -> None:
    topic = new_topic(wire)
    answer = alter(wire, topic, change)
    assert answer.error_code is error
    assert answer.error_message
    assert value_of(wire, topic, "retention.ms") == ("604800000", 5)


def test_only_topics_that_are_there_can_be_altered(wire: WireClient) -> None:
    change = ("retention.ms", SET, "5")
    assert alter(wire, "nowhere", change).error_code is ErrorCode.unknown_topic_or_partition
    assert alter(wire, "7", change, kind=BROKER).error_code is ErrorCode.invalid_request
    assert alter(wire, "events", change, change).error_code is ErrorCode.invalid_request


def test_a_change_outlives_a_restart(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        alter(wire, topic, ("max.message.bytes", SET, "1000"))
    broker.restart()
    with WireClient(broker.bootstrap) as wire:
        assert produce(wire, topic, batch(b"x" * 5000)).error_code is ErrorCode.message_too_large
