"""Rounds over systems that are made up, and the raw driver on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammbench.drivers.raw import Batch, Load, drive, drive_each
from klammbench.metric import Metric
from klammbench.pool import Pool
from klammbench.results import Store
from klammbench.rounds import Runner
from klammbench.shapes.base import Cell
from klammbench.systems.base import System
from klammbench.table import AGAIN, Table
from klammbench.targets import Target
from klammtest.broker import RunningBroker, running_broker


@dataclass
class Fake:
    """A system that only counts."""

    name: str
    data_dir: Path
    starts: int = 0
    up: bool = False
    bootstrap: str = ""

    def version(self) -> str:
        return "1"

    def settings(self) -> str:
        return "none"

    def start(self) -> None:
        self.starts += 1
        self.up = True
        if self.name == "broken":
            raise RuntimeError("no such jar")

    def stop(self) -> None:
        self.up = False

    def pids(self) -> list[int]:
        return [1] if self.up else []

    def wipe(self) -> None:
        assert not self.up


@dataclass(frozen=True)
class FakeCell:
    name: str


@dataclass
class FakeShape:
    """Fails in the cell `bad` on kafka."""

    SYSTEMS: Sequence[str] = ("klamm", "kafka", "kafka-tuned", AGAIN)
    MANAGED: bool = True
    NAME: str = "f"
    TITLE: str = ""
    METRICS: Mapping[str, Metric] = field(default_factory=lambda: {"rate": Metric("1/s")})
    order: list[tuple[str, str]] = field(default_factory=list)
    measured: Sequence[Cell] = (FakeCell("good"), FakeCell("bad"))

    def cells(self, quick: bool) -> Sequence[Cell]:
        return self.measured

    def warm(self, system: System) -> None: ...

    def run(self, cell: Cell, system: System, number: int) -> Mapping[str, float]:
        assert bool(system.pids()) == self.MANAGED
        self.order.append((cell.name, system.name))
        if (cell.name, system.name) == ("bad", "kafka"):
            raise RuntimeError("it burnt")
        return {"rate": number}

    def targets(self, table: Table) -> Sequence[Target]:
        return []


@dataclass
class Bench:
    shape: FakeShape
    made: dict[str, Fake]
    pool: Pool
    store: Store

    def run(self, rounds: int) -> Table:
        Runner(self.pool, self.store, lambda line: None).run(self.shape, quick=False, rounds=rounds, about={})
        found = self.store.load("f")
        assert found is not None
        assert found.about["finished_in_s"] is not None
        return Table(found.rows, self.shape.METRICS)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made: dict[str, Fake] = {}

    def make(folder: Path) -> Fake:
        return made.setdefault(folder.name, Fake(folder.name, folder))

    names = ("klamm", "kafka", "kafka-tuned", "broken")
    return Bench(FakeShape(), made, Pool(dict.fromkeys(names, make), tmp_path), Store(tmp_path, quick=False))


def test_each_round_measures_all_and_begins_with_another(bench: Bench) -> None:
    table = bench.run(rounds=2)
    good = [system for cell, system in bench.shape.order if cell == "good"]
    assert good == ["kafka", "kafka-tuned", "kafka-tuned", "klamm", "kafka-tuned", "kafka-tuned", "klamm", "kafka"]
    assert all(len(table.values("good", system, "rate")) == 2 for system in bench.shape.SYSTEMS)


@dataclass(frozen=True)
class CostlyCell:
    name: str
    systems: Sequence[str] = ("klamm", "kafka-tuned")
    rounds: int = 1


def test_a_limited_cell_is_measured_on_its_systems_in_its_first_rounds(bench: Bench) -> None:
    bench.shape.measured = [FakeCell("good"), CostlyCell("costly")]
    bench.run(rounds=2)
    assert sorted(system for cell, system in bench.shape.order if cell == "costly") == ["kafka-tuned", "klamm"]
    assert sum(cell == "good" for cell, _ in bench.shape.order) == 8


def test_a_round_for_which_there_is_no_time_is_not_begun(bench: Bench) -> None:
    ticks = itertools.count()
    runner = Runner(bench.pool, bench.store, lambda line: None, clock=lambda: float(next(ticks)))
    runner.run(bench.shape, quick=False, rounds=9, about={}, seconds=50)
    found = bench.store.load("f")
    assert found is not None
    assert 1 < Table(found.rows, bench.shape.METRICS).rounds() < 9


def test_a_failed_cell_is_recorded_its_system_started_anew_and_tried_twice_only(bench: Bench) -> None:
    table = bench.run(rounds=3)
    assert [line.rpartition(": ")[2] for line in table.failures()] == [
        "it burnt",
        "not tried again after 2 failures",
    ]
    assert bench.made["kafka"].starts == 3
    assert len(table.values("bad", "klamm", "rate")) == 3


def test_a_system_that_does_not_start_fails_and_the_others_are_measured(bench: Bench) -> None:
    bench.shape.SYSTEMS = ("klamm", "broken")
    table = bench.run(rounds=1)
    assert [line for line in table.failures() if "no such jar" in line] == table.failures()
    assert len(table.failures()) == 1  # of all its cells in one line
    assert table.values("good", "klamm", "rate")


def test_systems_stay_up_for_the_next_shape_that_wants_them_and_end_with_the_pool(bench: Bench) -> None:
    bench.shape.SYSTEMS = ("klamm", "kafka-tuned")
    bench.run(rounds=1)
    bench.shape.SYSTEMS = ("klamm",)
    bench.run(rounds=1)
    assert (bench.made["klamm"].starts, bench.made["kafka-tuned"].up) == (1, False)
    bench.pool.close()
    assert not bench.made["klamm"].up


def test_a_shape_that_starts_its_systems_itself_finds_them_stopped(bench: Bench) -> None:
    bench.run(rounds=1)
    bench.shape.MANAGED = False
    bench.run(rounds=1)
    assert not any(system.up for system in bench.made.values())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("bench"), topics={"t": {"partitions": 2}}) as running:
        yield running


@pytest.mark.parametrize("rate", [0.0, 200.0], ids=["closed loop", "open loop"])
def test_the_raw_driver_counts_what_the_broker_acknowledged(broker: RunningBroker, rate: float) -> None:
    measure_s, max_bytes = (0.2, 2e9) if rate else (60.0, 50_000.0)
    load = Load(connections=2, depth=3, warm_s=0.0, measure_s=measure_s, max_bytes=max_bytes, rate=rate)
    got = drive(broker.bootstrap, "t", 2, Batch(messages=10), load)
    assert got.requests > 0
    assert (got.late_p99_us > 0) == (rate > 0)  # only what is due at a time can be late
    assert got.all_bytes >= got.bytes > got.requests * 1000
    assert 0 < got.p50_us <= got.p99_us <= got.p999_us


def test_the_raw_driver_ends_with_the_brokers_error(broker: RunningBroker) -> None:
    with pytest.raises(RuntimeError, match="error code 3"):
        drive(broker.bootstrap, "nowhere", 1, Batch(messages=1), Load(connections=1))


def test_the_raw_driver_sends_to_each_broker_the_partitions_that_it_leads(
    broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_broker(tmp_path_factory.mktemp("other"), topics={"t": {"partitions": 2}}) as other:
        led = {broker.bootstrap: [1], other.bootstrap: [0]}
        with latest(broker) as ours, latest(other) as theirs:
            before = ours(0), ours(1)
            got = drive_each("t", led, Batch(messages=1), Load(connections=2, warm_s=0.0, measure_s=1, rate=100))
            assert (ours(0), theirs(1)) == (before[0], 0)
            assert ours(1) - before[1] + theirs(0) >= got.requests > theirs(0) > 0


@contextmanager
def latest(broker: RunningBroker) -> Iterator[Callable[[int], int]]:
    """Yields a function that returns the end offset of a partition of the topic `t`."""
    with ClusterClient(broker.bootstrap, codecs=load_settings({}).codec_table()) as client:

        def end(partition: int) -> int:
            place = TopicPartition("t", partition)
            return client.list_offsets({place: -1})[place][0]

        yield end
