"""A clock that is set ahead or back deletes no fresh data."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.manager import LogManager
from klamm.core.log.state.steady_clock import TOLERATED_MS, SteadyClock, elapsed_ms
from klamm.core.records.partition import TopicPartition
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table

TP = TopicPartition("t", 0)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_it_is_the_clock_while_both_go_on_alike() -> None:
    clock, elapsed = ManualClock(), ManualClock(5)
    steady = SteadyClock(clock, elapsed)
    for ms, more in ((1_000, 0), (HOUR_MS, 500), (HOUR_MS, -TOLERATED_MS), (DAY_MS, TOLERATED_MS)):
        elapsed.advance(ms)
        clock.advance(ms + more)
        assert steady.for_deleting(clock()) == clock()


def test_what_the_clock_gains_in_a_leap_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    clock, elapsed = ManualClock(), ManualClock(5)
    steady = SteadyClock(clock, elapsed)
    clock.advance(DAY_MS)
    assert steady.for_deleting(clock()) == START_MS
    for both in (clock, elapsed):
        both.advance(HOUR_MS)
    assert steady.for_deleting(clock()) == START_MS + HOUR_MS
    assert caplog.text.count("set ahead by 86400 s") == 1
    clock.advance(-DAY_MS)
    assert steady.for_deleting(clock()) == clock() == START_MS + HOUR_MS


def test_back_and_then_forth_again_is_no_leap_ahead() -> None:
    clock, elapsed = ManualClock(), ManualClock(5)
    steady = SteadyClock(clock, elapsed)
    clock.advance(-DAY_MS)
    assert steady.for_deleting(clock()) == clock()
    clock.advance(DAY_MS)
    assert steady.for_deleting(clock()) == clock() == START_MS


def test_the_system_has_such_a_clock() -> None:
    first = elapsed_ms()
    assert elapsed_ms() >= first > 0


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_retention_shorter_than_the_jump_keeps_what_is_fresh(tmp_path: Path, jump_ms: int) -> None:
    clock, elapsed = ManualClock(), ManualClock(0)
    logs = LogManager(
        tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), clock=clock, elapsed=elapsed
    )  # fmt: skip
    config = TopicConfig.from_strings({"retention.ms": str(HOUR_MS), "segment.bytes": "300", "flush.ms": "1000"})
    log = logs.create(TP, UUID(int=1), config)
    for _ in range(6):
        append(log, batch([b"x" * 100], timestamp_ms=clock()))
    clock.advance(jump_ms)
    logs.run_maintenance(clock())
    logs.apply_retention(clock())
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 6, 6)
    assert logs.delete_records(log, 0) == 0
    for both in (clock, elapsed):
        both.advance(HOUR_MS + 1)
    if jump_ms > 0:
        logs.run_maintenance(clock())
        logs.apply_retention(clock())
        assert log.log_start_offset == 6, "an hour has passed"
    logs.close()
