"""Staging directories: one job's own, published once, swept when dead, never when alive."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.manifest import LakeOrigin, Manifest, PartitionRange, last_manifest
from klamm.hadoop.load.staging import LoadConflictError, Staging, sweep
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.publishing.local import LocalPublisher
from klammtest.hadoop.lakes import Unsure

HOUR = 3600.0


def later(seconds: float) -> LocalPublisher:
    """A sweeper whose clock is ahead."""
    return LocalPublisher(now_s=lambda: time.time() + seconds)


def manifest(job_id: str, load: int = 1) -> bytes:
    made = Manifest(
        topic="t",
        load=load,
        job_id=job_id,
        created_ms=0,
        rows=0,
        files=0,
        partitions={0: PartitionRange(start=0, end=5)},
        lake=LakeOrigin(id="one", directory="t"),
    )
    return made.to_bytes()


@pytest.fixture
def layout(tmp_path: Path) -> TopicLayout:
    return TopicLayout(str(tmp_path), "t")


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def fail_within(layout: TopicLayout, lake: Path) -> None:
    publisher = LocalPublisher()
    with Staging(publisher, layout, "a") as staging:
        publisher.write(f"{staging.path}/part", b"x")
        assert files(lake) == ["t/_staging/a.alive", "t/_staging/a/_job.json", "t/_staging/a/part"]
        raise ZeroDivisionError


def test_what_is_not_published_is_gone_afterwards(layout: TopicLayout, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_within(layout, tmp_path)
    assert files(tmp_path) == []


def test_a_second_job_loses_cleanly(layout: TopicLayout, tmp_path: Path) -> None:
    publisher = LocalPublisher()
    with Staging(publisher, layout, "a") as first, Staging(publisher, layout, "b") as second:
        publisher.write(f"{first.path}/_offsets.json", manifest("a"))
        publisher.write(f"{second.path}/_offsets.json", manifest("b"))
        first.publish(1)
        with pytest.raises(LoadConflictError, match="published by job a"):
            second.publish(1)
    assert files(tmp_path) == ["t/load=000001/_job.json", "t/load=000001/_offsets.json"]


class Stuck(LocalPublisher):
    """Removes nothing, as a NameNode in safe mode."""

    def remove(self, path: str) -> None:
        raise LakeError("safe mode")


def test_a_load_that_is_published_is_so_even_if_what_is_left_cannot_be_removed(
    layout: TopicLayout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Stuck()
    with Staging(publisher, layout, "a") as staging:
        publisher.write(f"{staging.path}/_offsets.json", manifest("a"))
        staging.publish(1)
    assert "a later sweep removes the rest of job a: safe mode" in caplog.text
    assert sweep(later(2 * HOUR), layout, HOUR) == []
    assert files(tmp_path) == ["t/load=000001/_job.json", "t/load=000001/_offsets.json"]


def test_why_a_load_failed_is_not_hidden_by_what_cannot_be_removed(layout: TopicLayout) -> None:
    with pytest.raises(ZeroDivisionError), Staging(Stuck(), layout, "a"):
        raise ZeroDivisionError


def test_an_unknown_outcome_is_read_from_the_target(layout: TopicLayout) -> None:
    publisher = Unsure()
    with Staging(publisher, layout, "a") as staging:
        publisher.write(f"{staging.path}/_offsets.json", manifest("a"))
        staging.publish(1)
    last = last_manifest(publisher, layout)
    assert last is not None
    assert last.job_id == "a"


class Failing(LocalPublisher):
    """The rename fails, and nothing happened."""

    def publish(self, staging: str, target: str) -> None:
        raise LakeError("no space left on device")


def test_a_rename_that_did_not_happen_is_an_error(layout: TopicLayout, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no space left"), Staging(Failing(), layout, "a") as staging:
        staging.publish(1)
    assert files(tmp_path) == []


def test_the_sweep_takes_dead_jobs_and_leaves_the_living(layout: TopicLayout, tmp_path: Path) -> None:
    publisher = LocalPublisher()
    staging_root = tmp_path / "t" / "_staging"
    (staging_root / "dead").mkdir(parents=True)
    (staging_root / "dead" / "part").write_bytes(b"x")
    (staging_root / "dead.alive").write_bytes(b"")
    (staging_root / "half.dead").mkdir()
    with Staging(publisher, layout, "live", beat_s=0.01):
        assert sweep(publisher, layout, HOUR) == []
        assert "dead" in publisher.names(layout.staging_root)
        age(staging_root / "dead.alive", 2 * HOUR)
        assert sweep(publisher, layout, HOUR) == ["dead"]
        assert publisher.names(layout.staging_root) == ["live", "live.alive"]


def test_a_heartbeat_that_is_being_written_is_left_alone(layout: TopicLayout, tmp_path: Path) -> None:
    half = tmp_path / "t" / "_staging" / f".starting.alive.{'0' * 32}"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"")
    assert sweep(LocalPublisher(), layout, HOUR) == []
    assert half.exists()
    assert sweep(later(2 * HOUR), layout, HOUR) == []
    assert not half.exists()


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_job_that_slept_through_its_own_sweep_publishes_nothing(layout: TopicLayout, tmp_path: Path) -> None:
    publisher = LocalPublisher()
    with Staging(publisher, layout, "slow", beat_s=60) as staging:
        assert sweep(later(2 * HOUR), layout, HOUR) == ["slow"]
        # A late task makes the directory again, as Spark's writers do.
        publisher.make(f"{staging.path}/dt=2013-01-01")
        publisher.write(f"{staging.path}/dt=2013-01-01/part", b"half of the rows")
        with pytest.raises(LakeError, match="swept as a dead job's"):
            staging.publish(1)
    assert files(tmp_path) == []


def test_a_heartbeat_without_a_directory_is_swept_when_it_is_old(layout: TopicLayout) -> None:
    publisher = LocalPublisher()
    publisher.make(layout.staging_root)
    publisher.write(layout.heartbeat("gone"), b"")
    sweep(publisher, layout, HOUR)
    assert publisher.names(layout.staging_root) == ["gone.alive"]
    sweep(later(2 * HOUR), layout, HOUR)
    assert publisher.names(layout.staging_root) == []


def test_a_broken_manifest_is_named(layout: TopicLayout) -> None:
    publisher = LocalPublisher()
    publisher.make(layout.load(3))
    publisher.write(f"{layout.load(3)}/_offsets.json", b"{")
    with pytest.raises(LakeError, match=r"load=000003/_offsets.json is not a manifest"):
        last_manifest(publisher, layout)
