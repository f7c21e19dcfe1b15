"""A truncation or a flush that stops half-way takes the log offline, so nothing is acknowledged after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core import faults
from klamm.core.errors import StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.errors import LogClosedError
from klammtest.logs import append, batch, open_log, read_all


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.mark.parametrize("rule", ["files.unlink=EIO", "files.unlink@2=EIO", "files.truncate=EIO"])
def test_failed_truncation_leaves_no_gap(tmp_path: Path, rule: str) -> None:
    log = open_log(tmp_path, segment_bytes=len(batch()) + 1)
    for _ in range(3):
        append(log, batch())
    assert log.segment_count == 3
    faults.install(ScriptedFaults(rule))
    with pytest.raises(StorageError):
        log.truncate_to(1)
    faults.install(None)
    assert log.offline is not None
    assert "a truncation to offset 1 failed" in log.offline
    with pytest.raises(LogClosedError):
        append(log, batch())
    log.close(clean=False)
    again = open_log(tmp_path, segment_bytes=len(batch()) + 1)
    append(again, batch())
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))


def test_interrupted_flush_takes_the_log_offline(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        if name == "files.fsync_directory":
            raise KeyboardInterrupt

    log = open_log(tmp_path)
    append(log, batch())
    faults.install(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    faults.install(None)
    assert log.offline is not None
    assert "KeyboardInterrupt" in log.offline
    with pytest.raises(LogClosedError):
        log.flush()
    assert log.recovery_point == 0
