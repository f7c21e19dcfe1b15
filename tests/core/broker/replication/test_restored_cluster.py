"""A coordination restored from an old backup, and old, foreign and copied disks, in a cluster of three brokers: no
acknowledged record is lost, and what is wrong is said in one line."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from klamm.core.cluster.image_reader import metadata_version
from klamm.core.errors import ErrorCode
from klamm.core.log.state.seen_metadata import SeenMetadata
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.broker import running_broker
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch
from klammtest.waiting import eventually
from klammtest.wire import WireClient

SESSION_MS = 12_000
"""A cluster that starts waits for twice as long; a busy machine starts a broker in less."""
T0 = TopicPartition("t", 0)


class Days:
    """Three brokers on one embedded coordination, which can be backed up and restored."""

    def __init__(self, cluster: BrokerCluster, folder: Path) -> None:
        self.cluster = cluster
        self.tree = folder / "tree.db"
        self.backup = folder / "backup.db"

    def back_up(self) -> None:
        """Copies the coordination as it is now, while brokers use it."""
        with closing(sqlite3.connect(self.tree)) as source, closing(sqlite3.connect(self.backup)) as target:
            source.backup(target)

    def restore(self) -> None:
        """Puts the copy in the place of the coordination; all brokers are stopped."""
        self.cluster.tree.close()
        for left in self.tree.parent.glob("tree.db*"):
            left.unlink()
        shutil.copy(self.backup, self.tree)
        self.cluster.tree.restart() if self.cluster.tree.session_id else self.cluster.tree.start()

    def append(self, *values: bytes, topic: str = "t", acks: int = -1) -> None:
        """Produces each value until it is acknowledged, as a producer does."""
        for value in values:
            self.cluster.append(topic, batch(value), acks=acks)

    def has(self, *values: bytes, topic: str = "t") -> None:
        """Waits until consumers see all of these: the leader knows what is committed once followers have fetched."""
        eventually(lambda: all(value in self.records(topic) for value in values), f"{values} are there")

    def records(self, topic: str = "t") -> bytes:
        return self.cluster.records(topic)

    def in_sync(self, *members: int, topic: str = "t") -> None:
        def reached() -> bool:
            state = self.cluster.state(TopicPartition(topic, 0))
            return state is not None and state.leader in members and set(state.isr) == set(members)

        eventually(reached, f"{members} are in sync")

    def kill_a_follower(self) -> tuple[int, tuple[int, int]]:
        """Kills a broker that does not lead; returns its id and those of the others, which are in sync."""
        state = self.cluster.state(T0)
        assert state is not None
        stale = next(member for member in state.isr if member != state.leader)
        others = tuple(number for number in self.cluster.ids if number != stale)
        self.cluster.kill([stale])
        self.in_sync(*others)
        version, _ = metadata_version(self.cluster.tree)
        # Only a broker that has read the change can tell that a backup lacks it.
        eventually(lambda: all(self._has_seen(number, version) for number in others), "both have read the change")
        return stale, (others[0], others[1])

    def _has_seen(self, number: int, version: int) -> bool:
        seen = SeenMetadata(self.cluster.brokers[number].log_dir).last
        return seen is not None and seen.version >= version

    def said(self, number: int) -> str:
        return self.cluster.brokers[number].log()


@contextmanager
def days(folder: Path, minimum: int = 2) -> Iterator[Days]:
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": SESSION_MS}
    with running_cluster(folder, tree, broker={"replica.lag.time.max.ms": 2000}) as cluster:
        eventually(lambda: len(cluster.registered()) == 3, "all are registered")
        cluster.create_topic("t", 1, {"min.insync.replicas": str(minimum)})
        made = Days(cluster, folder)
        made.in_sync(0, 1, 2)
        yield made
        for number in cluster.ids:
            assert "Traceback" not in made.said(number), made.said(number)


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_member_of_the_backup_s_isr_that_was_out_of_sync_does_not_lead(tmp_path: Path, minimum: int) -> None:
    """The backup says that all are in sync; one of them has died since, and starts first."""
    with days(tmp_path, minimum) as it:
        it.append(b"before-1", b"before-2")
        it.back_up()
        stale, others = it.kill_a_follower()
        it.append(b"after-1", b"after-2")
        it.cluster.kill()
        it.restore()
        it.cluster.start([stale])
        it.cluster.start(others)
        it.in_sync(0, 1, 2)
        it.has(b"before-1", b"before-2", b"after-1", b"after-2")
        it.append(b"later")
        warned = [number for number in others if "older than this broker's logs" in it.said(number)]
        assert warned, it.said(others[0])


def test_the_leader_of_the_backup_does_not_lead_by_the_registrations_in_it(tmp_path: Path) -> None:
    """It was taken while all were live; the leader of that time has died since, and starts first."""
    with days(tmp_path) as it:
        it.append(b"before")
        it.back_up()
        state = it.cluster.state(T0)
        assert state is not None
        stale = state.leader
        others = tuple(number for number in it.cluster.ids if number != stale)
        it.cluster.kill([stale])
        it.in_sync(*others)
        it.append(b"after")
        it.cluster.kill()
        it.restore()
        it.cluster.start([stale])
        it.cluster.start(others)
        it.in_sync(0, 1, 2)
        it.has(b"before", b"after")


def test_a_broker_that_comes_after_others_have_led_keeps_its_records(tmp_path: Path) -> None:
    """The one that was out of sync was started alone, and led: those who have more do not follow it."""
    with days(tmp_path, 1) as it:
        it.append(b"before")
        it.back_up()
        stale, others = it.kill_a_follower()
        it.append(b"after")
        it.cluster.kill()
        it.restore()
        it.cluster.start([stale])
        it.append(b"alone")
        late = others[0]
        with pytest.raises(RuntimeError, match="the coordination is older than this broker's logs") as refused:
            it.cluster.brokers[late].start()
        assert "Traceback" not in str(refused.value)
        segment = it.cluster.brokers[late].log_dir / "t-0" / f"{0:020}.log"
        assert b"after" in segment.read_bytes()


def copy_of_a_disk(it: Days, number: int, folder: Path) -> Path:
    """Copies a running broker's log directory, as a backup tool does."""
    it.cluster.brokers[number].pause()
    try:
        return Path(shutil.copytree(it.cluster.brokers[number].log_dir, folder / f"copy-{number}"))
    finally:
        it.cluster.brokers[number].resume()


def put_back(it: Days, number: int, copy: Path) -> None:
    shutil.rmtree(it.cluster.brokers[number].log_dir)
    shutil.copytree(copy, it.cluster.brokers[number].log_dir)


def test_an_old_copy_of_a_disk_does_not_lead(tmp_path: Path) -> None:
    """All brokers die at once, all in sync; one is back first, with a copy of its disk from before the last records."""
    with days(tmp_path) as it:
        it.append(b"before")
        it.in_sync(0, 1, 2)
        copy = copy_of_a_disk(it, 1, tmp_path)
        it.append(b"after-1", b"after-2")
        it.in_sync(0, 1, 2)
        it.cluster.kill()
        put_back(it, 1, copy)
        it.cluster.start([1])
        it.cluster.start([0, 2])
        it.in_sync(0, 1, 2)
        it.has(b"before", b"after-1", b"after-2")
        (line,) = [line for line in it.said(1).splitlines() if "perhaps an older one" in line]
        assert "acknowledged records may be missing since the last stop (it is a copy" in line


def test_a_new_disk_is_refused_and_then_filled(tmp_path: Path) -> None:
    """All die at once; one is back first, with an empty disk."""
    with days(tmp_path) as it:
        it.append(b"before")
        it.in_sync(0, 1, 2)
        it.cluster.kill()
        shutil.rmtree(it.cluster.brokers[1].log_dir)
        with pytest.raises(RuntimeError, match="is empty, but the cluster has 1 partition here") as refused:
            it.cluster.brokers[1].start()
        assert "Traceback" not in str(refused.value)
        it.cluster.start([1], "--accept-missing-logs")
        it.cluster.start([0, 2])
        it.in_sync(0, 1, 2)
        it.has(b"before")


def test_another_broker_s_disk_and_another_cluster_s_are_refused(tmp_path: Path) -> None:
    with days(tmp_path) as it:
        it.append(b"kept")
        copy = copy_of_a_disk(it, 1, tmp_path)
        it.cluster.kill([2])
        own = it.cluster.brokers[2].log_dir
        own.rename(tmp_path / "own")
        shutil.copytree(copy, own)
        with pytest.raises(RuntimeError, match=r"broker\.id is 1, but this broker is configured as 2"):
            it.cluster.brokers[2].start()
        meta = own / "meta.properties"
        stranger = tmp_path / "stranger"
        with running_broker(stranger, broker={"broker.id": 2}):
            pass
        shutil.rmtree(own)
        shutil.copytree(stranger / "data", own)
        with pytest.raises(RuntimeError, match=r"cluster\.id is .*, but this broker joins the cluster"):
            it.cluster.brokers[2].start()
        assert meta.exists()
        shutil.rmtree(own)
        (tmp_path / "own").rename(own)
        it.cluster.start([2])
        it.in_sync(0, 1, 2)
        it.has(b"kept")
        assert "Traceback" not in it.said(2)


def producer_id(it: Days, broker: int) -> int:
    with WireClient(it.cluster.brokers[broker].bootstrap) as wire:
        answer = wire.call(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=timedelta(seconds=60),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
    assert answer.error_code is ErrorCode.none
    return int(answer.producer_id)


def test_what_the_backup_does_not_know(tmp_path: Path) -> None:
    """Topics are set aside, not deleted; leader epochs and producer ids are not given out again."""
    with days(tmp_path) as it:
        it.back_up()
        it.cluster.create_topic("later", 1)
        it.append(b"unknown", topic="later")
        it.append(b"known")
        ids = [producer_id(it, number) for number in it.cluster.ids]
        before = it.cluster.state(T0)
        assert before is not None
        it.cluster.kill()
        it.restore()
        it.cluster.start()
        it.in_sync(0, 1, 2)
        it.has(b"known")
        ids += [producer_id(it, number) for number in it.cluster.ids]
        assert len(set(ids)) == len(ids)
        after = it.cluster.state(T0)
        assert after is not None
        assert after.leader_epoch > before.leader_epoch
        kept = []
        for number in it.cluster.ids:
            (stray,) = it.cluster.brokers[number].log_dir.glob("later-0.*-stray")
            kept.append((stray / f"{0:020}.log").read_bytes())
            (line,) = [line for line in it.said(number).splitlines() if "was set aside as" in line]
            assert "remove it when its records are no longer needed" in line
        assert sum(b"unknown" in each for each in kept) >= 2
