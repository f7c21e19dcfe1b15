"""Parts of the shape (h): its targets from made-up results, and a stream through a real cluster whose leader ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from klammbench.drivers.raw import Batch, Load, drive_each
from klammbench.drivers.stream import How, end_leaders, gap
from klammbench.drivers.topics import topic_on
from klammbench.process import cpu_seconds
from klammbench.shapes.cluster import KAFKA, OURS, leaders, three_brokers
from klammbench.systems.clusters import NODES, KlammCluster
from klammbench.table import CLUSTER_AGAIN, Table
from klammtest.broker import KLAMM


def judged(results: Mapping[tuple[str, str], list[dict[str, float]]]) -> dict[str, list[str]]:
    """Returns each target's lines by its name."""
    rows = [
        {"cell": cell, "system": system, "round": number, "metrics": metrics}
        for (cell, system), found in results.items()
        for number, metrics in enumerate(found, 1)
    ]
    return {target.name: target.lines() for target in three_brokers.targets(Table(rows, three_brokers.METRICS))}


def test_ratios_are_to_the_cluster_of_kafka_with_its_own_allowance() -> None:
    cell = "batches of 64 KB"
    lines = judged(
        {
            (cell, OURS): [{"rate": 98.0, "cpu": 4.0}],
            (cell, KAFKA): [{"rate": 100.0, "cpu": 8.0}],
            (cell, CLUSTER_AGAIN): [{"rate": 105.0, "cpu": 8.0}],
        }
    )
    assert lines["h-throughput"][0] == "target h-throughput measured 0.98 wanted >=1 met"
    assert "only with the allowance of 0.050" in lines["h-throughput"][1]
    assert lines["h-cpu-per-gb"][0] == "target h-cpu-per-gb measured 0.5 wanted <=0.8 met"
    assert lines["h-requests"][0] == "target h-requests measured nothing wanted >=0.5 short"


def test_pauses_are_judged_by_the_median_of_the_rounds_and_by_the_longest_of_all() -> None:
    def ended(p50: float, longest: float, failed: float) -> dict[str, float]:
        return {"killed_p50": p50, "killed_longest": longest, "stopped_longest": 0.1, "stopped_failed": failed}

    lines = judged(
        {
            ("leaders end", OURS): [ended(0.2, 0.4, 0), ended(0.3, 1.5, 1), ended(0.25, 0.3, 0)],
            ("leaders end", KAFKA): [ended(9.0, 10.0, 0)],
        }
    )
    assert lines["h-fail-over-p50"] == [
        "target h-fail-over-p50 measured 0.25 wanted <=0.3 met",
        "    klamm-cluster 0.25 s, kafka-cluster 9 s",
    ]
    assert lines["h-fail-over-p99"][0] == "target h-fail-over-p99 measured 1.5 wanted <=1 short"
    assert lines["h-shutdown-failed"][0] == "target h-shutdown-failed measured 1 wanted <=0 short"
    assert lines["h-shutdown-gap"][0] == "target h-shutdown-gap measured 0.1 wanted <=0.2 met"
    assert lines["h-idle-cpu"] == ["target h-idle-cpu measured nothing wanted <=3 short"]


def test_a_gap_is_the_longest_pause_that_touches_the_time_around_the_end() -> None:
    events = [(at, 0) for at in (0.0, 5.0, 6.0, 6.5, 9.0, 9.5, 20.0)]
    assert gap(events, begin=6.2, end=8.0) == 2.5
    assert gap(events, begin=1.0, end=1.1) == 5.0
    assert gap([], begin=0.0, end=1.0) == float("inf")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    running = KlammCluster("klamm-cluster", tmp_path_factory.mktemp("cluster"), zookeeper=True, command=Path(KLAMM))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.mark.slow
def test_a_produce_load_goes_to_every_leader_of_the_cluster(cluster: KlammCluster) -> None:
    with topic_on(cluster, "load", 6, replicas=3) as topic:
        led = leaders(cluster, topic, 6)
        assert sorted(number for numbers in led.values() for number in numbers) == list(range(6))
        assert set(led) <= set(cluster.brokers.values())
        got = drive_each(topic, led, Batch(10), Load(len(led), warm_s=0.0, measure_s=60, max_bytes=1), acks=-1)
        assert got.requests > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_the_stream_notes_each_leader_that_ends_and_loses_nothing(cluster: KlammCluster, how: How) -> None:
    found = end_leaders(cluster, how, rounds=1)
    assert (found.problems, found.failed) == ([], [])
    assert len(found.acknowledgements) == len(found.records) == 1
    assert found.read == found.acknowledged > 0


@pytest.mark.slow
def test_a_killed_broker_comes_back_on_its_port(cluster: KlammCluster) -> None:
    before, place = cluster.broker_pids(NODES[0]), cluster.brokers[NODES[0]]
    cluster.kill_broker(NODES[0])
    assert cluster.broker_pids(NODES[0]) == []
    cluster.start_broker(NODES[0])
    assert cluster.brokers[NODES[0]] == place
    assert cluster.broker_pids(NODES[0]) != before
    assert cpu_seconds(cluster.broker_pids(NODES[0])) > 0
