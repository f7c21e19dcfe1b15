"""Opening after crashes: torn tails, flipped bits, lost indexes and checkpoints."""

from __future__ import annotations

import logging
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core import faults
from klamm.core.errors import StorageError
from klamm.core.log.errors import OffsetOutOfRangeError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.records.header import iter_headers, rewrite_base
from klammtest.logs import START_MS, TOPIC_ID, TP, append, batch, clean_start, fill, open_log, read_all, records_of

COUNT = 40


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


WANTED = [b"%04d" % n * 10 for n in range(COUNT)]


def log_file(log: PartitionLog, base: int = 0) -> Path:
    return log.directory / f"{base:020d}.log"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
def test_reopening_loses_nothing(tmp_path: Path, clean: bool, segment_bytes: int) -> None:
    log = fill(tmp_path, segment_bytes=segment_bytes)
    log.close(clean=clean)
    again = open_log(tmp_path, known=clean_start(log) if clean else None, segment_bytes=segment_bytes)
    assert values(again) == WANTED
    assert (again.log_end_offset, again.size, again.leader_epoch) == (COUNT, log.size, 2)
    assert append(again, batch([b"more"], producer=(1, 0, COUNT)), leader_epoch=2) == (COUNT, COUNT)


def test_an_ordinary_recovery_of_the_active_segment_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After kill -9 its indexes are behind, or were never written."""
    fill(tmp_path).close(clean=False)
    caplog.set_level(logging.INFO)
    again = open_log(tmp_path)
    assert values(again) == WANTED
    assert [record.getMessage() for record in caplog.records] == []


@given(st.data())
@settings(max_examples=40)
def test_a_tail_cut_anywhere_keeps_the_whole_batches(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = fill(directory)
    raw = log_file(log).read_bytes()
    ends = [pos + header.size for pos, header in iter_headers(raw)]
    log.close(clean=False)
    cut = data.draw(st.integers(0, len(raw)))
    junk = data.draw(st.sampled_from([b"", b"\0" * 100, b"\xff" * 100, raw[:50]]))
    left = raw[:cut] + junk
    log_file(log).write_bytes(left)
    kept = sum(left[:end] == raw[:end] for end in ends)  # the junk may happen to complete a batch
    again = open_log(directory)
    assert values(again) == WANTED[:kept]
    assert again.size == ([0, *ends])[kept]
    assert append(again, batch([b"next"]), leader_epoch=9) == (kept, kept)
    for n in range(max(0, kept - 5), kept):
        assert again.append_as_leader(batch([WANTED[n]], producer=(1, 0, n)), 9).duplicate
    again.close()
    shutil.rmtree(directory)


@given(st.integers(0, 10**9))
@settings(max_examples=30)
def test_a_flipped_bit_cuts_before_its_batch(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = fill(directory)
    log.close(clean=False)
    raw = bytearray(log_file(log).read_bytes())
    spots = [(pos, header) for pos, header in iter_headers(raw)]
    at = random.Random(seed).randrange(len(raw))
    raw[at] ^= 1 << seed % 8
    log_file(log).write_bytes(raw)
    hit = next(n for n, (pos, header) in enumerate(spots) if pos <= at < pos + header.size)
    again = open_log(directory)
    again.advance_high_watermark(again.log_end_offset)
    in_batch = at - spots[hit][0]
    if in_batch < 8 or 12 <= in_batch < 16:  # base offset and leader epoch: no CRC covers them
        assert [record.value for n in range(hit) for record in records_of(again.read(n, 1).data)] == WANTED[:hit]
    else:
        assert values(again) == WANTED[:hit]
    again.close()
    shutil.rmtree(directory)


def test_segments_behind_a_damaged_one_are_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = fill(tmp_path, segment_bytes=700)
    log.close(clean=False)
    bases = sorted(int(path.stem) for path in log.directory.glob("*.log"))
    assert len(bases) > 4
    path = log_file(log, bases[2])
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with caplog.at_level(logging.WARNING):
        again = open_log(tmp_path, segment_bytes=700)
    assert again.log_end_offset == bases[3] - 1
    assert values(again) == WANTED[: bases[3] - 1]
    kept = sorted(p.name for p in log.directory.glob("*.log.*.corrupt"))
    assert kept == [f"{base:020d}.log.{START_MS}.corrupt" for base in bases[3:]]
    assert "fails its CRC" in caplog.text
    assert "set aside" in caplog.text
    append(again, batch([b"x"]), leader_epoch=2)
    again.close(clean=False)
    assert len(values(open_log(tmp_path))) == bases[3]


def test_only_what_lies_behind_the_recovery_point_is_checked(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=700)
    log.close(clean=False)
    path = log_file(log, 0)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert open_log(tmp_path, known=OpenFrom(recovery_point=30)).log_end_offset == COUNT


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("harm", ["missing", "empty", "odd size", "short", "older format", "too long", "another's"])
@pytest.mark.parametrize("clean", [True, False])
def test_indexes_are_made_anew(
    tmp_path: Path, suffix: str, harm: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(tmp_path)
    log.close()
    path = log.directory / f"{0:020d}.{suffix}"
    raw = path.read_bytes()
    assert len(raw) > 48
    if harm == "missing":
        path.unlink()
    else:
        size = 8 if suffix == "index" else 12
        new = {
            "empty": b"",
            "odd size": raw[:-3],
            "short": raw[: 16 + 2 * size],
            "older format": raw[16:-40],
            "too long": raw + b"\x7f" * size,
            "another's": (path.parent / f"{0:020d}.{'timeindex' if suffix == 'index' else 'index'}").read_bytes(),
        }
        path.write_bytes(new[harm])
    again = open_log(
        tmp_path, known=clean_start(log) if clean else OpenFrom(recovery_point=COUNT), index_interval_bytes=200
    )
    assert harm == "missing" or str(path) in caplog.text
    assert again.log_end_offset == COUNT
    again.advance_high_watermark(COUNT)
    for n in range(COUNT):
        assert next(iter_headers(again.read(n, 1).data))[1].base_offset == n
        found = again.offset_for_timestamp(START_MS + n)
        assert found is not None
        assert found.offset == n
    again.close()
    assert path.read_bytes() == raw


@given(st.integers(0, 10**9), st.sampled_from(["index", "timeindex"]), st.booleans())
@settings(max_examples=40)
def test_a_flipped_bit_in_an_index_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, seed: int, suffix: str, clean: bool
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = fill(directory)
    log.close()
    path = log.directory / f"{0:020d}.{suffix}"
    raw = path.read_bytes()
    at = random.Random(seed).randrange(len(raw))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << seed % 8]) + raw[at + 1 :])
    again = open_log(
        directory, known=clean_start(log) if clean else OpenFrom(recovery_point=COUNT), index_interval_bytes=200
    )
    assert values(again) == WANTED
    again.close()
    assert path.read_bytes() == raw
    shutil.rmtree(directory)


def test_a_time_index_damaged_while_the_log_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = fill(tmp_path, segment_bytes=700)
    path = log.directory / f"{0:020d}.timeindex"
    raw = bytearray(path.read_bytes())
    raw[18] ^= 1
    path.write_bytes(raw)
    for n in range(COUNT):
        found = log.offset_for_timestamp(START_MS + n)
        assert found is not None
        assert found.offset == n
    assert "fails its CRC" in caplog.text


def test_an_index_that_leads_into_the_middle_of_a_batch_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(tmp_path, segment_bytes=700)
    log.close()
    path = log.directory / f"{0:020d}.index"
    again = open_log(tmp_path, known=clean_start(log), segment_bytes=700)
    raw = bytearray(path.read_bytes())
    for at in range(20, len(raw) - 40, 8):  # under a log that is open, behind its CRC's back
        raw[at : at + 4] = (int.from_bytes(raw[at : at + 4], "big") + 7).to_bytes(4, "big")
    path.write_bytes(raw)
    found = [next(iter_headers(again.read(n, 1).data))[1].base_offset for n in reversed(range(COUNT))]
    assert found == list(reversed(range(COUNT)))
    assert "are rebuilt" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
def test_a_disk_too_full_for_the_index_refuses_no_batch(tmp_path: Path, clean: bool) -> None:
    faults.install(faults.ScriptedFaults("log.index.write@2+=ENOSPC"))
    try:
        log = fill(tmp_path)
        for n in range(COUNT):
            assert next(iter_headers(log.read(n, 1).data))[1].base_offset == n
        log.close(clean=clean)
    finally:
        faults.install(None)
    again = open_log(tmp_path, known=clean_start(log) if clean else None)
    again.advance_high_watermark(COUNT)
    assert values(again) == WANTED
    assert again.offset_of_largest_timestamp() == (START_MS + COUNT - 1, COUNT - 1, 2)


def test_epochs_are_taken_from_the_batches_when_their_file_is_lost(tmp_path: Path) -> None:
    for harm in (lambda p: p.unlink(), lambda p: p.write_text("0\n9\n1 1\n"), lambda p: p.write_text("junk")):
        shutil.rmtree(tmp_path / str(TP), ignore_errors=True)
        log = fill(tmp_path)
        wanted = [log.end_offset_for_epoch(epoch) for epoch in range(4)]
        log.close()
        harm(log.directory / "leader-epoch-checkpoint")
        again = open_log(tmp_path, known=clean_start(log))
        assert [again.end_offset_for_epoch(epoch) for epoch in range(4)] == wanted


def test_leftovers_of_an_interrupted_removal_go(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.close()
    for name in (f"{0:020d}.log.deleted", f"{77:020d}.index", f"{77:020d}.timeindex", "leader-epoch-checkpoint.tmp"):
        (log.directory / name).write_bytes(b"junk")
    (log.directory / "notes.txt").write_text("not ours")
    open_log(tmp_path, known=clean_start(log))
    names = {path.name for path in log.directory.iterdir()}
    assert "notes.txt" in names
    assert not {n for n in names if n.endswith((".deleted", ".tmp")) or n.startswith(f"{77:020d}")}


def test_truncation(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=700)
    for offset in (33, 17, 5, 0):
        log.truncate_to(offset)
        assert (log.log_end_offset, log.high_watermark) == (offset, offset)
        assert values(log) == WANTED[:offset]
        assert log.leader_epoch == (offset - 1) // 15 if offset else log.leader_epoch == -1
    assert append(log, batch([b"new"]), leader_epoch=7) == (0, 0)
    log.truncate_to(50)
    assert log.log_end_offset == 1
    log.close(clean=False)
    assert values(open_log(tmp_path)) == [b"new"]


def test_truncation_inside_a_batch_drops_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"] * 3))
    append(log, batch([b"b"] * 3))
    log.truncate_to(4)
    assert log.log_end_offset == 3


def test_truncation_below_the_start_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, known=OpenFrom(log_start_offset=10))
    append(log, batch())
    with pytest.raises(OffsetOutOfRangeError, match="starts at 10"):
        log.truncate_to(3)


def test_a_log_may_begin_at_any_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, known=OpenFrom(log_start_offset=1000))
    assert append(log, batch()) == (1000, 1000)
    log.close(clean=False)
    again = open_log(tmp_path)
    assert (again.log_start_offset, again.log_end_offset) == (1000, 1001)


def test_the_checkpointed_start_hides_what_retention_had_passed(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.close()
    again = open_log(tmp_path, known=OpenFrom(True, COUNT, 12, COUNT))
    assert again.log_start_offset == 12
    with pytest.raises(OffsetOutOfRangeError):
        again.read(11, 100)
    assert read_all(again)[0].offset == 12


@pytest.mark.parametrize("lost", [0, 6], ids=["killed", "power loss"])
def test_a_crash_after_the_log_start_has_risen_does_not_bring_deleted_records_back(tmp_path: Path, lost: int) -> None:
    """The leader epochs are cut at once, the log start's checkpoint later: records in between have another epoch."""
    log = open_log(tmp_path)
    for n in range(10):
        append(log, batch(), leader_epoch=n // 4)
    log.flush()
    log.advance_log_start(9)
    log.close(clean=False)
    if lost:
        path = log.directory / "00000000000000000000.log"
        os.truncate(path, path.stat().st_size * (10 - lost) // 10)
    again = open_log(tmp_path, known=OpenFrom(recovery_point=10 if not lost else 0))
    assert (again.log_start_offset, again.log_end_offset) == (9 if not lost else 4, 10 - lost)
    assert len(read_all(again)) == (0 if lost else 1)
    assert again.corrupt_batches == 0


def test_a_directory_of_another_topic_id_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    path = log.directory / "partition.metadata"
    assert path.read_text().startswith("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n")
    with pytest.raises(StorageError, match="set it aside"):
        PartitionLog.open(log.directory, TP, TOPIC_ID.__class__(int=8), log.config, codecs=log._codecs)
    path.write_text("version: 0\n")
    with pytest.raises(StorageError, match="damaged"):
        open_log(tmp_path)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_a_copy_of_a_compacted_log_begins_where_its_leaders_does(tmp_path: Path, clean: bool) -> None:
    """Nothing remains there before offset 50. A consumer that has read up to 30 goes on at 50. Out of range, it would
    go to the end of the log, and skip records, or to its start."""
    first = batch()
    rewrite_base(first, 0, 50, 3)
    log = open_log(tmp_path, cleanup_policy="compact")
    log.append_as_follower(first, 3)
    log.advance_high_watermark(51)
    log.flush()
    known = clean_start(log)
    log.close(clean=clean)
    log = open_log(tmp_path, known=replace(known, clean=clean), cleanup_policy="compact")
    assert log.log_start_offset == 0
    assert log.read(30, 1 << 20).data == bytes(first)


@pytest.mark.parametrize("start", [2, 4, 5])
def test_a_log_start_that_rose_before_a_crash_stays_in_a_log_with_gaps(tmp_path: Path, start: int) -> None:
    """The checkpoint is written after the leader epochs. Without the epoch of a batch, reads take it for damaged."""
    log = open_log(tmp_path, cleanup_policy="compact,delete")
    for _ in range(3):
        append(log, batch([b"a", b"b"]))
    known = clean_start(log)
    log.delete_records_before(start)
    log.close(clean=False)
    log = open_log(tmp_path, known=replace(known, clean=False), cleanup_policy="compact,delete")
    assert log.log_start_offset == start
    assert len(log.read(start, 1 << 20).data) == len(batch([b"a", b"b"])) * (3 - start // 2)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_segment_that_has_lost_its_last_batches_ends_the_log(tmp_path: Path, kept: int) -> None:
    """The next one is whole: without the offsets the hole would not be noticed."""
    size = len(batch())
    log = open_log(tmp_path, segment_bytes=2 * size + 1)
    for _ in range(6):
        append(log, batch())
    log.close(clean=False)
    first, middle, last = sorted((tmp_path / str(TP)).glob("*.log"))
    os.truncate(middle, kept * size)
    again = open_log(tmp_path, segment_bytes=2 * size + 1)
    assert again.log_end_offset == 2 + kept
    assert again.recovery_cut_more
    append(again, batch())
    assert [record.offset for record in read_all(again)] == list(range(3 + kept))
    assert [path.name.split(".")[0] for path in first.parent.glob("*.corrupt")] == [last.stem]
