"""The rest of a batch read after filters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.spark.filters import PushedFilters

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
RANGES = [OffsetRange(tp, 10, 50) for tp in (A0, A1, B0)]


class Times:
    """`ClusterClient.list_offsets`: the record at offset n is of n ms; partition b-0 has none that late."""

    def __init__(self) -> None:
        self.asked: dict[TopicPartition, int] = {}

    def list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, tuple[int, int]]:
        self.asked.update(times)
        return {tp: (-1, -1) if tp == B0 else (time, time) for tp, time in times.items()}


def left(*filters: Filter) -> tuple[dict[str, tuple[int, int]], list[Filter]]:
    pushed = PushedFilters()
    rest = pushed.push(filters)
    client: Any = Times()
    return {str(r.partition): (r.start, r.end) for r in pushed.narrow(client, RANGES) if r.size}, rest


WHOLE = (10, 50)
EVERY = {"a-0": WHOLE, "a-1": WHOLE, "b-0": WHOLE}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("topic",), "a")], {"a-0": WHOLE, "a-1": WHOLE}),
        ([EqualTo(("topic",), "a"), EqualTo(("partition",), 1)], {"a-1": WHOLE}),
        ([In(("topic",), ("b", "c"))], {"b-0": WHOLE}),
        ([Not(EqualTo(("topic",), "a"))], {"b-0": WHOLE}),
        ([GreaterThan(("partition",), 0)], {"a-1": WHOLE}),
        ([Not(In(("partition",), (0, 2)))], {"a-1": WHOLE}),
        ([EqualTo(("offset",), 12)], dict.fromkeys(EVERY, (12, 13))),
        ([GreaterThan(("offset",), 12), LessThanOrEqual(("offset",), 20)], dict.fromkeys(EVERY, (13, 21))),
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 12)], dict.fromkeys(EVERY, (10, 12))),
        ([EqualTo(("offset",), 3)], {}),
        ([EqualTo(("offset",), 60)], {}),
    ],
)
def test_topics_partitions_and_offsets_are_applied_in_full(
    filters: list[Filter], expected: dict[str, tuple[int, int]]
) -> None:
    assert left(*filters) == (expected, [])


def test_a_timestamp_moves_the_start_and_is_left_to_spark_too() -> None:
    at = GreaterThan(("timestamp",), datetime.fromtimestamp(0.0205, UTC))
    assert left(at) == ({"a-0": (20, 50), "a-1": (20, 50)}, [at])
    before = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(0.005, UTC))
    assert left(before)[0] == {"a-0": WHOLE, "a-1": WHOLE}


@pytest.mark.parametrize(
    "one",
    [
        LessThan(("timestamp",), datetime.fromtimestamp(0.02, UTC)),
        GreaterThan(("timestamp",), "soon"),
        EqualTo(("partition",), None),
        EqualTo(("partition",), True),
        In(("partition",), (0, None)),
        In(("offset",), (12, 14)),
        EqualTo(("value",), b"x"),
        EqualTo(("value", "offset"), 1),
        Not(EqualTo(("offset",), 12)),
        IsNotNull(("topic",)),
    ],
)
def test_what_cannot_be_applied_is_left_to_spark(one: Filter) -> None:
    assert left(one) == (EVERY, [one])
