"""The demo's three brokers: one file for all, the one that is killed, and the comparison of their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.host_brokers import check_host
from klamm.core.config.settings import load_settings
from klamm.plugins.demo.outage import KILL_MONTH, START_MONTH, Outage
from klamm.plugins.demo.processes import DemoError, Processes
from klamm.plugins.demo.report.timeline import MarkKind, Timeline
from klamm.plugins.demo.steps.cluster import Brokers, create_topics, differing_partitions, running_brokers
from klamm.plugins.demo.workspace import BROKERS, Workspace
from klammtest.waiting import eventually


def test_one_file_configures_all_brokers(tmp_path: Path) -> None:
    workspace = Workspace.make(tmp_path)
    settings = load_settings(workspace.config)
    check_host(settings.broker, BROKERS)
    brokers = [settings.for_broker(index).broker for index in range(BROKERS)]
    addresses = [f"{address.host}:{address.port}" for broker in brokers for address in broker.bound()]
    assert ",".join(addresses) == workspace.bootstrap
    assert settings.producer.bootstrap_servers == settings.consumer.bootstrap_servers == workspace.bootstrap
    assert [(workspace.root / broker.log_dirs).resolve() for broker in brokers] == workspace.broker_logs
    assert (settings.broker.default_replication_factor, settings.topics["flights"].replication_factor) == (3, 3)
    assert settings.broker.min_insync_replicas == 2


def test_replicas_are_compared_by_their_bytes_not_by_their_segments(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("a", "b", "c")]
    for log in logs:
        for number in range(6):
            (log / f"flights-{number}").mkdir(parents=True)
            (log / f"flights-{number}" / "00000000000000000000.log").write_bytes(b"batch" * number)
    assert differing_partitions(logs) == []
    (logs[1] / "flights-5" / "00000000000000000000.log").write_bytes(b"batch" * 3)
    (logs[1] / "flights-5" / "00000000000000000003.log").write_bytes(b"batch" * 2)
    assert differing_partitions(logs) == [], "it rolled a segment where the others did not"
    (logs[2] / "flights-1" / "00000000000000000000.log").write_bytes(b"match")
    (logs[2] / "flights-4" / "00000000000000000000.log").write_bytes(b"batch" * 3)
    assert differing_partitions(logs) == [1, 4]


@pytest.mark.timeout(600)
def test_a_leader_is_killed_while_months_pass_and_comes_back(tmp_path: Path) -> None:
    workspace = Workspace.make(tmp_path)
    told: list[tuple[MarkKind, str]] = []
    timeline = Timeline(lambda: 0.0)
    with Processes(workspace.logs) as processes, running_brokers(workspace, processes, timeline) as brokers:
        create_topics(workspace, processes)
        outage = Outage(brokers, lambda text, kind: told.append((kind, text)), lambda: 0.0)
        for months in range(KILL_MONTH):
            outage.advance(months)
        outage.advance(KILL_MONTH)
        assert not told, "it is killed after the month has begun, while the producers send"
        outage.advance(KILL_MONTH)
        assert brokers.killed is not None
        victim = f"broker {brokers.killed.broker}"
        assert 0 in brokers.killed.led
        assert [kind for kind, _ in told] == [MarkKind.KILL, MarkKind.NEWS]
        assert told[0][1].startswith(f"{victim} is killed with -9 while it leads partitions 0")
        assert told[1][1].endswith(f"{victim} stays dead for now")
        eventually(lambda: not brokers.all_in_sync(), "the broker that is asked has heard of it", 60.0)
        outage.advance(START_MONTH)

        def over() -> bool:
            outage.advance(START_MONTH)
            return outage.over

        eventually(over, "all replicas are in sync", 300.0)
        assert told[2][1].startswith(f"{victim} is back: all replicas are in sync")
        assert differing_partitions(workspace.broker_logs) == []
    logs = [path.read_text() for path in sorted(workspace.logs.glob("broker-*.log"))]
    assert len(logs) == BROKERS + 1
    assert not [log for log in logs if "moved to other brokers in" in log or "SIGTERM while stopping" in log], (
        "they end at once"
    )


def test_a_broker_that_does_not_start_ends_the_demo(tmp_path: Path) -> None:
    workspace = Workspace.make(tmp_path)
    with Processes(workspace.logs) as processes:
        brokers = Brokers(workspace, processes)
        workspace.config.write_text("broker: {no.such.key: 1}\n")
        with pytest.raises(DemoError, match=r"broker-0 ended with status 2: .*no\.such\.key"):
            brokers.start()
        brokers.close()
