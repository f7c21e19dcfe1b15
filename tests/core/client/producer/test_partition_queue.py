from __future__ import annotations

import pytest

from klamm.core.client.producer.batch import BatchEvent, ProducerBatch, ProducerIdentity
from klamm.core.client.producer.partition_queue import MAX_EPOCH, PartitionQueue
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition

NOW = 100.0


class Ids:
    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = ProducerIdentity(7, 0)
        self.refused: list[ProducerIdentity] = []

    def current(self) -> ProducerIdentity | None:
        return self.identity

    def renew(self, refused: ProducerIdentity) -> None:
        self.refused.append(refused)
        self.identity = None


def queue(*counts: int, ids: Ids | None = None, max_in_flight: int = 5) -> PartitionQueue:
    """Returns the queue of a producer that the broker knows."""
    made = PartitionQueue(TopicPartition("t", 0), 1000, max_in_flight, ids)
    made._remembered, made._taken_s = True, NOW
    for count in counts:
        add(made, count)
    return made


def add(target: PartitionQueue, count: int) -> ProducerBatch:
    batch = target.add_batch(NOW)
    batch.records = [(0, None, b"v", ())] * count
    batch.outcome.count = count
    batch.size = 100 * count
    return batch


def take_all(target: PartitionQueue, now: float = NOW) -> list[ProducerBatch]:
    taken = []
    while (batch := target.take(now)) is not None:
        taken.append(batch)
    return taken


def sequences(batches: list[ProducerBatch]) -> list[int | None]:
    return [batch.sequence for batch in batches]


def test_the_first_batch_of_a_producer_is_in_flight_alone() -> None:
    """A leader that does not know yet that it leads refuses it, and would store the second one a moment later."""
    target = PartitionQueue(TopicPartition("t", 0), 1000, 5, Ids())
    first, second, third = add(target, 3), add(target, 2), add(target, 1)
    assert take_all(target) == [first]
    target.event_of(first, ErrorCode.not_leader_or_follower)
    target.retry(first, NOW)
    assert take_all(target) == [first]
    target.stored(first, 0)
    assert take_all(target) == [second, third]


def test_after_a_long_pause_a_batch_is_in_flight_alone_again() -> None:
    target = queue(1, 1, ids=Ids())
    later = NOW + 700
    assert len(take_all(target, later)) == 1
    target.stored(target.in_flight[0], 0)
    assert len(take_all(target, later)) == 1


def test_sequence_numbers_count_records() -> None:
    taken = take_all(queue(3, 2, 4, ids=Ids()))
    assert sequences(taken) == [0, 3, 5]
    assert {batch.identity for batch in taken} == {ProducerIdentity(7, 0)}


def test_sequence_numbers_begin_again_after_2_to_31() -> None:
    target = queue(3, ids=Ids())
    target._next_sequence = 2**31 - 2
    assert sequences([*take_all(target), *([add(target, 1)] and take_all(target))]) == [2**31 - 2, 1]


def test_nothing_goes_out_before_there_is_a_producer_id() -> None:
    ids = Ids()
    ids.identity = None
    target = queue(1, ids=ids)
    assert target.take(NOW) is None
    ids.identity = ProducerIdentity(8, 0)
    assert target.take(NOW) is not None


def test_no_more_than_the_bound_are_in_flight() -> None:
    target = queue(1, 1, 1, max_in_flight=2)
    assert len(take_all(target)) == 2
    target.stored(target.in_flight[0], 0)
    assert len(take_all(target)) == 1


def test_a_batch_in_flight_stays_among_the_last_five_of_the_broker() -> None:
    """The leader has moved: the new one has the first batch from the former one, which does not answer."""
    target = queue(*[1] * 8, ids=Ids())
    first, *others = take_all(target)
    for offset, batch in enumerate(others, 1):
        target.stored(batch, offset)
    assert take_all(target) == []
    assert target.event_of(first, ErrorCode.network_exception) is BatchEvent.RETRY
    target.retry(first, NOW)
    assert take_all(target) == [first]
    target.stored(first, 0)
    assert sequences(take_all(target)) == [5, 6, 7]


def test_batches_that_were_stored_in_order_hold_up_nothing() -> None:
    target = queue(*[1] * 8, ids=Ids())
    taken = take_all(target)
    target.stored(taken[1], 1)
    assert take_all(target) == []
    target.stored(taken[0], 0)
    assert sequences(take_all(target)) == [5, 6]
    target.stored(taken[2], 2)
    assert sequences(take_all(target)) == [7]


def test_without_idempotence_a_batch_goes_back_to_the_front() -> None:
    target = queue(1, 1, 1, max_in_flight=1)
    first = target.take(NOW)
    assert first is not None
    target.retry(first, NOW + 1)
    assert target.take(NOW) is None
    assert target.take(NOW + 1) is first


def test_after_a_lost_connection_batches_go_again_one_by_one_with_their_numbers() -> None:
    target = queue(1, 1, 1, ids=Ids())
    taken = take_all(target)
    add(target, 1)
    for batch in reversed(taken):
        assert target.event_of(batch, ErrorCode.network_exception) is BatchEvent.RETRY
        target.retry(batch, NOW)
    for batch in taken[:2]:
        assert target.take(NOW) is batch
        assert target.take(NOW) is None
        target.stored(batch, 0)
    assert sequences(take_all(target)) == [2]
    target.stored(taken[2], 0)
    assert sequences(take_all(target)) == [3]


def test_out_of_order_behind_an_earlier_one_only_goes_again() -> None:
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    assert target.event_of(second, ErrorCode.out_of_order_sequence_number) is BatchEvent.RETRY
    target.retry(second, NOW)
    assert target.take(NOW) is None
    target.stored(first, 0)
    assert target.take(NOW) is second


def test_out_of_order_as_the_earliest_fails_and_the_next_epoch_begins() -> None:
    target = queue(2, 1, 1, ids=Ids())
    first, second, third = take_all(target)
    assert target.event_of(first, ErrorCode.out_of_order_sequence_number) is BatchEvent.FAIL
    target.failed(first)
    for batch in (second, third):
        assert target.event_of(batch, ErrorCode.out_of_order_sequence_number) is BatchEvent.RETRY
        target.retry(batch, NOW)
    assert take_all(target) == [second]
    target.stored(second, 5)
    assert take_all(target) == [third]
    assert sequences([second, third]) == [0, 1]
    assert second.identity == ProducerIdentity(7, 1)


def test_a_failed_batch_lets_what_is_in_flight_come_back_before_the_reset() -> None:
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    third = add(target, 1)
    assert target.event_of(first, ErrorCode.invalid_record) is BatchEvent.FAIL
    target.failed(first)
    assert target.take(NOW) is None
    target.stored(second, 5)
    assert target.take(NOW) is third
    assert (third.sequence, third.identity.epoch) == (0, 1)


def test_a_batch_in_doubt_is_asked_for_under_its_old_number_before_the_reset() -> None:
    target = queue(1, 1, 1, ids=Ids())
    first, second, third = take_all(target)
    for batch in (second, third):
        target.event_of(batch, ErrorCode.network_exception)
        target.retry(batch, NOW)
    target.failed(first)
    assert target.take(NOW) is second
    assert (second.sequence, second.identity.epoch) == (1, 0)
    assert target.take(NOW) is None
    target.event_of(second, ErrorCode.out_of_order_sequence_number)
    target.retry(second, NOW)
    assert take_all(target) == [second]
    target.stored(second, 5)
    assert take_all(target) == [third]
    assert [(b.sequence, b.identity.epoch) for b in (second, third)] == [(0, 1), (1, 1)]


def test_a_batch_in_doubt_that_was_stored_is_not_sent_under_a_new_number() -> None:
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    target.event_of(second, ErrorCode.request_timed_out)
    target.retry(second, NOW)
    target.failed(first)
    assert target.take(NOW) is second
    assert target.event_of(second, ErrorCode.duplicate_sequence_number) is BatchEvent.STORE
    target.stored(second, -1)
    fresh = add(target, 1)
    assert target.take(NOW) is fresh
    assert (fresh.sequence, fresh.identity.epoch) == (0, 1)


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error])
def test_a_batch_of_a_leader_that_was_deposed_is_not_sent_under_a_new_number(code: ErrorCode) -> None:
    """It was appended, and waited for the followers: the next leader may have it."""
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    assert target.event_of(second, code) is BatchEvent.RETRY
    target.retry(second, NOW)
    target.failed(first)
    assert target.take(NOW) is second
    assert (second.sequence, second.identity.epoch) == (1, 0)


def test_an_unknown_producer_is_no_loss_when_retention_took_what_it_wrote() -> None:
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    target.stored(first, 10)
    assert target.event_of(second, ErrorCode.unknown_producer_id, log_start_offset=11) is BatchEvent.RETRY
    target.retry(second, NOW)
    assert target.take(NOW) is second
    assert (second.sequence, second.identity.epoch) == (0, 1)


def test_an_unknown_producer_whose_records_should_be_there_fails() -> None:
    target = queue(1, 1, ids=Ids())
    first, second = take_all(target)
    target.stored(first, 10)
    assert target.event_of(second, ErrorCode.unknown_producer_id, log_start_offset=0) is BatchEvent.FAIL


def test_a_refused_identity_is_renewed() -> None:
    ids = Ids()
    target = queue(1, ids=ids)
    (batch,) = take_all(target)
    assert target.event_of(batch, ErrorCode.invalid_producer_epoch) is BatchEvent.RETRY
    target.retry(batch, NOW)
    assert ids.refused == [ProducerIdentity(7, 0)]
    assert target.take(NOW) is None
    ids.identity = ProducerIdentity(9, 0)
    assert target.take(NOW) is batch
    assert (batch.sequence, batch.identity) == (0, ProducerIdentity(9, 0))


def test_a_refused_identity_fails_a_batch_in_doubt() -> None:
    target = queue(1, ids=Ids())
    (batch,) = take_all(target)
    target.event_of(batch, ErrorCode.network_exception)
    target.retry(batch, NOW)
    assert target.take(NOW) is batch
    assert target.event_of(batch, ErrorCode.invalid_producer_epoch) is BatchEvent.FAIL


def test_the_last_epoch_needs_a_new_producer_id() -> None:
    ids = Ids()
    ids.identity = ProducerIdentity(7, MAX_EPOCH)
    target = queue(1, 1, ids=ids)
    first, second = take_all(target)
    target.failed(first)
    target.retry(second, NOW)
    assert target.take(NOW) is None
    assert ids.refused == [ProducerIdentity(7, MAX_EPOCH)]


def test_a_batch_that_is_too_large_is_split_and_keeps_its_numbers() -> None:
    target = queue(5, 1, ids=Ids())
    large, after = take_all(target)
    assert target.event_of(large, ErrorCode.message_too_large) is BatchEvent.SPLIT
    target.split(large)
    target.event_of(after, ErrorCode.out_of_order_sequence_number)
    target.retry(after, NOW)
    one = target.take(NOW)
    assert one is not None
    assert (one.count, one.sequence, one.first) == (2, 0, 0)
    assert target.take(NOW) is None
    target.stored(one, 0)
    two = target.take(NOW)
    assert two is not None
    assert (two.count, two.sequence, two.first) == (3, 2, 2)
    assert one.size + two.size == large.size
    assert target.batch_size < 1000


def test_a_single_record_that_is_too_large_fails() -> None:
    target = queue(1, ids=Ids())
    (batch,) = take_all(target)
    assert target.event_of(batch, ErrorCode.message_too_large) is BatchEvent.FAIL


def test_retriable_codes_are_retried_and_others_fail() -> None:
    target = queue(1)
    (batch,) = take_all(target)
    assert target.event_of(batch, ErrorCode.leader_not_available) is BatchEvent.RETRY
    assert target.event_of(batch, ErrorCode.none) is BatchEvent.STORE
    assert target.event_of(batch, ErrorCode.topic_authorization_failed) is BatchEvent.FAIL
    assert target.event_of(batch, ErrorCode.unsupported_compression_type) is BatchEvent.FAIL
    assert not batch.in_doubt
    assert target.event_of(batch, ErrorCode.not_enough_replicas_after_append) is BatchEvent.RETRY
    assert batch.in_doubt
