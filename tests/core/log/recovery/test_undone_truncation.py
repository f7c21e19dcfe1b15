"""A truncation is on disk before a later leader epoch is. Batches that a power loss brings back all the same do not
become batches of that epoch."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from klamm.core import faults
from klamm.core.errors import KlammError, StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.errors import FencedLeaderEpochError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.segment.naming import LEADER_EPOCHS
from klamm.core.log.state.leader_epochs import LeaderEpochs
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klammtest.faulty import fault_hook
from klammtest.logs import START_MS, TP, batch, open_log, read_all
from klammtest.waiting import PATIENCE_S

ONE_SEGMENT, MANY_SEGMENTS = 1 << 20, 300


class Disk:
    """What a power loss leaves of one directory at least: the names at the directory's last sync, and the content of
    each file at its last sync."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._held: list[int] = []
        """Keeps the inodes of removed files, so that no later file gets their numbers."""

    def synced(self, fd: int) -> None:
        found = os.fstat(fd)
        path = Path(f"/proc/self/fd/{fd}")
        if stat.S_ISREG(found.st_mode):
            self._held.append(os.dup(fd))
            self._contents[found.st_ino] = path.read_bytes()
        elif path.resolve() == self.directory.resolve():
            self._names = {each.name: self._inode(each) for each in self.directory.iterdir()}

    def _inode(self, path: Path) -> int:
        self._held.append(os.open(path, os.O_RDONLY))
        return os.fstat(self._held[-1]).st_ino

    def lose_power(self, target: Path, *, written: tuple[str, ...] = ()) -> Path:
        """Makes what is left in `target`. `written`: files of which the kernel has also written what nobody synced."""
        left = target / self.directory.name
        left.mkdir(parents=True)
        for name, inode in self._names.items():
            (left / name).write_bytes(self._contents.get(inode, b""))
        for name in written:
            (left / name).write_bytes((self.directory / name).read_bytes())
        return target

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk below the directory that `open_log(tmp_path / "data")` uses."""
    disk = Disk(tmp_path / "data" / str(TP))

    def following(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            real(fd)
            disk.synced(fd)

        return sync

    monkeypatch.setattr(os, "fsync", following(os.fsync))
    monkeypatch.setattr(os, "fdatasync", following(os.fdatasync))
    yield disk
    disk.close()


def run(first: int, end: int, epoch: int, text: bytes) -> bytes:
    """Returns batches of one record each, as a leader of `epoch` has stored them."""
    return b"".join(
        encode_batch([(START_MS, None, b"%s%d" % (text, offset), ())], base_offset=offset, leader_epoch=epoch)
        for offset in range(first, end)
    )


def deposed(directory: Path, segment_bytes: int) -> PartitionLog:
    """Returns a flushed log of ten committed records of epoch 3, and ten of epoch 4, in which it led, that no other
    replica has."""
    log = open_log(directory, segment_bytes=segment_bytes)
    log.follow(3)
    log.append_as_follower(run(0, 10, 3, b"committed"), 3)
    log.begin_leader_epoch(4)
    log.lead(4)
    for _ in range(10, 20):
        log.append_as_leader(batch([b"uncommitted"]), 4)
    log.advance_high_watermark(10)
    log.flush()
    return log


def epochs_in(directory: Path) -> list[int]:
    """Returns the leader epoch of each batch in the files of the log, in the order of offsets."""
    files = sorted((directory / str(TP)).glob("*.log"))
    return [header.leader_epoch for path in files for _, header in iter_headers(path.read_bytes())]


def reopened(directory: Path, *, recovery_point: int = 10, segment_bytes: int = MANY_SEGMENTS) -> PartitionLog:
    """Opens the log after a power loss, and checks that each batch has the epoch that the log has for its offset."""
    known = OpenFrom(recovery_point=recovery_point, high_watermark=recovery_point)
    log = open_log(directory, known=known, segment_bytes=segment_bytes)
    log.advance_high_watermark(log.log_end_offset)
    assert [record.offset for record in read_all(log)] == list(range(log.log_start_offset, log.log_end_offset))
    data = log.read(log.log_start_offset, 1 << 20, isolation=ReadIsolation.LOG_END).data
    epochs = [header.leader_epoch for _, header in iter_headers(data)]
    assert log.last_record_epoch == (epochs[-1] if epochs else -1)
    return log


@pytest.mark.parametrize("segment_bytes", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_power_loss_does_not_undo_a_truncation_once_a_later_epoch_is_on_disk(
    tmp_path: Path, disk: Disk, segment_bytes: int
) -> None:
    log = deposed(tmp_path / "data", segment_bytes)
    term = log.follow(6)
    log.truncate_to(10, 6, term)
    log.append_as_follower(run(10, 20, 6, b"acknowledged"), 6, term)
    log.begin_leader_epoch(7, durable=False)
    log.make_durable()
    left = disk.lose_power(tmp_path / "left")
    assert LeaderEpochs.read(left / str(TP) / LEADER_EPOCHS).entries() == [(3, 0), (6, 10), (7, 20)]
    assert epochs_in(left) == [3] * 10
    log = reopened(left)
    assert (log.log_end_offset, log.last_record_epoch, log.recovery_cut_more) == (10, 3, False)


@pytest.mark.parametrize("segment_bytes", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("offset", [5, 1000])
def test_a_power_loss_does_not_undo_a_restart(tmp_path: Path, disk: Disk, segment_bytes: int, offset: int) -> None:
    log = deposed(tmp_path / "data", segment_bytes)
    term = log.follow(6)
    log.restart_at(offset, 6, term)
    log.append_as_follower(run(offset, offset + 5, 6, b"acknowledged"), 6, term)
    left = disk.lose_power(tmp_path / "left", written=(LEADER_EPOCHS,))
    assert [path.name for path in (left / str(TP)).glob("*.log")] == [f"{offset:020d}.log"]
    assert epochs_in(left) == []
    assert not list((left / str(TP)).glob("*.snapshot"))


@pytest.mark.parametrize("written", [(), (LEADER_EPOCHS,)], ids=["synced only", "epochs written"])
@pytest.mark.parametrize("segment_bytes", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_power_loss_at_any_time_leaves_a_log_that_agrees_with_its_epochs(
    tmp_path: Path, disk: Disk, segment_bytes: int, written: tuple[str, ...]
) -> None:
    log = deposed(tmp_path / "data", segment_bytes)
    term = log.follow(6)
    left: list[Path] = []

    def lose_power(_: str) -> None:
        left.append(disk.lose_power(tmp_path / f"left-{len(left)}", written=written))

    with fault_hook(lose_power):
        log.truncate_to(7, 6, term)
        log.append_as_follower(run(7, 10, 3, b"committed") + run(10, 20, 6, b"acknowledged"), 6, term)
        log.begin_leader_epoch(7)
    assert len(left) > 5
    ends = [reopened(directory, recovery_point=7).log_end_offset for directory in left]
    assert ends[0] == 20
    assert ends[-1] == 7
    assert ends == sorted(ends, reverse=True)


def test_only_a_truncation_that_removes_a_batch_waits_for_the_disk(tmp_path: Path) -> None:
    log = deposed(tmp_path, ONE_SEGMENT)
    points: list[str] = []
    with fault_hook(points.append):
        term = log.follow(6)
        log.truncate_to(20, 6, term)
        log.begin_leader_epoch(7, durable=False)
        log.lead(7)
    assert points == ["files.write", "files.rename"]
    log.follow(8)
    points.clear()
    with fault_hook(points.append):
        log.truncate_to(15, 8)
    assert points[0] == "files.truncate"
    synced = points.index("files.fsync")
    assert points[synced : synced + 3] == ["files.fsync", "files.fsync_directory", "files.write"]
    assert not {"files.write", "files.rename"} & set(points[:synced])


def test_the_log_is_not_locked_while_unflushed_batches_before_a_truncation_are_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(20):
        log.append_as_leader(batch(), 0)
    seen: list[tuple[str, bool]] = []

    def look(point: str) -> None:
        if point in ("files.fsync", "files.truncate"):
            other = Thread(target=lambda: log.size)
            other.start()
            other.join(0.2)
            seen.append((point, other.is_alive()))

    with fault_hook(look):
        log.truncate_to(12)
    assert seen == [("files.fsync", False), ("files.truncate", True), ("files.fsync", True)]


def test_a_truncation_that_is_fenced_leaves_the_checkpoints_to_the_next_one(tmp_path: Path) -> None:
    """Both are under way at once; a recovery point above the end would take what is damaged there for flushed."""
    log = open_log(tmp_path)
    for _ in range(20):
        log.append_as_leader(batch(), 0)
    log.flush()
    begun, go_on = [Event(), Event()], [Event(), Event()]
    order, refused = iter((0, 1)), list[KlammError]()

    def wait(_: PartitionLog, __: int) -> None:
        number = next(order)
        begun[number].set()
        assert go_on[number].wait(PATIENCE_S)

    def truncate(epoch: int, term: int) -> None:
        try:
            log.truncate_to(10, epoch, term)
        except KlammError as error:
            refused.append(error)

    log.on_truncating = wait
    threads = []
    for number, epoch in enumerate((6, 7)):
        threads.append(Thread(target=truncate, args=(epoch, log.follow(epoch))))
        threads[-1].start()
        assert begun[number].wait(PATIENCE_S)
    for number, thread in enumerate(threads):
        assert log.checkpointed.recovery_point == 10
        go_on[number].set()
        thread.join(PATIENCE_S)
    assert [type(error) for error in refused] == [FencedLeaderEpochError]
    assert log.log_end_offset == log.checkpointed.recovery_point == 10
    log.append_as_follower(run(10, 20, 7, b"new"), 7)
    log.flush()
    assert log.checkpointed.recovery_point == 20


def test_epochs_that_a_full_disk_kept_are_durable_before_the_next_batch(tmp_path: Path, disk: Disk) -> None:
    """The truncation could not remove them: the file still has an epoch that is over for the batch's offsets."""
    log = deposed(tmp_path / "data", ONE_SEGMENT)
    term = log.follow(6)
    with fault_hook(ScriptedFaults("files.write@1+=ENOSPC")):
        log.truncate_to(10, 6, term)
    log.append_as_follower(run(10, 15, 3, b"committed"), 6, term)
    left = disk.lose_power(tmp_path / "left", written=("00000000000000000000.log",))
    log = reopened(left)
    assert (log.log_end_offset, log.recovery_cut_more) == (15, False)


@pytest.mark.parametrize("point", ["files.fsync", "files.fsync_directory"])
@pytest.mark.parametrize(
    ("nth", "change"),
    [(1, lambda log: log.truncate_to(12)), (2, lambda log: log.restart_at(50))],  # a restart writes the epochs first
)
def test_a_failed_sync_of_a_truncation_counts_as_a_failed_flush(
    tmp_path: Path, point: str, nth: int, change: Callable[[PartitionLog], None]
) -> None:
    """Records before the cut may be gone, too."""
    log = open_log(tmp_path)
    for _ in range(20):
        log.append_as_leader(batch(), 0)
    log.flush()
    failed: list[bool] = []
    log.on_flush_failed = lambda: failed.append(True)
    faults.install(ScriptedFaults(f"{point}@{nth}=EIO"))
    try:
        with pytest.raises(StorageError):
            change(log)
    finally:
        faults.install(None)
    assert log.offline is not None
    assert failed == [True]


def undone(directory: Path, segment_bytes: int, kept: int) -> list[str]:
    """Leaves what a power loss may leave where nothing was synced: the truncated batches, but for `kept` of the later
    ones in their place, beside the later epochs. Returns the names of the segments."""
    log = deposed(directory, segment_bytes)
    before = {path.name: path.read_bytes() for path in log.directory.glob("*.log")}
    term = log.follow(6)
    log.truncate_to(10, 6, term)
    log.append_as_follower(run(10, 20, 6, b"acknowledged"), 6, term)
    log.begin_leader_epoch(7)
    log.close(clean=False)
    if kept:
        assert segment_bytes == ONE_SEGMENT
        (name,) = before
        raw = (log.directory / name).read_bytes()
        at = [position for position, _ in iter_headers(raw)][10 + kept]
        old = [position for position, _ in iter_headers(before[name])][10 + kept]
        before[name] = raw[:at] + before[name][old:]
    for path in log.directory.glob("*.log"):
        path.unlink()
    for name, content in before.items():
        (log.directory / name).write_bytes(content)
    return sorted(before)


@pytest.mark.parametrize(("segment_bytes", "kept"), [(ONE_SEGMENT, 0), (ONE_SEGMENT, 5), (MANY_SEGMENTS, 0)])
def test_batches_of_before_a_truncation_end_the_log(
    tmp_path: Path, segment_bytes: int, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    names = undone(tmp_path, segment_bytes, kept)
    with caplog.at_level(logging.WARNING):
        log = reopened(tmp_path, segment_bytes=segment_bytes)
    end = 10 + kept
    assert (log.log_end_offset, log.last_record_epoch, log.leader_epoch) == (end, *((6, 6) if kept else (3, 3)))
    assert epochs_in(tmp_path) == [3] * 10 + [6] * kept
    assert log.recovery_cut_more
    first = next(one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert f"to offset {end}: the batch there has the leader epoch 4, but leader-epoch-checkpoint has 6" in first
    aside = sorted(path.name.split(".log")[0] for path in log.directory.glob("*.log.*.corrupt"))
    assert aside == [name.split(".")[0] for name in names if int(name.split(".")[0]) > end]
    log.follow(8)
    log.append_as_follower(run(end, end + 2, 8, b"more"), 8)
    assert [record.offset for record in read_all(log)] == list(range(end + 2))


@pytest.mark.parametrize("segment_bytes", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("at", [10, 18], ids=["the first of its epoch", "within it"])
def test_an_epoch_above_that_of_the_next_batch_ends_the_log_before_it(
    tmp_path: Path, segment_bytes: int, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The CRC does not cover the epoch. One that nobody has led would win elections."""
    log = deposed(tmp_path, segment_bytes)
    directory = log.directory
    log.close(clean=False)
    for path in directory.glob("*.log"):
        raw = bytearray(path.read_bytes())
        for position, header in iter_headers(bytes(raw)):
            if header.base_offset == at:
                raw[position + 14] ^= 2
        path.write_bytes(raw)
    with caplog.at_level(logging.WARNING):
        log = reopened(tmp_path, segment_bytes=segment_bytes)
    assert (log.log_end_offset, log.recovery_cut_more) == (at, True)
    assert log.leader_epoch == max(epochs_in(tmp_path))
    first = next(one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert f"to offset {at}: the batch there has the leader epoch 516, but the one at offset {at + 1} has 4" in first


def test_flushed_batches_are_not_compared(tmp_path: Path) -> None:
    """What is on disk for certain is not truncated because of the epoch file; reads of it fail."""
    undone(tmp_path, ONE_SEGMENT, 0)
    log = open_log(tmp_path, known=OpenFrom(recovery_point=20))
    assert (log.log_end_offset, log.recovery_cut_more) == (20, False)


def test_a_damaged_batch_below_the_recovery_point_stays(tmp_path: Path) -> None:
    undone(tmp_path, ONE_SEGMENT, 0)
    path = tmp_path / str(TP) / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    position = [position for position, _ in iter_headers(raw)][4]
    raw[position + 16] ^= 1  # the magic
    path.write_bytes(raw)
    log = open_log(tmp_path, known=OpenFrom(recovery_point=10))
    assert log.log_end_offset == 10
    log.advance_high_watermark(10)
    assert [record.offset for record in read_all(log, 5)] == [5, 6, 7, 8, 9]


def test_an_epoch_file_that_is_ahead_or_behind_cuts_nothing(tmp_path: Path) -> None:
    log = deposed(tmp_path, ONE_SEGMENT)
    log.begin_leader_epoch(9)
    log.close(clean=False)
    log = reopened(tmp_path)
    assert (log.log_end_offset, log.last_record_epoch, log.recovery_cut_more) == (20, 4, False)
    log.close(clean=False)
    behind = LeaderEpochs(log.directory / LEADER_EPOCHS)
    behind.assign(3, 0)
    log = reopened(tmp_path)
    assert (log.log_end_offset, log.last_record_epoch, log.recovery_cut_more) == (20, 4, False)


@pytest.mark.parametrize(("start", "end"), [(11, 11), (8, 5), (3, 3)])
def test_a_log_with_gaps_is_compared_too(tmp_path: Path, start: int, end: int) -> None:
    """A copy of a compacted log with the offsets 0 to 4 and 10, of epoch 3. Epoch 6 begins at `start`, in the file."""
    log = open_log(tmp_path, cleanup_policy="compact")
    log.append_as_follower(run(0, 5, 3, b"a") + run(10, 11, 3, b"a"), 3)
    log.close(clean=False)
    assert open_log(tmp_path, cleanup_policy="compact").log_end_offset == 11
    LeaderEpochs(log.directory / LEADER_EPOCHS, [(3, 0)]).assign(6, start)
    log = open_log(tmp_path, cleanup_policy="compact")
    assert (log.log_end_offset, log.recovery_cut_more) == (end, end < 11)


@pytest.mark.parametrize("start", [4, 10, 12])
def test_batches_before_a_raised_log_start_cut_nothing(tmp_path: Path, start: int) -> None:
    """Their epochs are no longer in the file."""
    log = deposed(tmp_path, ONE_SEGMENT)
    log.follow(5)
    log.advance_log_start(start)
    log.close(clean=False)
    log = open_log(tmp_path)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_cut_more) == (start, 20, False)
    assert len(read_all(log)) == 20 - start


def test_a_power_loss_leaves_no_hole_before_the_segment_that_a_truncation_has_synced(
    tmp_path: Path, disk: Disk
) -> None:
    log = open_log(tmp_path / "data", segment_bytes=MANY_SEGMENTS)
    term = log.follow(3)
    for offset in range(20):
        log.append_as_follower(run(offset, offset + 1, 3, b"committed"), 3, term)
    assert log.segment_count > 3
    log.truncate_to(18, 3, term)
    left = disk.lose_power(tmp_path / "left")
    assert reopened(left, recovery_point=0).log_end_offset == 18
