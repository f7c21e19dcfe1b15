"""Appends to a partition of `__consumer_offsets` while the disk stands still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.coordinator import led_log
from klamm.core.broker.workers import Workers
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.led import LedOffsets, stored_groups
from klammtest.waiting import PATIENCE_S, eventually

T0 = TopicPartition("orders", 0)


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedOffsets]:
    made = LedOffsets(tmp_path)
    made._workers.close()
    made._workers = Workers(2)
    yield made
    made.close()


def test_an_append_that_was_given_up_stays_before_later_ones(led: LedOffsets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a commit that was answered with REQUEST_TIMED_OUT takes the place of a later one that was stored."""
    store = stored_groups(led.log())
    begun, disk_goes_on = threading.Event(), threading.Event()
    append = led.led.log.append_as_leader

    def held_up(batch: bytearray, *args: Any, **named: Any) -> Any:
        if not begun.is_set() and not named.get("on_loop"):
            begun.set()
            assert disk_goes_on.wait(PATIENCE_S)
        return append(batch, *args, **named)

    monkeypatch.setattr(led.led.log, "append_as_leader", held_up)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(led_log, "COMMIT_TIMEOUT_S", 0.1)
            with pytest.raises(BrokerError) as caught:
                store.commit("g", {T0: CommittedOffset(900)})
        assert caught.value.code is ErrorCode.request_timed_out
        eventually(begun.is_set, "the first append is under way")
        later = threading.Thread(target=store.commit, args=("g", {T0: CommittedOffset(7)}))
        later.start()
        later.join(1.0)
    finally:
        disk_goes_on.set()
    later.join()
    eventually(lambda: led.led.log.log_end_offset == 2, "both are stored")
    assert store.fetch("g") == {T0: CommittedOffset(7)}
