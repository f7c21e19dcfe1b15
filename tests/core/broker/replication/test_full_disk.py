"""A broker whose disk is full: in a cluster of three, others go on without it within a second or two, and it is back by
itself."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.replication import full_disk
from klamm.core.broker.replication.full_disk import FullDisk
from klamm.core.broker.workers import Workers
from klamm.core.cluster.tree import paths
from klamm.core.errors import CoordinationError, ErrorCode, NoSpaceError
from klamm.core.log.disk_space import DiskSpace
from klamm.core.records.partition import TopicPartition
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.replicated.disk import Disk, build
from klammtest.requests import batch, fetch, produce
from klammtest.waiting import eventually, until, within
from klammtest.wire import WireClient

T0 = TopicPartition("t", 0)
NO_SPACE = NoSpaceError("cannot write x: No space left on device")
FOR_EVER_MS = 600_000
"""Sessions and the lag of replicas do not end while a test runs."""
SOON_S = 20.0
"""Many times what it takes, for a machine that has other work."""


# -- the reports --------------------------------------------------------------------------------------------------


class OthersTold:
    """What `FullDisk` needs of a cluster; `fails` is how many of the next writes fail."""

    def __init__(self, brokers: Sequence[int] = (0, 1)) -> None:
        self.told: list[bool] = []
        self.fails = 0
        self.brokers = brokers

    def image(self) -> OthersTold:
        return self

    def set_full(self, full: bool) -> None:
        if self.fails:
            self.fails -= 1
            raise CoordinationError("away")
        self.told.append(full)


class Room(DiskSpace):
    """A disk that has room when the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.room = False
        self.probes = 0

    def has_space(self) -> bool:
        self.probes += 1
        return self.room


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "FIRST_TRY_S", 0.01)


def run(space: Room, cluster: OthersTold, check: Callable[[list[str]], Any]) -> None:
    """Runs `check`, a coroutine function, beside a `FullDisk`; its argument grows with each call of `on_space`."""

    async def main() -> None:
        again: list[str] = []
        workers = Workers(1)
        reports = FullDisk(space, cluster, workers, lambda: again.append("room"))  # type: ignore[arg-type]
        reports.start()
        await check(again)
        await reports.stop()
        workers.close()

    asyncio.run(main())


@pytest.mark.usefixtures("quick")
def test_the_others_are_told_and_one_line_is_said_at_each_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    space, cluster = Room(tmp_path), OthersTold()

    async def check(again: list[str]) -> None:
        space.ran_out(T0, NO_SPACE)
        await until(lambda: space.probes > 3)
        assert (cluster.told, again) == ([True], [])
        space.ran_out(TopicPartition("t", 1), NO_SPACE)
        space.room = True
        await until(lambda: again)
        assert (cluster.told, space.is_full) == ([True, False], False)
        space.room = False
        space.ran_out(T0, NO_SPACE)  # full again within a minute: no other line, and a longer wait
        await until(lambda: len(cluster.told) == 3)
        space.room = True
        await until(lambda: len(again) == 2)
        assert cluster.told == [True, False, True, False]

    with caplog.at_level(logging.INFO):
        run(space, cluster, check)
    full, over = [record.getMessage() for record in caplog.records if "disk" in record.getMessage()]
    assert "the disk is full" in full
    assert "x: No space left on device; writes of t-0 have failed" in full
    assert "the disk has space again" in over


@pytest.mark.usefixtures("quick")
def test_a_report_that_fails_is_made_again(tmp_path: Path) -> None:
    space, cluster = Room(tmp_path), OthersTold()

    async def check(again: list[str]) -> None:
        cluster.fails = 2
        space.ran_out(T0, NO_SPACE)
        await until(lambda: cluster.told == [True])
        cluster.fails, space.room = 2, True
        await until(lambda: again)
        assert cluster.told == [True, False]

    run(space, cluster, check)


@pytest.mark.usefixtures("quick")
def test_a_lone_broker_has_nobody_to_tell(tmp_path: Path) -> None:
    space, cluster = Room(tmp_path), OthersTold(brokers=(0,))

    async def check(again: list[str]) -> None:
        space.ran_out(T0, NO_SPACE)
        await until(lambda: space.probes > 2)
        space.room = True
        await until(lambda: again)
        assert cluster.told == []

    run(space, cluster, check)


# -- real brokers -------------------------------------------------------------------------------------------------


class Site:
    def __init__(self, cluster: BrokerCluster, disks: dict[int, Disk]) -> None:
        self.cluster, self.disks, self.since = cluster, disks, time.monotonic()

    @property
    def leader(self) -> int:
        state = self.cluster.state(T0)
        assert state is not None
        return state.leader

    def isr(self) -> tuple[int, ...]:
        state = self.cluster.state(T0)
        assert state is not None
        return state.isr

    def says_full(self, broker: int) -> bool:
        return bool(json.loads(self.cluster.tree.get(paths.broker(broker))[0])["state"] == "full")

    def send(self, value: bytes, acks: int = -1) -> ErrorCode:
        with WireClient(self.cluster.brokers[self.leader].bootstrap, timeout_s=40) as wire:
            return ErrorCode(produce(wire, "t", batch(value), acks=acks).error_code)

    def await_acknowledged(self, value: bytes) -> float:
        """Sends until the record is acknowledged with acks=all; returns after how many seconds it was."""
        begun = time.monotonic()
        eventually(lambda: self.send(value) is ErrorCode.none, f"{value!r} is acknowledged")
        return time.monotonic() - begun

    def await_in_sync(self) -> None:
        assert self.cluster.await_in_sync("t", 1, 90)

    def await_preferred_leader(self) -> None:
        """Returns when all are in sync and the preferred replica leads: then nothing moves the leader by itself."""
        self.await_in_sync()
        eventually(lambda: self.leader == self.cluster.assignment("t")[0][0], "the preferred replica leads")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc builds the library that fills a disk")
    folder = tmp_path_factory.mktemp("full")
    library = build(folder)
    disks = {i: Disk(library, folder / f"disk-{i}", folder / f"broker-{i}" / "data") for i in range(3)}
    with running_cluster(
        folder,
        {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": FOR_EVER_MS},
        broker={"replica.lag.time.max.ms": FOR_EVER_MS, "leader.imbalance.check.interval.seconds": 1},
        environments={i: disk.environment for i, disk in disks.items()},
    ) as cluster:
        cluster.create_topic("t", 1)
        assert cluster.await_in_sync("t", 1)
        yield Site(cluster, disks)
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log()


@pytest.fixture
def site(brokers: Site) -> Iterator[Site]:
    brokers.await_preferred_leader()
    yield brokers
    for disk in brokers.disks.values():
        disk.control()
    eventually(lambda: not any(map(brokers.says_full, brokers.cluster.ids)), "all have room", 90)
    brokers.await_in_sync()


def test_acks_all_goes_on_when_the_disk_of_a_follower_is_full(site: Site) -> None:
    follower = next(i for i in site.isr() if i != site.leader)
    epoch = site.cluster.state(T0)
    site.disks[follower].control(room=0)
    assert site.await_acknowledged(b"a") < SOON_S
    assert follower not in site.isr()
    assert site.says_full(follower)
    for _ in range(15):  # nothing is appended, so that it soon seems to be caught up
        time.sleep(0.1)
        assert follower not in site.isr()
    after = site.cluster.state(T0)
    assert epoch is not None
    assert after is not None
    assert (after.leader, after.leader_epoch) == (epoch.leader, epoch.leader_epoch)
    site.disks[follower].control()
    site.await_in_sync()
    assert not site.says_full(follower)


def test_another_leads_when_the_disk_of_the_leader_is_full(site: Site) -> None:
    site.await_acknowledged(b"before")
    leader = site.leader
    site.disks[leader].control(room=0)
    assert site.await_acknowledged(b"b") < SOON_S
    moved = site.cluster.state(T0)
    assert moved is not None
    assert moved.leader != leader
    assert leader not in moved.isr
    time.sleep(3.0)  # the preferred leader is looked for every second
    assert site.cluster.state(T0) == moved
    site.disks[leader].control()
    site.await_in_sync()
    site.await_acknowledged(b"c")


def _fill_the_leader_first(site: Site) -> None:
    """Fills all disks. Each leader that is tried says so; then nobody with room is left to lead."""
    for disk in site.disks.values():
        disk.control(room=0)


def _fill_the_followers_first(site: Site) -> None:
    """Fills the disks of the followers, and when both have reported it, that of the leader."""
    leader = site.leader
    followers = [i for i in site.cluster.ids if i != leader]
    for follower in followers:
        site.disks[follower].control(room=0)
    assert site.send(b"for the followers", acks=1) is ErrorCode.none
    eventually(lambda: all(map(site.says_full, followers)), "the followers have reported their disks")
    eventually(lambda: site.isr() == (leader,), "the leader is alone in sync")
    site.disks[leader].control(room=0)


@pytest.mark.parametrize("fill", [_fill_the_leader_first, _fill_the_followers_first])
def test_if_all_disks_are_full_a_leader_stays_refuses_and_serves_what_it_has(
    site: Site, fill: Callable[[Site], None]
) -> None:
    """Whichever is full first: the last one that had room is alone in the ISR if the others had reported their disks
    while it led, and then refuses acks=all for the ISR, as Kafka does, before it tries its disk."""
    site.await_acknowledged(b"first")
    site.await_acknowledged(b"second")  # its answers tell the followers that the first is committed
    fill(site)

    def all_are_full() -> bool:
        refused = site.send(b"none", acks=1)
        assert refused in (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
        return all(map(site.says_full, site.cluster.ids))

    eventually(all_are_full, "every broker has reported its disk")
    eventually(lambda: site.send(b"none", acks=1) is ErrorCode.kafka_storage_error, "the last one leads")
    settled = site.cluster.state(T0)
    assert settled is not None
    refused = ErrorCode.not_enough_replicas if len(settled.isr) < 2 else ErrorCode.kafka_storage_error
    for _ in range(20):
        assert site.send(b"none") is refused
        time.sleep(0.1)
    assert site.cluster.state(T0) == settled
    with WireClient(site.cluster.brokers[site.leader].bootstrap) as wire:
        found = fetch(wire, "t", 0)
        assert found.error_code is ErrorCode.none
        assert b"first" in b"".join(bytes(part) for part in [found.records])
    for disk in site.disks.values():
        disk.control()
    site.await_acknowledged(b"last")
    site.await_in_sync()
    for broker in site.cluster.brokers:
        lines = broker.log().splitlines()
        most = 2 + (time.monotonic() - site.since) // 60
        assert sum("the disk is full" in line for line in lines) <= most, "one a minute at most"
    assert any("the disk is full" in broker.log() and "t-0" in broker.log() for broker in site.cluster.brokers)
    assert within(lambda: any("the disk has space again" in broker.log() for broker in site.cluster.brokers), 60)


def test_a_broker_does_not_start_on_a_full_disk_and_says_what_to_do(tmp_path: Path) -> None:
    disk = Disk(build(tmp_path), tmp_path / "disk", tmp_path / "data")
    coordination = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    environments, disks = {0: disk.environment}, {0: disk.under}
    with running_cluster(tmp_path, coordination, size=1, environments=environments, disks=disks) as cluster:
        (broker,) = cluster.brokers
        cluster.kill()
        disk.control(room=0)
        with pytest.raises(RuntimeError) as refused:
            broker.start()
        (line,) = [line for line in str(refused.value).splitlines() if line.startswith("klamm: ")]
        assert "No space left on device; free space on that disk: a broker needs a few MB to start" in line
        assert "Traceback" not in str(refused.value)
        disk.control()
        cluster.start()
