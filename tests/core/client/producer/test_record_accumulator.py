from __future__ import annotations

import threading
from collections import deque

import pytest

from klamm.core.client.producer.batch import EncodedRows
from klamm.core.client.producer.partition_queue import PartitionQueue
from klamm.core.client.producer.record_accumulator import (
    BufferFullError,
    Buffering,
    ProducerClosedError,
    RecordAccumulator,
)
from klamm.core.client.producer.record_future import RecordFuture
from klamm.core.client.producer.table_future import TableFuture
from klamm.core.records.partition import TopicPartition


class Box:
    """An accumulator, one queue, and a clock that the test moves."""

    def __init__(self, linger_s: float = 1.0, memory: int = 1000, max_block_s: float = 0.02) -> None:
        self.now = 10.0
        self.wakes = 0
        self.accumulator = RecordAccumulator(
            Buffering(linger_s, memory, max_block_s), wake=self.wake, clock=lambda: self.now
        )
        self.queue = PartitionQueue(TopicPartition("t", 0), 100, 5, None)

    def wake(self) -> None:
        self.wakes += 1
        if self.wakes > 100:
            self.now += 1  # somebody waits for room: time goes on

    def append(self, size: int = 40, *, bounded: bool = True) -> RecordFuture:
        return self.accumulator.append(self.queue, 1, None, b"v", (), size, bounded=bounded)

    def settle(self) -> None:
        batch = self.accumulator.take(self.queue, self.now, 10**9)
        assert batch is not None
        self.queue.stored(batch, 0)
        batch.outcome.acknowledge(batch.first, batch.end, 0)
        self.accumulator.release(batch.size, batch.outcome)


def test_records_fill_a_batch_up_to_its_size() -> None:
    box = Box()
    for _ in range(5):
        box.append()
    assert [batch.count for batch in box.queue.waiting] == [2, 2, 1]
    assert [batch.closed for batch in box.queue.waiting] == [True, True, False]
    assert box.accumulator.used_bytes == 200


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    box = Box()
    box.append(500)
    box.append(10)
    assert [batch.count for batch in box.queue.waiting] == [1, 1]


def test_a_batch_waits_for_linger_unless_it_is_full() -> None:
    box = Box()
    box.append()
    ready = box.accumulator.ready(box.now)
    assert (ready.queues, ready.next_s) == ([], 11.0)
    assert box.accumulator.take(box.queue, box.now, 1000) is None
    assert box.accumulator.ready(11.0).queues == [box.queue]
    box.append(60)
    assert box.accumulator.ready(box.now).queues == [box.queue]


def test_the_sender_is_woken_by_a_new_batch_and_by_a_full_one_only() -> None:
    box = Box()
    box.append(10)
    box.append(10)
    box.append(10)
    assert box.wakes == 1
    box.append(70)
    assert box.wakes == 2


def test_a_batch_over_the_room_of_a_request_waits_for_the_next() -> None:
    box = Box(linger_s=0)
    box.append(60)
    assert box.accumulator.take(box.queue, box.now, 59) is None
    assert box.accumulator.take(box.queue, box.now, 60) is not None


def test_a_full_buffer_raises_after_max_block() -> None:
    box = Box(memory=100)
    box.append(60)
    with pytest.raises(BufferFullError, match=r"buffer.memory \(100 bytes\) was full for max.block.ms \(20 ms\)"):
        box.append(60)
    assert box.accumulator.used_bytes == 60


def test_room_that_comes_is_used_and_somebody_who_waits_makes_haste() -> None:
    box = Box(memory=100, max_block_s=10)
    box.append(60)
    appended: list[RecordFuture] = []
    thread = threading.Thread(target=lambda: appended.append(box.append(60)))
    thread.start()
    while not box.accumulator.ready(box.now).queues:
        pass
    box.settle()
    thread.join(60)
    assert len(appended) == 1
    assert box.accumulator.used_bytes == 60


def test_a_full_buffer_takes_what_it_would_wait_for() -> None:
    box = Box(memory=100)
    box.append(100)
    box.append(60, bounded=False)
    assert box.accumulator.used_bytes == 160
    box.accumulator.close()
    with pytest.raises(ProducerClosedError):
        box.append(1, bounded=False)


def test_batches_of_a_table_wake_the_sender_once_and_those_without_room_are_left() -> None:
    box = Box(memory=250, max_block_s=0)
    future = TableFuture("t")
    batches = deque([(box.queue, EncodedRows(bytearray(100), 3, 0, 0, ())) for _ in range(2)])
    with future.more(batches):
        box.accumulator.append_rows(batches, future.settled)
    assert (len(batches), box.wakes, box.accumulator.used_bytes) == (0, 1, 200)
    box.settle()
    batches.extend((box.queue, EncodedRows(bytearray(100), count, 0, 0, ())) for count in (4, 5, 6))
    with pytest.raises(BufferFullError), future.more(batches):
        box.accumulator.append_rows(batches, future.settled)
    assert [encoded.count for _, encoded in batches] == [5, 6]
    future.complete(BufferFullError("full"))
    assert not future.done()
    box.settle()
    box.settle()
    assert isinstance(future.exception(0), BufferFullError)
    assert future.metadata.records == 3 + 3 + 4


def test_a_flush_makes_everything_ready_and_says_what_is_left() -> None:
    box = Box()
    box.append()
    assert box.accumulator.flush(0.0) == 1
    assert not box.accumulator.ready(box.now).queues
    done = threading.Event()
    thread = threading.Thread(target=lambda: (box.accumulator.flush(None), done.set()))
    thread.start()
    while not box.accumulator.ready(box.now).queues:
        pass
    box.settle()
    assert done.wait(60)
    thread.join()
    assert box.accumulator.idle


def test_closed_takes_no_more_and_hurries() -> None:
    box = Box()
    box.append()
    box.accumulator.close()
    with pytest.raises(ProducerClosedError):
        box.append()
    assert box.accumulator.ready(box.now).queues == [box.queue]
    assert len(box.accumulator.unsettled()) == 1


def test_old_batches_expire_waiting_or_in_flight() -> None:
    box = Box(linger_s=0)
    box.append()
    box.accumulator.take(box.queue, box.now, 1000)
    box.now = 20.0
    box.append()
    assert box.accumulator.oldest_s() == 10.0
    assert [batch.created_s for _, batch in box.accumulator.expired(15.0)] == [10.0]
    assert len(box.accumulator.expired(21.0)) == 2


def test_partitions_with_nothing_left_are_forgotten() -> None:
    box = Box(linger_s=0)
    box.append()
    box.settle()
    assert box.accumulator.ready(box.now).queues == []
    assert box.accumulator.idle
    assert box.accumulator.oldest_s() == float("inf")


def test_a_record_that_comes_while_batches_are_closed_is_in_another_batch() -> None:
    box = Box()
    box.append()
    [(queue, batch)] = box.accumulator.close_batches()
    box.append()
    assert queue is box.queue
    assert (batch.closed, batch.count) == (True, 1)
    assert [waiting.count for waiting in queue.waiting] == [1, 1]
