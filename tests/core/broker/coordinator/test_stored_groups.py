"""A deletion of what was seen at the leader of a partition of `__consumer_offsets`, while registry members commit by
Produce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.broker.coordinator.shard_log import APPEND_TRIES
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.groups.records.batches import batch_of, commit_rows
from klamm.core.groups.records.kafka_format import GroupKey, OffsetKey, encode_key
from klamm.core.groups.records.stored_group import StoredGroup, StoredMember
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.log.partition_log import LogRead, ReadIsolation
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.led import LedOffsets
from klammtest.brokers.led import stored_groups as store_of

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OLD = CommittedOffset(500, -1, "", 1, UUID(int=1))
NEW = CommittedOffset(7, -1, "", 2, UUID(int=2))


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedOffsets]:
    made = LedOffsets(tmp_path)
    yield made
    made.close()


def produced(led: LedOffsets, offset: CommittedOffset = NEW, group: str = "g") -> None:
    """A member's commit is in the log, and the followers do not have it yet."""
    led.led.log.append_as_leader(batch_of(commit_rows(group, {T0: offset}), 2), led.epoch)


def replicated(led: LedOffsets) -> None:
    led.led.log.advance_high_watermark(led.led.log.log_end_offset)


class Overtaken:
    """`LedLog` in which a commit by Produce comes between the read and the append of a deletion, `times` times."""

    def __init__(self, led: LedOffsets, times: int, group: str) -> None:
        self._led = led
        self._log = led.log()
        self._times = times
        self._group = group
        self.partition, self.codecs = self._log.partition, CodecTable()

    def append(self, batch: bytearray) -> int:
        return self._log.append(batch)

    def append_at(self, offset: int, batch: bytearray) -> int | None:
        if self._times:
            self._times -= 1
            produced(self._led, group=self._group)
        return self._log.append_at(offset, batch)

    def read(self, offset: int, max_bytes: int, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK) -> LogRead:
        return self._log.read(offset, max_bytes, isolation)


def test_a_commit_that_is_not_below_the_high_watermark_yet_stays(led: LedOffsets) -> None:
    store = store_of(led.log())
    store.commit("g", {T0: OLD, T1: OLD})
    seen = store.fetch("g")
    produced(led)
    store.delete("g", seen, seen=seen)
    replicated(led)
    assert store.fetch("g") == {T0: NEW}
    assert store_of(led.log()).fetch("g") == {T0: NEW}


def test_what_is_not_committed_is_not_fetched(led: LedOffsets) -> None:
    store = store_of(led.log())
    store.commit("g", {T0: OLD})
    produced(led)
    store.delete("g", [T0], seen={T0: OLD})
    assert store.fetch("g") == {T0: OLD}
    replicated(led)
    assert store.fetch("g") == {T0: NEW}


def test_a_commit_between_the_read_and_the_tombstones_stays(led: LedOffsets) -> None:
    store = store_of(Overtaken(led, 1, "g"))
    store.commit("g", {T0: OLD, T1: OLD})
    seen = store.fetch("g")
    store.delete("g", seen, seen=seen)
    replicated(led)
    assert store.fetch("g") == {T0: NEW}


def test_a_deletion_that_is_overtaken_by_other_groups_goes_on(led: LedOffsets) -> None:
    store = store_of(Overtaken(led, APPEND_TRIES - 1, "other"))
    store.commit("g", {T0: OLD})
    store.delete("g", [T0], seen={T0: OLD})
    assert store.fetch("g") == {}
    assert store.fetch("other") == {T0: NEW}


def test_a_deletion_that_is_always_overtaken_raises_and_deletes_nothing(led: LedOffsets) -> None:
    store = store_of(Overtaken(led, APPEND_TRIES, "other"))
    store.commit("g", {T0: OLD})
    with pytest.raises(BrokerError, match="a deletion from group g was overtaken 100 times") as caught:
        store.delete("g", [T0], seen={T0: OLD})
    assert caught.value.code is ErrorCode.request_timed_out
    replicated(led)
    assert store.fetch("g") == {T0: OLD}


def test_a_record_that_cannot_be_decoded_costs_no_group_its_offsets(
    led: LedOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(led.log())
    store.commit("g", {T0: OLD, T1: OLD})
    store.save_group("g", StoredGroup("consumer", 3, None, None))
    mine = encode_key(OffsetKey("g", T0))
    state = encode_key(GroupKey("g"))
    for key, value in ((b"\0\1cut", b""), (mine, b"\0\x09of a newer version"), (state, b"\0\3cut")):
        led.led.log.append_as_leader(bytearray(encode_batch([(2, key, value, ())])), led.epoch)
    store.commit("g", {T1: NEW})
    for reader in (store, store_of(led.log())):
        assert reader.fetch("g") == {T0: OLD, T1: NEW}
        assert reader.groups() == ["g"]
        assert reader.load_groups()["g"].generation == 3
    assert [line for line in caplog.messages if "are skipped" in line] == [
        "__consumer_offsets-0 offset 3, and others like it, are skipped: "
        "the key of an offset record cannot be read: a length of 25461 with 1 bytes left"
    ] * 2
    store.delete("g")
    assert store.groups() == []


def test_a_name_that_has_no_room_in_a_record_is_refused(led: LedOffsets) -> None:
    """Requests of flexible versions can have one."""
    store, member = store_of(led.log()), StoredMember("m", "i" * 32_768, "c", "h", 1, 1)
    calls: list[Callable[[], None]] = [
        lambda: store.commit("g" * 32_768, {T0: OLD}),
        lambda: store.save_group("g", StoredGroup("consumer", 3, None, None, members=(member,))),
    ]
    for call in calls:
        with pytest.raises(BrokerError, match="has 32768 bytes: a record of a group may have 32767") as caught:
            call()
        assert caught.value.code is ErrorCode.invalid_request
    store.commit("g" * 32_767, {T0: OLD})
    assert store.fetch("g" * 32_767) == {T0: OLD}
