"""A bound for open segment files, whatever the number of partitions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from klamm.core.errors import StorageError
from klamm.core.log.errors import LogClosedError
from klamm.core.log.segment.file_operations import OpenFile
from klamm.core.log.segment.open_files import OpenFiles
from klammtest.logs import append, batch, open_log, read_all


class Owner:
    def __init__(self) -> None:
        self.closed = 0

    def close_file(self) -> None:
        self.closed += 1


def test_the_longest_unused_is_closed() -> None:
    files, owners = OpenFiles(2), [Owner() for _ in range(4)]
    files.used(owners[0])
    files.used(owners[1])
    files.used(owners[0])
    files.used(owners[2])
    assert [owner.closed for owner in owners] == [0, 1, 0, 0]
    files.closed(owners[0])
    files.used(owners[3])
    assert [owner.closed for owner in owners] == [0, 1, 0, 0]
    assert len(files) == 2


def test_half_are_closed_when_the_system_has_no_more() -> None:
    files, owners = OpenFiles(10), [Owner() for _ in range(5)]
    for owner in owners:
        files.used(owner)
    assert files.close_some()
    assert [owner.closed for owner in owners] == [1, 1, 1, 0, 0]
    assert files.close_some()
    assert files.close_some()
    assert not files.close_some()


def test_logs_go_on_with_one_open_file_between_them(tmp_path: Path) -> None:
    files = OpenFiles(1)
    logs = [open_log(tmp_path / str(n), segment_bytes=300, files=files) for n in range(4)]
    for n in range(20):
        for log in logs:
            append(log, batch([b"%d" % n * 40]))
    for log in logs:
        log.flush()
        assert [r.value for r in read_all(log)] == [b"%d" % n * 40 for n in range(20)]
        log.truncate_to(7)
        assert append(log, batch([b"x"])) == (7, 7)
        log.close()
    assert len(files) <= 1
    assert [r.value for r in read_all(open_log(tmp_path / "2", files=files))][-1] == b"x"


def test_a_reader_reads_on_while_its_file_is_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=OpenFiles(1))
    append(log, batch([b"value"]))
    (segment,) = log._segments
    held = segment.file
    log.files.close_some()
    assert segment.file is not held
    assert len(held.read(log.size, 0)) == log.size


def test_it_opens_again_when_descriptors_ran_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    segment = log.sealed_segments()[2]
    segment.close_file()
    refused: list[Path] = []

    def refuse_once(path: Path, *, create: bool) -> OpenFile:
        if not refused:
            refused.append(path)
            raise StorageError(f"cannot open {path}: Too many open files") from OSError(24, "Too many open files")
        return OpenFile(path, create=create)

    monkeypatch.setattr("klamm.core.log.segment.log_file.OpenFile", refuse_once)
    assert segment.file.size() == segment.size
    assert refused == [segment.path]
    assert len(log.files) < 10


def test_many_partitions_under_a_low_limit(tmp_path: Path) -> None:
    """Twice as many partitions as the process may have files."""
    script = textwrap.dedent("""
        import resource, sys
        from uuid import UUID
        from klamm.core.config.sections.topic import TopicConfig
        from klamm.core.log.manager import LogManager, LogTuning
        from klamm.core.records.codecs import CodecTable
        from klamm.core.records.encode import encode_batch
        from klamm.core.records.partition import TopicPartition

        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
        CONFIG = TopicConfig.from_strings({"retention.ms": "-1"})

        def manager():
            tuning = LogTuning(open_files=20)
            return LogManager(sys.argv[1], broker_id=0, cluster_id="c", codecs=CodecTable(),
                              config_for=lambda _: CONFIG, tuning=tuning)

        logs = manager()
        for n in range(100):
            logs.create(TopicPartition("t", n), UUID(int=1), CONFIG)
        for round in range(3):
            for log in logs.logs().values():
                log.append_as_leader(bytearray(encode_batch([(1, None, b"value", ())])), 0)
                log.advance_high_watermark(log.log_end_offset)
        logs.run_maintenance(2**60)
        logs.close()
        for clean in (False, True):
            logs = manager()
            for log in logs.logs().values():
                log.advance_high_watermark(log.log_end_offset)
                assert len(log.read(0, 1 << 20).data) == log.size > 0, log.tp
                log.append_as_leader(bytearray(encode_batch([(1, None, b"more", ())])), 0)
            assert len(logs.logs()) == 100
            logs.close(clean=clean)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_segment_that_was_removed_leaves_no_file_however_it_is_used(tmp_path: Path) -> None:
    """An empty file beside a log that grows past its offset would end the log there at the next start."""
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    removed = log.sealed_segments()[-1]
    log.truncate_to(1)
    with pytest.raises(LogClosedError, match="the segment at offset 8 was removed"):
        log.file_of(removed)
    with pytest.raises(StorageError, match="No such file"):
        removed.file.size()
    assert [path.name for path in log.directory.glob("*.log")] == ["00000000000000000000.log"]
