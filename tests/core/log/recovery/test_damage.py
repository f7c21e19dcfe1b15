"""Damage below the recovery point is bit rot, no torn write: it costs what is damaged, never what lies behind it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from klamm.core.errors import CorruptRecordError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.recovery.resync import find_whole
from klamm.core.records.header import iter_headers
from klammtest.logs import START_MS, append, batch, clean_start, fill, open_log, read_all, records_of

COUNT = 40


def segments(log: PartitionLog) -> list[Path]:
    return sorted(log.directory.glob("*.log"))


def harm(path: Path, batch_number: int, byte: int) -> int:
    """Flip the bits of one byte of a batch; the batch's offset."""
    raw = bytearray(path.read_bytes())
    position, header = list(iter_headers(raw))[batch_number]
    raw[position + (byte if byte >= 0 else header.size + byte)] ^= 0xFF
    path.write_bytes(raw)
    return header.base_offset


def served(log: PartitionLog) -> set[int]:
    """Offsets whose record is read as it was written, each asked for by itself."""
    log.advance_high_watermark(log.log_end_offset)
    log.verify_on_read = True
    found = set()
    for n in range(log.log_start_offset, log.log_end_offset):
        try:
            (first, *_) = records_of(log.read(n, 1).data)
        except CorruptRecordError:
            continue
        assert (first.offset, first.value) == (n, b"%04d" % n * 10)
        found.add(n)
    return found


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 16, 30, -1])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("indexes", [True, False])
def test_only_the_damaged_batch_is_lost(
    tmp_path: Path, byte: int, clean: bool, which: int, indexes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(tmp_path, segment_bytes=1000)
    log.close()
    path = segments(log)[which]
    hurt = harm(path, 1, byte)
    if not indexes:
        path.with_suffix(".index").unlink()
    known = clean_start(log) if clean else OpenFrom(recovery_point=COUNT)
    with caplog.at_level(logging.WARNING):
        again = open_log(tmp_path, known=known, segment_bytes=1000, index_interval_bytes=200)
    assert again.log_end_offset == COUNT
    assert not list(log.directory.glob("*.corrupt"))
    assert served(again) == set(range(COUNT)) - {hurt}
    assert again.corrupt_batches >= 1 or "damaged" in caplog.text
    assert append(again, batch([b"more"], producer=(1, 0, COUNT)), leader_epoch=2) == (COUNT, COUNT)
    assert again.offset_for_timestamp(START_MS + COUNT - 1) is not None


def test_it_is_said_in_one_line_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = fill(tmp_path)
    log.close(clean=False)
    (path,) = segments(log)
    raw = path.read_bytes()
    position = list(iter_headers(raw))[9][0]
    end = list(iter_headers(raw))[10][0]
    harm(path, 9, 40)
    with caplog.at_level(logging.WARNING):
        again = open_log(tmp_path, known=OpenFrom(recovery_point=COUNT))
    assert served(again) == set(range(COUNT)) - {9}
    first = caplog.records[0].getMessage()
    assert first == (
        f"events-0: bytes {position} to {end} of {path} (offsets 9 to 9) are damaged: batch at offset 9 fails its CRC; "
        "reads of them fail, later batches are kept"
    )


def test_a_tail_that_had_been_flushed_is_not_cut_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(tmp_path)
    log.close(clean=False)
    (path,) = segments(log)
    harm(path, COUNT - 1, -1)
    again = open_log(tmp_path, known=OpenFrom(recovery_point=COUNT))
    assert again.log_end_offset == COUNT - 1
    assert f"offsets up to {COUNT - 1} had been flushed, and are lost" in caplog.text


def test_a_segment_that_was_cut_keeps_those_behind_it(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=700)
    log.close()
    path = segments(log)[2]
    base, following = int(path.stem), int(segments(log)[3].stem)
    path.write_bytes(path.read_bytes()[:-10])
    for known in (clean_start(log), OpenFrom(recovery_point=COUNT)):
        again = open_log(tmp_path, known=known, segment_bytes=700)
        assert served(again) == set(range(COUNT)) - {following - 1}
        data = again.read(base, 1 << 20).data
        assert max(header.last_offset for _, header in iter_headers(data)) == following - 2, "it does not go on behind"
        with pytest.raises(CorruptRecordError, match=f"offsets {following - 1} to {following - 1} are damaged or miss"):
            again.read(following - 1, 1 << 20)
        again.close(clean=False)


def test_under_an_open_log_the_rest_of_the_segment_is_found(tmp_path: Path) -> None:
    log = fill(tmp_path)
    hurt = harm(segments(log)[0], 20, 11)
    assert served(log) == set(range(COUNT)) - {hurt}
    assert append(log, batch([b"more"], producer=(1, 0, COUNT)), leader_epoch=2) == (COUNT, COUNT)
    assert records_of(log.read(COUNT, 1).data)


def test_a_batch_inside_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"first"]))
    inner = bytes(batch([b"forged"]))
    forged = (1).to_bytes(8, "big") + inner[8:]
    append(log, batch([b"x" * 50 + forged + b"y" * 50]))
    append(log, batch([b"last"]))
    log.close(clean=False)
    (path,) = segments(log)
    raw = path.read_bytes()
    positions = [position for position, _ in iter_headers(raw)]
    harm(path, 1, 11)
    again = open_log(tmp_path, known=OpenFrom(recovery_point=3))
    (segment,) = again._segments
    assert find_whole(segment.file, positions[1] + 1, segment.size, 1) == positions[2]
    again.advance_high_watermark(3)
    assert [r.value for r in records_of(again.read(2, 100).data)] == [b"last"]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_damaged_index_does_not_refuse_the_next_entry(tmp_path: Path, suffix: str) -> None:
    """The entries of the active segment are read from its file when the first one after a start is added."""
    log = open_log(tmp_path, index_interval_bytes=100)
    for _ in range(20):
        append(log, batch([b"v" * 50]))
    log.close()
    log = open_log(tmp_path, known=clean_start(log), index_interval_bytes=100)
    (path,) = (tmp_path / "events-0").glob(f"*.{suffix}")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    for _ in range(20):
        append(log, batch([b"w" * 50]))
    assert log.offline is None
    assert len(read_all(log)) == 40
    log.close()
