"""A mirror's leader on a real log: what the simulation's model of a log cannot show."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.log.errors import FencedLeaderEpochError, MirrorLogError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.mirror.partition_mirror import (
    MirrorAnswer,
    MirrorDecision,
    MirrorFetch,
    MirrorGap,
    MirrorResult,
    MirrorRules,
    MirrorStatus,
    PartitionMirror,
)
from klamm.core.records.chain import check_chain
from klamm.core.replication.leader import PartitionLeader, ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.replica_fetch import EpochEndOffset
from klammtest.logs import batch, open_log

ID = UUID(int=7)


class Rig:
    """A source and a mirror, each with a real log."""

    def __init__(self, folder: Path, epoch: int = 10, rules: MirrorRules | None = None) -> None:
        self.source = open_log(folder / "source")
        self.source.lead(3)
        self.log = open_log(folder / "mirror")
        self.aside: list[int] = []
        self.rules = rules or MirrorRules()
        self.take_role(epoch)

    def take_role(self, epoch: int) -> None:
        state = PartitionState(0, epoch, 1, (0,), (), {0: "d"}, 1, "berlin")
        leader = PartitionLeader(0, self.log, (0,), ReplicationSettings(1, 30_000), state, 1, 0)
        self.mirror = PartitionMirror(self.log, leader, self.rules, ID, self.aside.append)

    def write(self, *values: bytes, epoch: int = 3) -> None:
        self.source.lead(epoch)
        for value in values:
            self.source.append_as_leader(bytearray(batch([value])), epoch, commit=True)

    def answer(self, fetch: MirrorFetch) -> MirrorAnswer:
        read = self.source.read(fetch.offset, 1 << 20)
        largest = check_chain(read.data).epochs[-1][0] if read.data else -1
        return MirrorAnswer(ErrorCode.none, None, read.high_watermark, read.log_start_offset, read.data, largest)

    def step(self) -> MirrorResult:
        fetch = self.mirror.fetch()
        assert fetch is not None
        result = self.mirror.on_answer(fetch, self.answer(fetch))
        self.mirror.notice(result)
        return result


def all_of(log: PartitionLog) -> bytes:
    return log.read(log.log_start_offset, 1 << 20, isolation=ReadIsolation.LOG_END).data


def test_batches_are_stored_byte_for_byte(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(b"a", b"b")
    rig.write(b"c", epoch=5)
    assert rig.step() is MirrorResult.APPENDED
    assert all_of(rig.log) == all_of(rig.source)
    assert rig.log.end_offset_for_epoch(3) == (3, 2), "the log has the source's epochs"
    assert rig.log.leader_epoch == 5
    assert rig.log.high_watermark == 3, "the only replica commits"
    assert rig.mirror.status is MirrorStatus.FOLLOWING


def test_a_batch_of_a_later_epoch_waits_for_a_raised_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, epoch=3)
    rig.write(b"a")
    rig.write(b"b", epoch=8)
    assert rig.step() is MirrorResult.EPOCH_TOO_LOW
    assert rig.mirror.wanted_epoch == 8
    assert rig.mirror.fetch() is None
    assert rig.log.log_end_offset == 0
    rig.take_role(8)
    assert rig.step() is MirrorResult.APPENDED
    assert all_of(rig.log) == all_of(rig.source)


def test_clients_cannot_write_and_a_former_term_cannot_append(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(b"a")
    with pytest.raises(MirrorLogError, match="klamm mirror promote"):
        rig.log.append_as_leader(bytearray(batch([b"x"])), 10)
    fetch, former = rig.mirror.fetch(), rig.mirror
    assert fetch is not None
    rig.log.lead(11)
    with pytest.raises(FencedLeaderEpochError):
        former.on_answer(fetch, rig.answer(fetch))


def test_a_divergence_sets_aside_and_cuts(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(b"a", b"b", b"c")
    rig.step()
    fetch = rig.mirror.fetch()
    assert fetch == MirrorFetch(3, 3)
    result = rig.mirror.on_answer(fetch, MirrorAnswer(diverging_epoch=EpochEndOffset(3, 1)))
    assert result is MirrorResult.CUT
    assert rig.aside == [1]
    assert (rig.log.log_end_offset, rig.log.high_watermark) == (1, 1)


def test_a_gap_keeps_the_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=MirrorRules(follows_retention=False))
    rig.write(b"a", b"b")
    rig.step()
    rig.write(b"c", b"d", b"e")
    rig.source.delete_records_before(4)
    fetch = rig.mirror.fetch()
    assert fetch is not None
    assert rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range)) is MirrorResult.OUT_OF_RANGE
    assert rig.mirror.on_bounds(fetch, 4, ID) is MirrorResult.GAP_FOUND
    assert rig.mirror.gap == MirrorGap(2, 4)
    assert rig.mirror.fetch() is None, "before it is stored"
    rig.mirror.skip_gap()
    assert rig.step() is MirrorResult.APPENDED
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (0, 5)
    assert rig.log.read(0, 10).data, "what was copied stays"


def test_a_new_mirror_begins_at_the_sources_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(b"a", b"b", b"c")
    rig.source.delete_records_before(2)
    fetch = rig.mirror.fetch()
    assert fetch is not None
    rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range))
    assert rig.mirror.on_bounds(fetch, 1, ID) is MirrorResult.RESTARTED
    fetch = rig.mirror.fetch()
    assert fetch is not None
    rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range))
    assert rig.mirror.on_bounds(fetch, 2, ID) is MirrorResult.RESTARTED, "the source has deleted more meanwhile"
    rig.step()
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (2, 3)


def test_another_topic_stops_the_partition(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.mirror.on_topic(ID)
    assert not rig.mirror.on_topic(UUID(int=8))
    assert rig.mirror.status is MirrorStatus.SOURCE_REPLACED
    assert rig.mirror.fetch() is None


def test_bounds_of_another_topic_are_no_gap(tmp_path: Path) -> None:
    """They are asked for by name, and the topic was created again since the fetch."""
    rig = Rig(tmp_path)
    rig.write(b"a")
    rig.step()
    fetch = rig.mirror.fetch()
    assert fetch is not None
    rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range))
    assert rig.mirror.on_bounds(fetch, 5, None) is MirrorResult.REFUSED, "it was deleted"
    assert rig.mirror.on_bounds(fetch, 5, UUID(int=8)) is MirrorResult.STOPPED
    assert (rig.mirror.status, rig.mirror.gap) == (MirrorStatus.SOURCE_REPLACED, None)


def test_a_decision_counts_once_and_only_where_the_partition_has_stopped(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=MirrorRules(stops_at_divergence=True))
    rig.write(b"a", b"b")
    rig.step()
    diverging = MirrorAnswer(diverging_epoch=EpochEndOffset(3, 1))

    def diverge() -> MirrorResult:
        fetch = rig.mirror.fetch()
        assert fetch is not None
        return rig.mirror.on_answer(fetch, diverging)

    assert diverge() is MirrorResult.STOPPED
    assert not rig.mirror.accept(MirrorDecision(MirrorStatus.DIVERGED, 1, 3))
    assert not rig.mirror.accept(MirrorDecision(MirrorStatus.GAP, 2, 3))
    assert rig.mirror.accept(MirrorDecision(MirrorStatus.DIVERGED, 2, 3))
    assert diverge() is MirrorResult.CUT
    assert rig.log.log_end_offset == 1
    assert rig.step() is MirrorResult.APPENDED
    assert diverge() is MirrorResult.STOPPED


def test_another_topic_cannot_be_accepted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.mirror.on_topic(UUID(int=8))
    assert not rig.mirror.accept(MirrorDecision(MirrorStatus.SOURCE_REPLACED, 0, -1))
    assert rig.mirror.stopped


def test_an_answer_that_comes_after_the_topic_was_replaced_changes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fetch = rig.mirror.fetch()
    assert fetch is not None
    rig.mirror.on_topic(UUID(int=8))
    assert rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.unknown_topic_id)) is MirrorResult.STALE
    assert rig.mirror.status is MirrorStatus.SOURCE_REPLACED


def test_an_epoch_that_could_not_be_raised_is_asked_for_again(tmp_path: Path) -> None:
    """As while the coordination is away."""
    rig = Rig(tmp_path, epoch=3)
    rig.write(b"a", epoch=8)
    assert rig.step() is MirrorResult.EPOCH_TOO_LOW
    rig.mirror.failed()
    assert rig.mirror.status is MirrorStatus.FAILED
    assert rig.step() is MirrorResult.EPOCH_TOO_LOW


def test_a_gap_that_could_not_be_stored_is_found_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(b"a", b"b")
    rig.step()
    rig.write(b"c", b"d")
    rig.source.delete_records_before(3)
    for _ in range(2):
        fetch = rig.mirror.fetch()
        assert fetch is not None
        rig.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range))
        assert rig.mirror.on_bounds(fetch, 3, ID) is MirrorResult.GAP_FOUND
        rig.mirror.failed()
    rig.mirror.skip_gap()
    assert rig.mirror.fetch() == MirrorFetch(2, 3), "nothing is skipped that is not stored"
