from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from klamm.core.client.producer.record_future import BatchOutcome, RecordFuture, failed_future
from klamm.core.errors import DeliveryError
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import RecordMetadata

PARTITION = TopicPartition("t", 3)


def outcome(count: int = 3) -> tuple[BatchOutcome, list[RecordFuture]]:
    made = BatchOutcome(PARTITION)
    made.count = count
    return made, [RecordFuture(made, index, 100 + index) for index in range(count)]


def test_a_result_says_where_the_record_is() -> None:
    batch, futures = outcome()
    assert not futures[1].done()
    assert futures[1].running()
    batch.acknowledge(0, 3, 40)
    assert futures[1].result() == RecordMetadata("t", 3, 41, 101)
    assert futures[1].exception() is None
    assert batch.complete


def test_the_brokers_own_time_wins() -> None:
    batch, futures = outcome()
    batch.acknowledge(0, 3, 40, 999)
    assert futures[2].result() == RecordMetadata("t", 3, 42, 999)


def test_an_offset_that_is_not_known_is_minus_one() -> None:
    batch, futures = outcome()
    batch.acknowledge(0, 3, -1)
    assert futures[2].result().offset == -1


def test_a_failure_is_raised() -> None:
    batch, futures = outcome()
    batch.fail(0, 3, DeliveryError("gone"))
    with pytest.raises(DeliveryError, match="gone"):
        futures[0].result()
    assert isinstance(futures[0].exception(), DeliveryError)


def test_a_batch_may_be_settled_in_parts() -> None:
    batch, futures = outcome(4)
    batch.acknowledge(0, 2, 10)
    assert [future.done() for future in futures] == [True, True, False, False]
    assert not batch.wait(0)
    batch.fail(2, 4, DeliveryError("half"))
    assert futures[1].result().offset == 11
    with pytest.raises(DeliveryError):
        futures[3].result(0)
    assert batch.wait(0)


def test_waiting_has_a_limit() -> None:
    _, futures = outcome()
    with pytest.raises(TimeoutError):
        futures[0].result(0.01)


def test_a_waiting_thread_is_woken_by_its_own_part_only() -> None:
    batch, futures = outcome(2)
    got: list[RecordMetadata] = []
    thread = threading.Thread(target=lambda: got.append(futures[1].result(60)))
    thread.start()
    batch.acknowledge(0, 1, 5)
    batch.acknowledge(1, 2, 50)
    thread.join(60)
    assert [metadata.offset for metadata in got] == [50]


def test_callbacks_run_once_and_one_that_raises_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    batch, futures = outcome()
    called: list[str] = []

    def bad(_: object) -> None:
        raise RuntimeError("bad callback")

    futures[0].add_done_callback(bad)
    futures[0].add_done_callback(lambda _: called.append("before"))
    batch.acknowledge(0, 3, 0)
    futures[0].add_done_callback(lambda _: called.append("after"))
    assert called == ["before", "after"]
    assert "bad callback" in caplog.text


def test_the_standard_librarys_functions_work_on_it() -> None:
    batch, futures = outcome()
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert (len(done), len(pending)) == (0, 3)
    threading.Timer(0.01, lambda: batch.acknowledge(0, 2, 7)).start()
    done, pending = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED, timeout=60)
    assert pending >= {futures[2]}
    threading.Timer(0.01, lambda: batch.fail(2, 3, DeliveryError("x"))).start()
    assert set(concurrent.futures.as_completed(futures, timeout=60)) == set(futures)
    done, pending = concurrent.futures.wait(futures)
    assert not pending


def test_it_can_be_awaited() -> None:
    batch, futures = outcome()

    async def wait() -> int:
        asyncio.get_running_loop().call_soon(lambda: batch.acknowledge(0, 3, 20))
        return (await asyncio.wrap_future(futures[2])).offset

    assert asyncio.run(wait()) == 22


def test_it_cannot_be_cancelled() -> None:
    _, futures = outcome()
    assert not futures[0].cancel()
    assert not futures[0].cancelled()


def test_a_record_that_never_came_into_a_batch() -> None:
    future = failed_future(PARTITION, DeliveryError("refused"))
    assert future.done()
    assert "t-3" in repr(future)
    with pytest.raises(DeliveryError, match="refused"):
        future.result()
