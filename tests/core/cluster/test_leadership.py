"""Who leads when brokers come and go."""

from __future__ import annotations

from uuid import UUID

import pytest

from klamm.core.cluster.image import NO_LEADER, BrokerNode, ClusterImage, PartitionImage, TopicImage
from klamm.core.cluster.leadership import elections
from klamm.core.records.partition import TopicPartition

T0 = TopicPartition("t", 0)


def image(live: set[int], partition: PartitionImage) -> ClusterImage:
    brokers = {number: BrokerNode(number, "127.0.0.1", 9092 + number, 1) for number in live}
    return ClusterImage("c", 0, brokers, {"t": TopicImage("t", UUID(int=1), {0: partition})})


@pytest.mark.parametrize(
    ("live", "before", "after"),
    [
        pytest.param({0, 1}, (0, 5, (0, 1)), None, id="a live leader stays"),
        pytest.param({1}, (0, 5, (0, 1)), (1, 6, (1,)), id="the next in sync takes over"),
        pytest.param({1, 2}, (0, 5, (0, 2)), (2, 6, (2,)), id="one out of sync does not"),
        pytest.param({1}, (0, 5, (0, 2)), (NO_LEADER, 6, (0, 2)), id="nobody in sync is live"),
        pytest.param({1}, (NO_LEADER, 6, (0, 2)), None, id="still nobody"),
        pytest.param({0, 1}, (NO_LEADER, 6, (0, 2)), (0, 7, (0,)), id="one in sync comes back"),
        pytest.param(set(), (0, 5, (0,)), (NO_LEADER, 6, (0,)), id="nobody at all"),
    ],
)
def test_elections(
    live: set[int], before: tuple[int, int, tuple[int, ...]], after: tuple[int, int, tuple[int, ...]] | None
) -> None:
    replicas = (0, 1, 2)
    found = elections(image(live, PartitionImage(before[0], before[1], replicas, before[2])))
    expected = {} if after is None else {T0: PartitionImage(after[0], after[1], replicas, after[2])}
    assert found == expected
