"""A mirror's leader on a real log: what the simulation's model of a log cannot show."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.log.errors import FencedLeaderEpochError, MirrorLogError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.mirror.partition_mirror import (
    FirstBatch,
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
from klamm.core.records.control import TransactionMarker, read_marker
from klamm.core.records.header import BatchHeader
from klamm.core.replication.leader import PartitionLeader, ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetch
from klammtest.logs import START_MS, batch, open_log
from klammtest.transactional_logs import add, committed, end, transactional

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

    def take_role(self, epoch: int, isr: tuple[int, ...] = (0,)) -> None:
        state = PartitionState(0, epoch, 1, isr, (), dict.fromkeys(isr, "d"), 1, "berlin")
        leader = PartitionLeader(0, self.log, isr, ReplicationSettings(1, 30_000), state, 1, 0)
        self.mirror = PartitionMirror(self.log, leader, self.rules, ID, self.aside.append)

    def write(self, *values: bytes, epoch: int = 3) -> None:
        self.source.lead(epoch)
        for value in values:
            self.source.append_as_leader(bytearray(batch([value])), epoch, commit=True)

    def answer(self, fetch: MirrorFetch) -> MirrorAnswer:
        read = self.source.read(fetch.offset, 1 << 20)
        answer = MirrorAnswer(ErrorCode.none, None, read.high_watermark, read.log_start_offset)
        if not read.data:
            return answer
        chain = check_chain(read.data)
        first = FirstBatch(chain.first_offset, chain.epochs[0][0])
        return answer._replace(records=read.data, largest_epoch=chain.epochs[-1][0], first=first)

    def step(self) -> MirrorResult:
        fetch = self.mirror.fetch()
        assert fetch is not None
        result = self.mirror.on_answer(fetch, self.answer(fetch))
        self.mirror.notice(result)
        return result

    def begin(self, producer_id: int, value: bytes = b"v", sequence: int = 0) -> None:
        add(self.source, transactional([value], producer=(producer_id, 2, sequence)), leader_epoch=3)

    def end(self, producer_id: int, *, commit: bool) -> None:
        end(self.source, producer_id, 2, commit=commit, coordinator_epoch=6, leader_epoch=3)

    def skip_gap(self, start: int) -> None:
        """Has the source delete what is below `start`, and the mirror go on behind it."""
        self.source.delete_records_before(start)
        fetch = self.mirror.fetch()
        assert fetch is not None
        assert self.mirror.on_answer(fetch, MirrorAnswer(ErrorCode.offset_out_of_range)) is MirrorResult.OUT_OF_RANGE
        assert self.mirror.on_bounds(fetch, start, ID) is MirrorResult.GAP_FOUND
        self.mirror.skip_gap()


def shown(log: PartitionLog) -> list[bytes | None]:
    """Returns the values that a reader of committed records gets from the log start on."""
    read = log.read(log.log_start_offset, 1 << 20, isolation=ReadIsolation.COMMITTED)
    return [record.value for record in committed(read.data, read.aborted)]


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


def test_the_log_start_does_not_pass_what_a_member_of_the_isr_has(tmp_path: Path) -> None:
    """It would begin anew at its leader's start, without a record, and may be the next leader (M5)."""
    rig = Rig(tmp_path)
    rig.take_role(11, isr=(0, 1))
    registration = BrokerRegistration(1, 7, "i", ("d",))

    def follow(offset: int) -> None:
        fetch = ReplicaFetch(1, 7, 11, offset, 3)
        assert rig.mirror.leader.on_fetch(fetch, registration, 0) is None

    rig.write(b"a", b"b")
    rig.step()
    follow(1)
    rig.write(b"deleted", b"c")
    rig.skip_gap(3)
    assert rig.step() is MirrorResult.APPENDED
    rig.mirror.fetch()
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (1, 4)
    follow(4)
    rig.mirror.fetch()
    assert rig.log.log_start_offset == 3


OWN_RETENTION = MirrorRules(follows_retention=False)


@pytest.mark.parametrize("rules", [OWN_RETENTION, MirrorRules()], ids=["own", "source"])
def test_a_transaction_whose_marker_lies_in_a_gap_is_aborted_there(tmp_path: Path, rules: MirrorRules) -> None:
    """Otherwise readers of committed records stop at its first record, or at the log start."""
    rig = Rig(tmp_path, rules=rules)
    rig.begin(1, b"first")
    rig.end(1, commit=True)
    rig.begin(1, b"open", 1)
    rig.write(b"plain")
    rig.step()
    rig.end(1, commit=True)
    rig.write(b"deleted")
    rig.begin(2, b"second")
    rig.end(2, commit=True)
    rig.skip_gap(6)
    assert rig.log.last_stable_offset == 2
    assert rig.step() is MirrorResult.APPENDED
    rig.mirror.fetch()
    assert rig.log.log_start_offset == (6 if rules.follows_retention else 0)
    assert rig.log.last_stable_offset == rig.log.log_end_offset == 8
    kept = [] if rules.follows_retention else [b"first", b"plain"]
    assert shown(rig.log) == [*kept, b"second"]


def test_a_marker_in_a_gap_has_the_epochs_and_the_time_of_what_it_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=OWN_RETENTION)
    rig.begin(1)
    rig.end(1, commit=True)
    rig.begin(1, sequence=1)
    rig.step()
    rig.write(b"deleted", b"deleted", b"behind", epoch=5)
    rig.skip_gap(5)
    rig.step()
    own = rig.log.read(3, 1).data
    header = BatchHeader.parse(own)
    assert (header.base_offset, header.producer_id, header.producer_epoch) == (4, 1, 2)
    assert header.leader_epoch == 5, "another replica may have records of the gap in this epoch"
    assert header.max_timestamp == START_MS
    assert read_marker(own, 0, header) == TransactionMarker(False, 6)


def test_a_follower_and_a_log_opened_again_know_the_markers_in_a_gap(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=OWN_RETENTION)
    rig.begin(1)
    rig.begin(2)
    rig.write(b"plain")
    rig.step()
    follower = open_log(tmp_path / "follower")
    follower.follow(10)
    follower.append_as_follower(all_of(rig.log), 10)
    rig.write(b"deleted", b"deleted", b"deleted", b"behind")
    rig.skip_gap(6)
    rig.step()
    copied = follower.log_end_offset
    follower.append_as_follower(rig.log.read(copied, 1 << 20, isolation=ReadIsolation.LOG_END).data, 10)
    follower.advance_high_watermark(7)
    for log in (rig.log, follower):
        assert log.first_offsets_of_transactions == {}
        assert log.last_stable_offset == log.log_end_offset == 7
        assert shown(log) == [b"plain", b"behind"]
        log.close(clean=False)
    again = open_log(tmp_path / "mirror")
    again.advance_high_watermark(7)
    assert again.first_offsets_of_transactions == {}
    assert shown(again) == [b"plain", b"behind"]


def test_a_transaction_that_goes_on_behind_a_gap_begins_there_for_readers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=OWN_RETENTION)
    rig.begin(1, b"before")
    rig.step()
    rig.begin(1, b"deleted", 1)
    rig.begin(1, b"behind", 2)
    rig.skip_gap(2)
    rig.step()
    assert rig.log.first_offsets_of_transactions == {1: 2}
    rig.end(1, commit=True)
    rig.step()
    assert shown(rig.log) == [b"behind"]


def test_a_batch_that_begins_in_the_gap_is_stored_behind_the_markers(tmp_path: Path) -> None:
    """DeleteRecords may set the source's log start within a batch."""
    rig = Rig(tmp_path, rules=OWN_RETENTION)
    for producer_id in (1, 2, 3):
        rig.begin(producer_id)
    rig.step()
    rig.write(b"deleted", b"deleted")
    rig.source.append_as_leader(bytearray(batch([b"a", b"b", b"c"])), 3, commit=True)
    rig.skip_gap(7)
    assert rig.step() is MirrorResult.APPENDED
    assert rig.log.first_offsets_of_transactions == {3: 2}, "there are two offsets for markers"
    assert all_of(rig.log).endswith(rig.source.read(7, 1 << 20).data)


def test_at_the_sources_end_transactions_are_aborted_without_a_batch(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rules=OWN_RETENTION)
    rig.begin(1)
    rig.write(b"plain")
    rig.step()
    rig.end(1, commit=True)
    rig.write(b"deleted")
    rig.skip_gap(4)
    fetch = rig.mirror.fetch()
    assert fetch is not None
    rig.mirror.on_answer(fetch, MirrorAnswer(high_watermark=5, log_start_offset=4))
    assert rig.log.first_offsets_of_transactions == {1: 0}, "a batch that was too large for the answer may begin below"
    assert rig.step() is MirrorResult.APPENDED
    assert (rig.log.log_end_offset, rig.log.last_stable_offset) == (4, 4)
    assert rig.mirror.fetch() == MirrorFetch(4, 3)
    assert shown(rig.log) == [b"plain"]


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
