"""Offsets by timestamp, when the log grows while they are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from klamm.core.records.partition import TopicPartition
from klamm.hadoop.options import parse_options
from klamm.hadoop.spark.cluster import Ends, ending_offsets, starting_offsets

TP = TopicPartition("t", 0)
GIVEN = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


class Grown:
    """`ClusterClient.list_offsets`: the first record that is that late is at this offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(times, (self._offset, 0))


@pytest.mark.parametrize(("found", "expected"), [(7, 7), (10, 10), (12, 10), (-1, 10)])
def test_an_offset_by_time_is_not_behind_the_end_that_was_asked_for_before(found: int, expected: int) -> None:
    """What came meanwhile is not of this read: it is no data loss."""
    client: Any = Grown(found)
    ends = Ends({TP: 0}, {TP: 10})
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    starting = parse_options({**GIVEN, **latest, "startingTimestamp": "5"})
    assert starting_offsets(client, starting, [TP], ends) == {TP: expected}
    ending = parse_options({**GIVEN, "endingTimestamp": "5"})
    assert ending_offsets(client, ending, [TP], ends) == {TP: expected}
