"""Compaction keeps each key's last record, in order and under its offset, and loses nothing when it is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core import faults
from klamm.core.errors import CorruptRecordError, StorageError
from klamm.core.log.cleanup.compaction import Compacted, CompactionCancelledError, Compactor, compact
from klamm.core.log.cleanup.offset_map import ENTRY_BYTES
from klamm.core.log.cleanup.throttle import Throttle
from klamm.core.log.errors import InvalidRecordError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.record import Record
from klammtest.faulty import fault_hook
from klammtest.logs import START_MS, ManualClock, append, clean_start, codec_table, open_log, read_all

CODECS = codec_table()
DAY_MS = 86_400_000
Row = tuple[bytes | None, bytes | None]
SMALL = {"cleanup_policy": "compact", "segment_bytes": 600, "file_delete_delay_ms": 0}


class Killed(BaseException):
    """The process ends here: nobody catches it."""


def rows(*texts: str) -> list[Row]:
    """`a=1` a record, `a` a tombstone."""
    found = [text.partition("=") for text in texts]
    return [(key.encode(), value.encode() if sign else None) for key, sign, value in found]


def write(
    log: PartitionLog, batch: Sequence[Row], codec: str = "none", sequence: int = -1, stamp: int = START_MS
) -> None:
    records = [(stamp + i, key, value, (("h", b"x"),)) for i, (key, value) in enumerate(batch)]
    producer = (5, 0) if sequence >= 0 else (-1, -1)
    data = encode_batch(
        records,
        codec=CODECS.by_name(codec),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )
    append(log, bytearray(data))


def run(log: PartitionLog, clock: ManualClock, *, first: int = 0, map_bytes: int = 1 << 20) -> list[Compacted]:
    """Passes until all sealed segments are compacted."""
    tools = Compactor(CODECS, map_bytes, Throttle(1e12, lambda _: False), clock)
    end, done = log.sealed_end(log.sealed_segments()), []
    while first < end:
        done.append(compact(log, first, end, tools))
        assert done[-1].first_dirty > first
        first = done[-1].first_dirty
    return done


def seal(log: PartitionLog, clock: ManualClock) -> None:
    """All that is there now may be compacted."""
    clock.advance(1)
    log.roll_when_older(-DAY_MS, clock.now_ms)


def headers_of(log: PartitionLog) -> Iterator[BatchHeader]:
    data = log.read(log.log_start_offset, 1 << 24, isolation=ReadIsolation.LOG_END).data
    return (header for _, header in iter_headers(data))


def latest(records: Sequence[Record]) -> dict[bytes | None, tuple[bytes | None, int, int]]:
    return {r.key: (r.value, r.offset, r.timestamp_ms) for r in records}


def test_the_last_record_of_each_key_stays_in_its_place(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for number in range(40):
        write(log, rows(f"a={number}", f"b{number % 3}={number}", f"c{number}=x"))
    seal(log, clock)
    before = read_all(log)
    assert log.segment_count > 5
    run(log, clock)
    after = read_all(log)
    assert latest(after) == latest(before)
    assert [r for r in before if r in after] == after
    assert len([r for r in after if r.key == b"a"]) == 1
    assert log.log_end_offset == 120


def test_fetch_and_times_over_gaps(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for number in range(30):
        write(log, rows(f"{'a' if number < 29 else 'b'}={number}"), stamp=START_MS + number * 10)
    seal(log, clock)
    run(log, clock)
    assert [r.offset for r in read_all(log)] == [28, 29]
    for offset in range(28):
        data = log.read(offset, 1, isolation=ReadIsolation.LOG_END).data
        assert data, f"a fetch of {offset}, which is gone, gives what comes next"
    assert [r.offset for r in read_all(log, 5)] == [28, 29]
    found = log.offset_for_timestamp(START_MS + 15)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (28, START_MS + 280)


def test_tombstones_stay_for_delete_retention(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL, delete_retention_ms=1000)
    write(log, rows("a=1", "b=1"))
    write(log, rows("a"))
    seal(log, clock)
    run(log, clock)
    assert [(r.key, r.value, r.timestamp_ms) for r in read_all(log)] == [
        (b"b", b"1", START_MS + 1),
        (b"a", None, START_MS),
    ]
    assert [h.delete_horizon_ms for h in headers_of(log)] == [None, clock.now_ms + 1000]
    clock.advance(999)
    run(log, clock)
    assert len(read_all(log)) == 2
    clock.advance(1)
    run(log, clock)
    assert [r.key for r in read_all(log)] == [b"b"]
    log.close()
    again = open_log(tmp_path, clock, known=clean_start(log), **SMALL)
    assert [r.key for r in read_all(again)] == [b"b"]
    assert again.log_end_offset == 3


def test_sequences_survive_where_all_records_went(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for sequence in range(3):
        write(log, rows(f"a={sequence}"), sequence=sequence)
    write(log, rows("a=9"))
    seal(log, clock)
    run(log, clock)
    assert [(h.base_sequence, h.record_count) for h in headers_of(log)] == [(2, 0), (-1, 1)]
    log.close(clean=False)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    again = open_log(tmp_path, clock, **SMALL)
    records = [(START_MS, b"a", b"2", (("h", b"x"),))]
    retry = encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=2)
    assert again.append_as_leader(bytearray(retry), 0).duplicate
    write(again, rows("a=10"), sequence=3)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_keep_their_codec(tmp_path: Path, codec: str) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for number in range(10):
        write(log, rows(*(f"k{i}={number}" for i in range(number % 4 + 1))), codec)
    seal(log, clock)
    before = latest(read_all(log))
    run(log, clock)
    assert latest(read_all(log)) == before
    assert {h.codec_id for h in headers_of(log) if h.record_count} == {CODECS.by_name(codec).codec_id}


def test_a_small_map_takes_several_passes(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for number in range(60):
        write(log, rows(f"k{number % 20}={number}"))
    seal(log, clock)
    before = latest(read_all(log))
    done = run(log, clock, map_bytes=7 * ENTRY_BYTES)
    assert len(done) > 2
    assert latest(read_all(log)) == before


def test_the_segment_that_is_written_is_never_touched(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, cleanup_policy="compact")
    write(log, rows("a=1"))
    write(log, rows("a=2"))
    assert log.sealed_segments() == []
    assert run(log, clock) == []
    assert len(read_all(log)) == 2


def test_a_log_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for number in range(30):
        write(log, rows(f"a={number}"))
    seal(log, clock)
    before = read_all(log)
    cut = iter([False] * 33)

    def wait(_: float) -> bool:
        if next(cut, None) is None and log.log_end_offset > 3:
            log.truncate_to(3)
        return False

    tools = Compactor(CODECS, 1 << 20, Throttle(1e12, wait), clock)
    with pytest.raises((CompactionCancelledError, StorageError, CorruptRecordError)):
        compact(log, 0, log.sealed_end(log.sealed_segments()), tools)
    assert read_all(log) == before[:3]
    assert not list(log.directory.glob("*.cleaned"))


def compact_while(log: PartitionLog, clock: ManualClock, change: Callable[[], None]) -> None:
    """Runs a pass; calls `change` once, when the first compacted segment is written and not yet in the log."""
    changes = iter([change])

    def hook(name: str) -> None:
        if name == "compaction.fsync":
            next(changes, lambda: None)()

    tools = Compactor(CODECS, 1 << 20, Throttle(1e12, lambda _: False), clock)
    with fault_hook(hook):
        compact(log, 0, log.sealed_end(log.sealed_segments()), tools)
    assert next(changes, None) is None


def test_a_segment_that_was_active_again_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """A follower's truncation at the base offset of the active segment: batches are appended to the one before it."""
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for row in ("a=1", "a=2", f"b={'x' * 500}"):
        write(log, rows(row))
    sealed = log.sealed_segments()
    assert [segment.next_offset for segment in sealed] == [2]

    def replace_the_active_segment() -> None:
        log.truncate_to(2)
        write(log, rows("c=3"))
        seal(log, clock)

    with pytest.raises(CompactionCancelledError):
        compact_while(log, clock, replace_the_active_segment)
    assert log.sealed_segments() == sealed
    assert [record.value for record in read_all(log)] == [b"1", b"2", b"3"]
    assert not list(log.directory.glob("*.cleaned"))
    run(log, clock)
    assert [record.value for record in read_all(log)] == [b"2", b"3"]


def test_a_record_that_a_truncated_one_superseded_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    for row in (f"a={'1' * 400}", f"b={'x' * 300}", "a=2"):
        write(log, rows(row))
    seal(log, clock)
    before = read_all(log)
    assert [segment.next_offset for segment in log.sealed_segments()] == [1, 3]
    with pytest.raises(CompactionCancelledError):
        compact_while(log, clock, lambda: log.truncate_to(2))
    assert read_all(log) == before[:2]


def test_records_without_key_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, ManualClock(), cleanup_policy="compact,delete")
    with pytest.raises(InvalidRecordError, match="no key"):
        write(log, [(None, b"x")])


KEYS = st.sampled_from([b"a", b"b", b"c", b"dd", b""])
VALUES = st.one_of(st.none(), st.binary(max_size=8))
BATCHES = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), st.sampled_from(["none", "gzip", "zstd"])),
    min_size=1,
    max_size=25,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.integers(1, 8), st.booleans(), st.integers(0, 25))
def test_the_last_values_are_the_same_before_and_after(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[list[Row], str]],
    map_size: int,
    tombstones_go: bool,
    split: int,
) -> None:
    """Order and offsets too; compacted twice, with writes between, and opened again as after a crash."""
    clock = ManualClock()
    directory = tmp_path_factory.mktemp("log")
    config = {**SMALL, "segment_bytes": 300, "delete_retention_ms": 10}
    log = open_log(directory, clock, **config)
    seen: dict[int, Record] = {}
    first = 0
    for part in (batches[:split], batches[split:]):
        for batch, codec in part:
            write(log, batch, codec)
        seal(log, clock)
        seen.update({r.offset: r for r in read_all(log)})
        done = run(log, clock, first=first, map_bytes=map_size * ENTRY_BYTES)
        first = done[-1].first_dirty if done else first
        clock.advance(100 if tombstones_go else 0)
    expected = latest(list(seen.values()))
    log.close(clean=False)
    again = open_log(directory, clock, **config)
    after = read_all(again)
    assert all(seen[r.offset] == r for r in after)
    assert [r.offset for r in after] == sorted({r.offset for r in after})
    kept = latest(after)
    gone = {key: at for key, at in expected.items() if key not in kept}
    assert {key: kept[key] for key in kept} == {key: expected[key] for key in kept}
    assert all(value is None for value, _, _ in gone.values())
    assert not gone or tombstones_go
    assert again.log_end_offset == sum(len(batch) for batch, _ in batches)


POINTS = [
    "compaction.write",
    "compaction.fsync",
    "compaction.swap",
    "compaction.swapped",
    "compaction.remove_old",
    "compaction.finish",
    "compaction.finished",
    "files.fsync",
    "files.fsync_directory",
    "files.rename",
    "files.unlink",
    "log.index.write",
]


def _filled(directory: Path, clock: ManualClock) -> PartitionLog:
    log = open_log(directory, clock, **SMALL, index_interval_bytes=100)
    for number in range(60):
        write(log, rows(f"a={number}", f"k{number % 7}={number}"))
    seal(log, clock)
    return log


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_nothing_is_lost(tmp_path: Path, point: str) -> None:
    """At each of the first passes of the point, and again in the recovery that follows."""
    fired = 0
    for nth in range(1, 10):
        clock = ManualClock()
        log = _filled(tmp_path / str(nth), clock)
        before = latest(read_all(log))
        try:
            killing(point, nth)
            run(log, clock)
            killed = False
        except Killed:
            killed = True
        finally:
            faults.install(None)
        fired += killed
        again = open_log(tmp_path / str(nth), clock, **SMALL)
        assert latest(read_all(again)) == before, (point, nth)
        assert again.log_end_offset == 120
        run(again, clock)
        assert latest(read_all(again)) == before, (point, nth)
        left = [path.name for path in again.directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]
        assert left == []
        if not killed:
            break
    assert fired, f"compaction never passes {point}"


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6])
def test_killed_again_while_recovering(tmp_path: Path, nth: int) -> None:
    clock = ManualClock()
    log = _filled(tmp_path, clock)
    before = latest(read_all(log))
    try:
        killing("compaction.remove_old", 2)
        with pytest.raises(Killed):
            run(log, clock)
        killing("compaction.recover", nth)
        with contextlib.suppress(Killed):
            open_log(tmp_path, clock, **SMALL)
    finally:
        faults.install(None)
    again = open_log(tmp_path, clock, **SMALL)
    assert latest(read_all(again)) == before


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    clock = ManualClock()
    log = _filled(tmp_path, clock)
    before = read_all(log)
    try:
        faults.install(faults.ScriptedFaults("compaction.write=ENOSPC"))
        with pytest.raises(StorageError, match="space"):
            run(log, clock)
    finally:
        faults.install(None)
    assert read_all(log) == before
    assert not list(log.directory.glob("*.cleaned"))
    run(log, clock)
    assert latest(read_all(log)) == latest(before)


@pytest.mark.parametrize(
    "point",
    [
        "compaction.swapped",
        "files.fsync_directory",
        "compaction.remove_old",
        "compaction.finish",
        "compaction.finished",
    ],
)
def test_a_swap_that_fails_half_way_is_finished_by_the_next_start(tmp_path: Path, point: str) -> None:
    """The log is offline until then: a later pass would leave the `.swap` file beside segments that have changed."""
    clock = ManualClock()
    log = _filled(tmp_path, clock)
    before = latest(read_all(log))
    with fault_hook(faults.ScriptedFaults(f"{point}=EIO")), pytest.raises((StorageError, OSError)):
        run(log, clock)
    assert len(list(log.directory.glob("*.log.swap"))) == (point != "compaction.finished")
    assert log.offline is not None
    assert "a compaction could not be finished" in log.offline
    log.close(clean=False)
    again = open_log(tmp_path, clock, **SMALL)
    assert latest(read_all(again)) == before
    left = [path.name for path in again.directory.iterdir() if path.name.endswith((".swap", ".cleaned", ".corrupt"))]
    assert left == []


def test_a_swap_that_does_not_begin_changes_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    log = _filled(tmp_path, clock)
    before = read_all(log)
    with fault_hook(faults.ScriptedFaults("compaction.swap=EIO")), pytest.raises(StorageError):
        run(log, clock)
    assert log.offline is None
    assert read_all(log) == before
    assert not [path for path in log.directory.iterdir() if path.name.endswith((".swap", ".cleaned"))]


def killing(point: str, nth: int) -> None:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == nth:
            raise Killed(point)

    faults.install(hook)
