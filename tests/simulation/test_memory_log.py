"""The simulated log keeps the rules of the real one's epoch cache."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError
from klamm.core.log.state.leader_epochs import LeaderEpochs
from klammsim.memory_log import MemoryLog


@pytest.mark.parametrize("seed", range(5))
def test_epochs_are_those_of_leader_epochs(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log, epochs, epoch = MemoryLog("0"), LeaderEpochs(tmp_path / "epochs"), 0
    for value in range(60):
        chance = random.random()
        if chance < 0.3:
            epoch += random.randint(1, 3)
            log.lead(epoch)
            epochs.assign(epoch, log.log_end_offset, durable=False)
        elif chance < 0.8 and epoch:
            log.append(value, epoch)
        elif chance < 0.9:
            offset = random.randint(log.log_start_offset, log.log_end_offset)
            log.follow(epoch)
            log.truncate_to(offset, epoch)
            epochs.truncate_end(offset)
            epoch = max(epoch, log.leader_epoch) + 1
            log.lead(epoch)
            epochs.assign(epoch, log.log_end_offset, durable=False)
        elif log.log_end_offset > log.log_start_offset + 1:
            offset = random.randint(log.log_start_offset + 1, log.log_end_offset - 1)
            log.advance_log_start(offset)
            epochs.truncate_start(offset)
        assert log.epoch_entries() == epochs.entries()
        for asked in range(-1, epoch + 2):
            assert log.end_offset_for_epoch(asked) == epochs.end_offset(asked, log.log_end_offset)


def test_roles_are_checked_by_the_log() -> None:
    log = MemoryLog("0")
    log.lead(3)
    log.append(1, 3)
    for refused in (lambda: log.append(2, 2), lambda: log.append_as_follower(log.read(0, 1), 3)):
        with pytest.raises(FencedLeaderEpochError):
            refused()
    log.follow(4)
    with pytest.raises(InvalidRecordError):
        log.append_as_follower(log.read(0, 1), 4)
    log.rest()
    with pytest.raises(FencedLeaderEpochError):
        log.append(2, 3)


def test_a_power_loss_keeps_what_was_flushed() -> None:
    log = MemoryLog("0")
    log.lead(3)
    for value in range(10):
        log.append(value, 3)
    log.flush(4)
    log.lose_power(Random(1))
    assert log.values[:4] == [0, 1, 2, 3]
    assert 4 <= log.log_end_offset <= 10
