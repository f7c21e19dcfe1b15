"""Compaction of logs with transactions: aborted records go, markers stay as long as a reader needs them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from klamm.core.log.cleanup.compaction import Compacted, Compactor, compact
from klamm.core.log.cleanup.offset_map import ENTRY_BYTES
from klamm.core.log.cleanup.throttle import Throttle
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.records.header import BatchHeader, iter_headers
from klammtest.logs import ManualClock, append, batch, codec_table, open_log, records_of
from klammtest.transactional_logs import add, committed, end, transactional

CODECS = codec_table()
DAY_MS = 86_400_000
SMALL = {"cleanup_policy": "compact", "segment_bytes": 500, "file_delete_delay_ms": 0}


def run(log: PartitionLog, clock: ManualClock, *, first: int = 0, keys: int = 1000) -> list[Compacted]:
    """Passes until all cleanable segments are compacted."""
    tools = Compactor(CODECS, keys * ENTRY_BYTES, Throttle(1e12, lambda _: False), clock)
    sealed = log.cleanable_segments()
    stop, done = log.sealed_end(sealed), []
    while sealed and first < stop:
        done.append(compact(log, first, stop, tools))
        first = done[-1].first_dirty
    log.remove_expired_files(clock() + 1)
    return done


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return [header for _, header in iter_headers(whole(log))]


def whole(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def shown(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Returns what a reader of committed records gets, fetch by fetch."""
    found, at = [], log.log_start_offset
    while at < log.last_stable_offset:
        read = log.read(at, 300, isolation=ReadIsolation.COMMITTED)
        if not read.data:
            break
        found += [(r.offset, r.key, r.value) for r in committed(read.data, read.aborted) if r.offset >= at]
        at = max(header.next_offset for _, header in iter_headers(read.data))
    return found


def reopened(log: PartitionLog, directory: Path, clock: ManualClock, **config: object) -> PartitionLog:
    """Returns the log as it is restored from its batches alone."""
    log.close()
    for path in log.directory.iterdir():
        if path.suffix in (".snapshot", ".index", ".timeindex", ".txnindex"):
            path.unlink()
    known = OpenFrom(True, log.recovery_point, log.log_start_offset, log.high_watermark)
    return open_log(directory, clock, known=known, **config)


def fill(log: PartitionLog, clock: ManualClock) -> None:
    """Ends the active segment."""
    clock.advance(8 * DAY_MS)
    log.roll_when_older(DAY_MS, clock())


def test_aborted_records_go_and_supersede_none(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    append(log, batch([b"kept"], key=b"a"))
    add(log, transactional([b"aborted"], producer=(1, 0, 0), key=b"a"))
    add(log, transactional([b"aborted"], producer=(1, 0, 1), key=b"b"))
    end(log, 1, 1, commit=False)
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))
    run(log, clock)
    assert [record.value for record in records_of(whole(log)) if record.key in (b"a", b"b")] == [b"kept"]
    assert shown(log) == [(0, b"a", b"kept"), (4, b"z", b"active")]


def test_what_was_aborted_in_a_gap_goes(tmp_path: Path) -> None:
    """docs/mirror.md, M7."""
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    add(log, transactional([b"open"], producer=(1, 0, 0), key=b"a"))
    log.mirror(4)
    assert log.abort_in_gap(9, 0, 4) == 1
    log.lead(0)
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))
    run(log, clock)
    assert b"open" not in [record.value for record in records_of(whole(log))]
    log = reopened(log, tmp_path, clock, **SMALL)
    assert log.first_offsets_of_transactions == {}
    assert shown(log) == [(9, b"z", b"active")]


def test_a_marker_stays_while_a_record_of_its_transaction_stays_and_then_for_its_horizon(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL, delete_retention_ms=DAY_MS)
    add(log, transactional([b"1"], producer=(1, 0, 0), key=b"a"))
    end(log, 1, commit=True)
    add(log, transactional([b"2"], producer=(2, 0, 0), key=b"b"))
    end(log, 2, commit=True)
    add(log, transactional([b"3"], producer=(1, 0, 1), key=b"a"))
    end(log, 1, commit=True)
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))

    def markers() -> list[int]:
        return [h.base_offset for h in headers_of(log) if h.is_marker and h.record_count]

    run(log, clock)
    assert markers() == [1, 3, 5], "the first has a horizon now"
    clock.advance(DAY_MS)
    run(log, clock)
    assert markers() == [3, 5]
    assert [value for _, _, value in shown(log)] == [b"2", b"3", b"active"]


def test_a_log_is_compacted_below_its_open_transactions_only(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, **SMALL)
    append(log, batch([b"old"], key=b"a"))
    fill(log, clock)
    add(log, transactional([b"open"], producer=(1, 0, 0), key=b"a", timestamp_ms=clock()))
    append(log, batch([b"new"], key=b"a", timestamp_ms=clock()))
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))
    assert [segment.base_offset for segment in log.cleanable_segments()] == [0]
    run(log, clock)
    assert [record.value for record in records_of(whole(log))] == [b"old", b"open", b"new", b"active"]


@pytest.mark.parametrize("seed", range(10))
def test_random_passes(tmp_path: Path, seed: int) -> None:
    """After each pass a reader has the same last value of each key, and a log that is restored from its batches alone
    the same producers and open transactions."""
    rng, clock = random.Random(seed), ManualClock()
    config = {**SMALL, "delete_retention_ms": 3 * DAY_MS}
    log = open_log(tmp_path, clock, **config)
    epochs, raises = dict.fromkeys(range(4), 0), [rng.random() < 0.5 for _ in range(4)]
    aborted: set[int] = set()
    running: dict[int, list[int]] = {}
    first = 0
    for _ in range(8):
        for _ in range(rng.randrange(5, 30)):
            pid, key = rng.randrange(4), b"%d" % rng.randrange(5)
            if pid == 3:
                append(log, batch([b"plain"], key=key, timestamp_ms=clock()))
            elif pid in running and rng.random() < 0.4:
                commit = rng.random() < 0.5
                epochs[pid] += raises[pid]
                end(log, pid, epochs[pid], commit=commit)
                offsets = running.pop(pid)
                aborted.update([] if commit else offsets)
            else:
                known = log.last_sequence(pid)
                sequence = known[1] + 1 if known is not None and known[0] == epochs[pid] else 0
                value = b"%d" % rng.randrange(1000) if rng.random() < 0.8 else None
                made = transactional([value], producer=(pid, epochs[pid], sequence), key=key, timestamp_ms=clock())
                running.setdefault(pid, []).append(add(log, made).base_offset)
        clock.advance(rng.randrange(1, 3) * DAY_MS)
        before = shown(log)
        done = run(log, clock, first=first, keys=rng.choice([2, 1000]))
        first = done[-1].first_dirty if done else first
        after = shown(log)
        assert set(after) <= set(before)
        latest = {key: value for _, key, value in before}
        assert {k: v for k, v in latest.items() if v is not None} == {
            k: v for k, v in {key: value for _, key, value in after}.items() if v is not None
        }
        assert not aborted & {offset for offset, _, _ in after}
        state = log.first_offsets_of_transactions, log.last_batches_of_producers(), log.last_stable_offset
        log = reopened(log, tmp_path, clock, **config)
        restored = log.first_offsets_of_transactions, log.last_batches_of_producers(), log.last_stable_offset
        assert restored == state
        assert shown(log) == after


def test_a_marker_stays_though_its_records_are_in_another_segment(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {**SMALL, "delete_retention_ms": DAY_MS}
    log = open_log(tmp_path, clock, **config)
    add(log, transactional([b"x" * 400], producer=(1, 0, 0), key=b"a"))
    append(log, batch([b"y" * 400], key=b"b"))
    end(log, 1, commit=True)
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))
    for _ in range(3):
        run(log, clock)
        clock.advance(2 * DAY_MS)
    assert [header.base_offset for header in headers_of(log) if header.is_marker] == [2]
    assert reopened(log, tmp_path, clock, **config).first_offsets_of_transactions == {}


def test_the_header_of_a_marker_stays_while_no_other_batch_has_its_epoch(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {**SMALL, "delete_retention_ms": DAY_MS}
    log = open_log(tmp_path, clock, **config)
    add(log, transactional([b"1"], producer=(1, 0, 0), key=b"a"))
    end(log, 1, 1, commit=True)
    append(log, batch([b"2"], key=b"a"))
    fill(log, clock)
    append(log, batch([b"active"], key=b"z", timestamp_ms=clock()))
    for _ in range(3):
        run(log, clock)
        clock.advance(2 * DAY_MS)
    assert [(h.base_offset, h.record_count) for h in headers_of(log) if h.is_marker] == [(1, 0)]
    assert reopened(log, tmp_path, clock, **config).last_batches_of_producers()[1].epoch == 1
