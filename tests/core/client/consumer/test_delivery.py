"""From the bytes of a fetch to records, where Kafka's brokers answer differently from ours."""

from __future__ import annotations

import pytest

from klamm.core.client.consumer.delivery import BuiltRecords, Converted, Decoding, Delivery
from klamm.core.client.consumer.node_fetcher import chunk_of
from klamm.core.client.consumer.positions import Positions
from klamm.core.groups.membership.member import Owned
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import RecordColumns
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize("cut", [0, 1, 11, 21, 60, 61, 70])
def test_a_batch_that_was_cut_off_ends_the_answer(cut: int, codecs: CodecTable) -> None:
    """Kafka fills an answer up to its limit, wherever in a batch, or in a batch's header, that is."""
    first = encode_batch([(0, None, b"a", ()), (0, None, b"b", ())])
    second = encode_batch([(0, None, b"c" * 100, ())], base_offset=2)
    positions = Positions()
    positions.add([Owned(PARTITION, 0, -1)])
    state = positions.states[PARTITION]
    state.move(0)
    chunk = chunk_of(PARTITION, 0, first + second[:cut])
    assert chunk is not None
    assert chunk.end == 2, "the next fetch begins at the batch that was cut off"
    state.chunks.append(chunk)
    delivery = Delivery(positions, Decoding(codecs, 1 << 20), lambda _: True, lambda *_: None)

    def values(_: TopicPartition, columns: RecordColumns, __: bool) -> Converted[list[bytes | None]]:
        return Converted(list(columns.values), len(columns.offsets))

    taken = delivery.take(10, 0.0, values, lambda runs: BuiltRecords([v for _, run in runs for v in run], len(runs)))
    assert taken == [b"a", b"b"]
    assert not state.chunks
