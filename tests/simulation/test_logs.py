"""The two logs of the simulation behave alike: `MemoryLog`, and a real `PartitionLog` behind `DiskLog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from klamm.core.errors import KlammError, LogEndMovedError
from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klammsim.crashing_log import CrashingLog
from klammsim.disk_log import DiskLog, disk_logs
from klammsim.memory_log import MemoryLog
from klammsim.violation import ViolationError

Make = Callable[[str], CrashingLog]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield MemoryLog
        else:
            made = stack.enter_context(disk_logs())
            yield lambda name: made(name, lambda _, __: None)


def filled(make: Make, *epochs: int, name: str = "0") -> CrashingLog:
    """Makes a log with a record of each epoch; its value is its offset."""
    log = make(name)
    for value, epoch in enumerate(epochs):
        log.lead(epoch)
        log.append(value, epoch)
    return log


def bounds(log: CrashingLog) -> tuple[int, int, int]:
    return log.log_start_offset, log.high_watermark, log.log_end_offset


def test_an_append_needs_the_role_of_its_epoch(make: Make) -> None:
    log, other = filled(make, 3), filled(make, 3, 3, name="1")
    run = other.read(1, 1)
    for refused in (lambda: log.append(2, 2), lambda: log.append(2, 4), lambda: log.append_as_follower(run, 3)):
        with pytest.raises(FencedLeaderEpochError):
            refused()
    log.follow(4)
    with pytest.raises(FencedLeaderEpochError):
        log.append(2, 4)
    with pytest.raises(FencedLeaderEpochError):
        log.append_as_follower(run, 3)
    log.append_as_follower(run, 4)
    log.rest()
    for refused in (lambda: log.append(2, 4), lambda: log.append_as_follower(run, 4)):
        with pytest.raises(FencedLeaderEpochError):
            refused()
    assert log.records_from(0) == [(3, 0), (3, 1)]


def test_a_truncation_and_a_restart_need_the_role_of_their_epoch(make: Make) -> None:
    log = filled(make, 1, 1)
    for change in (log.truncate_to, log.restart_at):
        with pytest.raises(FencedLeaderEpochError):
            change(1, 1)
    log.follow(2)
    for change in (log.truncate_to, log.restart_at):
        with pytest.raises(FencedLeaderEpochError):
            change(1, 1)
    assert bounds(log) == (0, 0, 2)


def test_a_change_of_an_earlier_term_of_following_is_refused_in_the_same_epoch_too(make: Make) -> None:
    leader, log = filled(make, 1, 1, 1), filled(make, 1, 1, name="1")
    former = log.follow(2)
    log.rest()
    term = log.follow(2)
    changes: tuple[Callable[[int], object], ...] = (
        lambda term: log.append_as_follower(leader.read(2, 1), 2, term),
        lambda term: log.truncate_to(1, 2, term),
        lambda term: log.restart_at(7, 2, term),
    )
    for change in changes:
        with pytest.raises(FencedLeaderEpochError):
            change(former)
    assert bounds(log) == (0, 0, 2)
    for change, expected in zip(changes, [(0, 0, 3), (0, 0, 1), (7, 7, 7)], strict=True):
        change(term)
        assert bounds(log) == expected


def test_terms_of_following_differ_across_a_restart(make: Make) -> None:
    log = filled(make, 1, 1)
    former = log.follow(2)
    log.crash(Random(1))
    log.follow(2)
    with pytest.raises(FencedLeaderEpochError):
        log.truncate_to(1, 2, former)
    assert log.log_end_offset == 2


def test_a_follower_refuses_a_gap_and_a_repetition(make: Make) -> None:
    leader, log = filled(make, 1, 1, 1), filled(make, 1, name="1")
    log.follow(2)
    with pytest.raises(InvalidRecordError):
        log.append_as_follower(leader.read(0, 2), 2)
    log.append_as_follower(leader.read(1, 1), 2)
    log.append_as_follower(leader.read(2, 5), 2)
    assert log.records_from(0) == leader.records_from(0)


def test_epochs_do_not_fall_along_a_log(make: Make) -> None:
    leader, log = filled(make, 1, 1), filled(make, 2, name="1")
    log.follow(3)
    with pytest.raises((InvalidRecordError, ViolationError)):
        log.append_as_follower(leader.read(1, 1), 3)
    assert bounds(log) == (0, 0, 1)


def test_an_epoch_without_records_begins_at_the_end(make: Make) -> None:
    log = filled(make, 1, 1)
    log.lead(4)
    assert log.epoch_entries() == [(1, 0), (4, 2)]
    assert (log.leader_epoch, log.last_record_epoch) == (4, 1)
    assert [log.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 4, 5)] == [
        (-1, -1), (0, 0), (1, 2), (1, 2), (4, 2), (-1, -1),
    ]  # fmt: skip


def test_a_truncation_to_the_end_drops_the_epochs_that_begin_there(make: Make) -> None:
    log = filled(make, 1, 1)
    log.lead(4)
    log.follow(5)
    log.truncate_to(2, 5)
    assert log.epoch_entries() == [(1, 0)]
    assert bounds(log) == (0, 0, 2)


def test_a_truncation_lowers_the_watermark(make: Make) -> None:
    log = filled(make, 1, 1, 2, 3)
    assert log.advance_high_watermark(9)
    assert not log.advance_high_watermark(3)
    assert bounds(log) == (0, 4, 4)
    log.follow(4)
    log.truncate_to(2, 4)
    assert bounds(log) == (0, 2, 2)
    assert log.epoch_entries() == [(1, 0)]
    assert log.offset_of(1) == 1
    assert log.offset_of(2) is None


def test_a_restart_drops_everything(make: Make) -> None:
    log = filled(make, 1, 2)
    log.follow(3)
    log.restart_at(7, 3)
    assert bounds(log) == (7, 7, 7)
    assert log.epoch_entries() == []
    assert (log.leader_epoch, log.last_record_epoch) == (-1, -1)


def test_the_log_start_takes_the_watermark_along(make: Make) -> None:
    log = filled(make, 1, 1, 2, 2)
    log.advance_log_start(3)
    assert bounds(log) == (3, 3, 4)
    assert log.epoch_entries() == [(2, 3)]
    assert log.values == [3]
    log.advance_log_start(9)
    assert bounds(log) == (4, 4, 4)
    log.advance_log_start(2)
    assert bounds(log) == (4, 4, 4)


def test_a_killed_process_loses_no_record(make: Make) -> None:
    log = filled(make, 1, 1, 2)
    log.checkpoint()
    log.crash(Random(1))
    assert log.records_from(0) == [(1, 0), (1, 1), (2, 2)]
    assert not log.recovery_cut_more
    with pytest.raises(FencedLeaderEpochError):
        log.append(3, 2)


def test_a_clean_stop_keeps_all_bounds(make: Make) -> None:
    log = filled(make, 1, 1, 2)
    log.advance_high_watermark(2)
    log.advance_log_start(1)
    log.stop()
    assert bounds(log) == (1, 2, 3)
    assert log.flushed_offset == 3
    with pytest.raises(FencedLeaderEpochError):
        log.append(3, 2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strike", ["lose_power", "fail_flush"])
def test_a_power_loss_keeps_what_was_flushed(make: Make, strike: str, seed: int) -> None:
    log = filled(make, *[1] * 10, *[2] * 20)
    log.flush(12)
    flushed = log.flushed_offset
    assert flushed >= 12
    for value in range(30, 60):
        log.append(value, 2)
    lost = getattr(log, strike)(Random(seed))
    assert log.log_end_offset == 60 - lost >= flushed
    assert log.records_from(0) == [(1 if value < 10 else 2, value) for value in range(60 - lost)]


def test_what_a_power_loss_cuts_is_random() -> None:
    with disk_logs() as made:
        kept = set()
        for seed in range(12):
            log = filled(lambda name: made(name, lambda _, __: None), *[1] * 40)
            log.lose_power(Random(seed))
            kept.add(log.log_end_offset)
    assert len(kept) > 4


@pytest.mark.parametrize("seed", range(8))
def test_both_logs_do_the_same(seed: int) -> None:
    """A random course of calls, at each step of which both logs have the same bounds, epochs, records and errors."""
    random = Random(seed)
    with disk_logs() as made:
        memory, disk = MemoryLog("0"), made("0", lambda _, __: None)
        leaders = MemoryLog("1"), made("1", lambda _, __: None)
        for leader in leaders:
            for value in range(200):
                leader.lead(1 + value // 2)
                leader.append(1000 + value, 1 + value // 2)
        called = set()
        for value in range(200):
            name, call = _random_call(random, memory, value)
            outcomes = [_outcome(call, log, leader) for log, leader in zip((memory, disk), leaders, strict=True)]
            assert outcomes[0] == outcomes[1], name
            _agree(memory, disk)
            called.add((name, outcomes[0]) if isinstance(outcomes[0], type) else name)
    assert {"copy", "truncate", "stop", ("append", FencedLeaderEpochError)} <= called


Call = Callable[[CrashingLog, CrashingLog], object]


def _random_call(random: Random, log: MemoryLog, value: int) -> tuple[str, Call]:
    """Returns a call of a log, and of the leader from which it copies."""
    epoch = max(log.leader_epoch, 0) + random.choice((0, 0, 0, 0, 0, 1))
    offset = random.randint(log.log_start_offset, log.log_end_offset)
    end = log.log_end_offset
    if log.leader_epoch == log.last_record_epoch:  # a start forgets an epoch without records; `MemoryLog` may keep it
        last: tuple[str, Call] = ("stop", lambda log, _: log.stop())
    else:
        last = ("flush", lambda log, _: log.flush(end))
    calls: list[tuple[float, str, Call]] = [
        (0.1, "lead", lambda log, _: log.lead(epoch)),
        (0.25, "follow", lambda log, _: log.follow(epoch) > 0),
        (0.26, "rest", lambda log, _: log.rest()),
        (0.5, "append", lambda log, _: log.append(value, epoch)),
        (0.56, "watermark", lambda log, _: log.advance_high_watermark(offset)),
        (0.6, "log start", lambda log, _: log.advance_log_start(min(offset, log.log_start_offset + 3))),
        (0.68, "truncate", lambda log, _: log.truncate_to(offset, epoch)),
        (0.69, "restart", lambda log, _: log.restart_at(offset + 5, epoch)),
        (0.8, "append as follower", lambda log, leader: log.append_as_follower(leader.read(end, 1), epoch)),
        (0.9, "copy", lambda log, leader: _copy(log, leader.read(end, 1), epoch + 100)),
        (1.0, *last),
    ]
    chance = random.random() if end < 195 else 0.6  # not beyond the leader's end
    return next((name, call) for most, name, call in calls if chance < most)


def _copy(log: CrashingLog, run: bytes, epoch: int) -> None:
    log.follow(epoch)
    log.append_as_follower(run, epoch)


def _outcome(call: Call, log: CrashingLog, leader: CrashingLog) -> object:
    try:
        return call(log, leader)
    except ViolationError:
        return InvalidRecordError  # `MemoryLog` reports epochs that fall as a violation
    except KlammError as error:
        return type(error)


def _agree(memory: MemoryLog, disk: DiskLog) -> None:
    assert bounds(memory) == bounds(disk)
    assert memory.epoch_entries() == disk.epoch_entries()
    assert (memory.leader_epoch, memory.last_record_epoch) == (disk.leader_epoch, disk.last_record_epoch)
    assert memory.records_from(memory.log_start_offset) == disk.records_from(disk.log_start_offset)
    for epoch in range(-1, memory.leader_epoch + 2):
        assert memory.end_offset_for_epoch(epoch) == disk.end_offset_for_epoch(epoch)


def test_the_directory_of_the_logs_is_removed() -> None:
    with disk_logs() as made:
        directory = made("0", lambda _, __: None).directory
        made("0", lambda _, __: None)
        assert directory.is_dir()
    assert not Path(directory).parent.exists()


def test_a_conditional_append_needs_the_end_that_it_names(make: Make) -> None:
    log = filled(make, 3, 3)
    for other in (OffsetAndEpoch(1, 3), OffsetAndEpoch(3, 3), OffsetAndEpoch(2, 2), OffsetAndEpoch(1)):
        with pytest.raises(LogEndMovedError):
            log.append(2, 3, other)
    assert bounds(log)[2] == 2
    assert log.append(2, 3, OffsetAndEpoch(2, 3)) == 2
    assert log.append(3, 3, OffsetAndEpoch(3)) == 3
    with pytest.raises(FencedLeaderEpochError):
        log.append(4, 4, OffsetAndEpoch(4, 3))
    empty = make("first")
    empty.lead(1)
    assert empty.append(0, 1, OffsetAndEpoch(0)) == 0
