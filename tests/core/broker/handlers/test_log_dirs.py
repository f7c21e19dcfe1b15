"""DescribeLogDirs: what is on this broker's disk, over every version."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import batch, new_topic, produce
from klammtest.wire import WireClient, part

LOW, HIGH = SERVED[ApiKey.DESCRIBE_LOG_DIRS]


def described(wire: WireClient, version: int, topics: dict[str, tuple[int, ...]] | None = None) -> Any:
    named = None if topics is None else tuple(
        part(ApiKey.DESCRIBE_LOG_DIRS, version, "DescribableLogDirTopic", topic=topic, partitions=numbers)
        for topic, numbers in topics.items()
    )  # fmt: skip
    (result,) = wire.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=named).results
    return result


@pytest.mark.parametrize("version", range(LOW, HIGH + 1))
def test_sizes_of_replicas(broker: RunningBroker, wire: WireClient, version: int) -> None:
    topic = new_topic(wire, partitions=2)
    produce(wire, topic, batch(b"x" * 1000))
    result = described(wire, version, {topic: (0, 1, 7), "nowhere": (0,)})
    assert result.error_code is ErrorCode.none
    assert result.log_dir == str(broker.log_dir)
    (found,) = result.topics
    assert found.name == topic
    sizes = {p.partition_index: p.partition_size for p in found.partitions}
    assert sizes.keys() == {0, 1}
    assert sizes[0] > 1000
    assert sizes[1] == 0
    assert all((p.offset_lag, p.is_future_key) == (0, False) for p in found.partitions)
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes


def test_null_asks_for_all_replicas_and_an_empty_list_for_none(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert topic in {t.name for t in described(wire, HIGH).topics}
    assert described(wire, HIGH, {}).topics == ()
