"""Interceptors see records and commits; one that raises is counted and passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.core.client.consumer.values import Interception
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import ConsumerRecord


class Dropping:
    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Nothing to see."""


class Raising(Dropping):
    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        raise RuntimeError("planted")


def test_in_order_and_past_one_that_raises() -> None:
    records = [ConsumerRecord("t", 0, offset, 0, None, b"") for offset in range(4)]
    chain = Interception([Raising(), Dropping()])
    assert [record.offset for record in chain.on_consume(records)] == [1, 3]
    assert chain.errors == 1
