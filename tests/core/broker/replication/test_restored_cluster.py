"""A coordination restored from an old backup, and old, foreign and copied disks, in a cluster of three brokers: no
acknowledged record is lost, and what is wrong is said in one line.

`test_restored_servers.py` restores ZooKeeper and etcd.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import running_broker
from klammtest.replicated.restores import (
    PARTITIONS,
    EmbeddedBackup,
    RestoredCluster,
    copy_of_a_disk,
    restored_cluster,
)
from klammtest.wire import WireClient

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoredCluster]:
    """One cluster for all tests that leave it in sync; each has topics of its own."""
    folder = tmp_path_factory.mktemp("restored")
    with restored_cluster(folder, EmbeddedBackup(folder)) as made:
        yield made


@pytest.fixture
def topic(it: RestoredCluster) -> str:
    name = f"t{next(_NUMBERS)}"
    it.create_topic(name)
    return name


def test_a_member_of_the_backup_s_isr_that_was_out_of_sync_does_not_lead(it: RestoredCluster, topic: str) -> None:
    """The backup says that all are in sync; one of them, which leads a partition by the backup, has died since, and
    starts first. With a minimum of two in-sync replicas, and of one."""
    alone = f"{topic}-1"
    it.create_topic(alone, minimum=1)
    topics = (topic, alone)
    for name in topics:
        it.append(b"before-1", b"before-2", topic=name)
    it.backup.make()
    stale = it.states(topic)[0].leader
    others = it.lose(stale, *topics)
    for name in topics:
        it.append(b"after-1", b"after-2", topic=name)
    it.cluster.kill()
    it.restore()
    it.cluster.start([stale])
    it.cluster.start(others)
    for name in topics:
        it.in_sync(0, 1, 2, topic=name)
        it.has_all(name)
        it.append(b"later", topic=name)
    assert it.noticed(*others), it.said(others[0])


def test_a_broker_that_comes_after_others_have_led_keeps_its_records(tmp_path: Path) -> None:
    """The one that was out of sync was started alone, and led: those who have more do not follow it."""
    with restored_cluster(tmp_path, EmbeddedBackup(tmp_path)) as it:
        it.create_topic("t", minimum=1)
        it.append(b"before", topic="t")
        it.backup.make()
        others = it.lose(2, "t")
        it.append(b"after", topic="t")
        it.cluster.kill()
        it.restore()
        it.cluster.start([2])
        it.append(b"alone", topic="t")
        late = others[0]
        with pytest.raises(RuntimeError, match="the coordination is older than this broker's logs") as refused:
            it.cluster.brokers[late].start()
        assert "Traceback" not in str(refused.value)
        for number in range(PARTITIONS):
            segment = it.cluster.brokers[late].log_dir / f"t-{number}" / f"{0:020}.log"
            assert b"after" in segment.read_bytes()


def put_back(it: RestoredCluster, number: int, copy: Path) -> None:
    shutil.rmtree(it.cluster.brokers[number].log_dir)
    shutil.copytree(copy, it.cluster.brokers[number].log_dir)


def test_an_old_copy_of_a_disk_does_not_lead(it: RestoredCluster, topic: str, tmp_path: Path) -> None:
    """All brokers die at once, all in sync; one is back first, with a copy of its disk from before the last records."""
    it.append(b"before", topic=topic)
    it.in_sync(0, 1, 2, topic=topic)
    copy = copy_of_a_disk(it, 1, tmp_path)
    it.append(b"after-1", b"after-2", topic=topic)
    it.in_sync(0, 1, 2, topic=topic)
    it.cluster.kill()
    put_back(it, 1, copy)
    it.cluster.start([1])
    it.cluster.start([0, 2])
    it.in_sync(0, 1, 2, topic=topic)
    it.has_all(topic)
    (line,) = [line for line in it.said(1).splitlines() if "perhaps an older one" in line]
    assert "acknowledged records may be missing since the last stop (it is a copy" in line


def test_a_new_disk_is_refused_and_then_filled(it: RestoredCluster, topic: str) -> None:
    """All die at once; one is back first, with an empty disk."""
    it.append(b"before", topic=topic)
    it.in_sync(0, 1, 2, topic=topic)
    it.cluster.kill()
    shutil.rmtree(it.cluster.brokers[1].log_dir)
    with pytest.raises(RuntimeError, match=r"is empty, but the cluster has \d+ partitions here") as refused:
        it.cluster.brokers[1].start()
    assert "Traceback" not in str(refused.value)
    it.cluster.start([1], "--accept-missing-logs")
    it.cluster.start([0, 2])
    it.in_sync(0, 1, 2, topic=topic)
    it.has_all(topic)


def test_another_broker_s_disk_and_another_cluster_s_are_refused(
    it: RestoredCluster, topic: str, tmp_path: Path
) -> None:
    it.append(b"kept", topic=topic)
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
    it.in_sync(0, 1, 2, topic=topic)
    it.has_all(topic)


def producer_id(it: RestoredCluster, broker: int) -> int:
    with WireClient(it.cluster.brokers[broker].bootstrap) as wire:
        answer = wire.call(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=timedelta(seconds=60),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
    assert answer.error_code is ErrorCode.none
    return int(answer.producer_id)


def test_what_the_backup_does_not_know(it: RestoredCluster, topic: str) -> None:
    """Topics are set aside, not deleted; leader epochs and producer ids are not given out again."""
    later = f"{topic}-later"
    it.backup.make()
    it.create_topic(later)
    it.append(b"unknown", topic=later)
    it.append(b"known", topic=topic)
    ids = [producer_id(it, number) for number in it.cluster.ids]
    before = it.states(topic)
    it.cluster.kill()
    it.restore()
    it.cluster.start()
    it.in_sync(0, 1, 2, topic=topic)
    it.has_all(topic)
    ids += [producer_id(it, number) for number in it.cluster.ids]
    assert len(set(ids)) == len(ids)
    assert all(new.leader_epoch > old.leader_epoch for new, old in zip(it.states(topic), before, strict=True))
    kept = []
    for number in it.cluster.ids:
        (stray,) = it.cluster.brokers[number].log_dir.glob(f"{later}-0.*-stray")
        kept.append((stray / f"{0:020}.log").read_bytes())
        lines = [line for line in it.said(number).splitlines() if "was set aside as" in line]
        (line,) = [line for line in lines if f"{later}-0: " in line]
        assert "remove it when its records are no longer needed" in line
    assert sum(b"unknown" in each for each in kept) >= 2
