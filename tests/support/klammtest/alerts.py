"""Raises each alert of `examples/alerts.yaml` once, on real brokers; Prometheus' own `promtool` says whether it fires.

The samples before and after each fault are scraped from the brokers; `promtool test rules` evaluates the rules over
them in virtual time, so that nothing waits for `for: 5m`. Timestamps are shifted to that time.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import klamm
from klamm.core.broker.server import Broker
from klamm.core.cli.mirror.commands import app as mirror_app
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.load.metrics import LoadMetrics
from klamm.hadoop.load.report import RunReport, TopicReport
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer

from .broker import RunningBroker, running_broker
from .brokers.inprocess import broker_thread
from .faulty import fault_hook
from .plugins import fragile
from .ports import free_port
from .requests import batch, create_topic, produce, wait_until_all_are_known
from .waiting import eventually
from .wire import WireClient, part

RULES: Final = Path(__file__).resolve().parents[3] / "examples" / "alerts.yaml"
SESSION_MS: Final = 4000
STEP_S: Final = 60
HEALTHY_STEPS: Final = 30
FIRING_STEPS: Final = 6
"""Steps after the fault: longer than the longest `for`, shorter than the windows of `increase`."""
LATE_STEPS: Final = 170
"""For rules that look at what came two to three hours ago."""
ELSEWHERE: Final = {"KlammEventLoopLate"}
"""What a busy machine may raise by itself."""

AUDIT: Final = {"plugin": "klamm", "topics": ["audited"], "publish.interval.ms": 200}

Samples = dict[str, float]
"""Values by series, as `name{label="value"}`."""


def promtool() -> str | None:
    """Returns the program of Debian's package `prometheus`; None if it is not installed."""
    return shutil.which("promtool")


def rules() -> dict[str, dict[str, Any]]:
    """Returns the alert rules by name."""
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


METRICS: Final = re.compile(r"\b(?:klamm|process)_\w+|\bup\b")


def samples(text: str, **labels: str) -> Samples:
    """Returns the samples of a scrape that a rule asks for, with the labels that Prometheus adds."""
    asked = {name for rule in rules().values() for name in METRICS.findall(rule["expr"])}
    return {
        series(sample.name, {**sample.labels, **labels}): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in asked
    }


def series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


def scrape(ports: Iterable[int]) -> Samples:
    """Scrapes brokers as Prometheus does: one that does not answer has only `up`, 0."""
    found: Samples = {}
    for port in ports:
        labels = {"job": "klamm", "instance": f"127.0.0.1:{port}"}
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                found |= samples(answer.read().decode(), **labels)
            found[series("up", labels)] = 1
        except OSError:
            found[series("up", labels)] = 0
    return found


def firing(before: Samples, after: Samples, steps: int = FIRING_STEPS) -> set[str]:
    """Returns the alerts that fire `steps` minutes after the samples `before` have become those `after`.

    `promtool test rules` compares with what is expected and prints what it found: the set is read from that.
    """
    end_s = (HEALTHY_STEPS + steps) * STEP_S
    lines = [
        {"series": name, "values": f"{_values(name, before.get(name), HEALTHY_STEPS, end_s)} "
         f"{_values(name, after.get(name), steps + 1, end_s)}"}
        for name in sorted({*before, *after})
    ]  # fmt: skip
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": lines,
                "promql_expr_test": [
                    {"expr": expression, "eval_time": f"{end_s}s", "exp_samples": [{"labels": "none", "value": 1}]}
                ],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.yaml"
        file.write_text(yaml.safe_dump(test))
        done = subprocess.run(
            [str(promtool()), "test", "rules", str(file)], capture_output=True, text=True, check=False
        )
    said = done.stdout + done.stderr
    assert "got:" in said, said
    return set(re.findall(r'alertname="(\w+)"', said))


def _values(name: str, value: float | None, times: int, end_s: int) -> str:
    """Returns promtool's form of a value that stays; `_` for none. Instants are shifted to its clock, which is 0."""
    if value is None:
        return f"_x{times - 1}" if times > 1 else "_"
    if re.match(r"\w+(timestamp|watermark)_seconds", name):
        value = value - time.time() + end_s if value else -1e9
    return f"{value:.6f}+0x{times - 1}"


@dataclass
class Scene:
    """A cluster of two: `first` is a process, `second` a thread, both scraped at `ports`."""

    folder: Path
    coordination: ZooKeeperServer
    first: RunningBroker
    second: Broker
    ports: tuple[int, int]
    stop_second: Callable[[], None]

    @property
    def bootstrap(self) -> str:
        own = self.second.advertised[0]
        return f"{own.host}:{own.port}"

    def scrape(self) -> Samples:
        return scrape(self.ports)

    def until(self, name: str, wanted: Callable[[float], bool], port: int | None = None) -> Samples:
        """Scrapes until a series of that name, at one broker or at any, has a value as wanted."""
        found: Samples = {}

        def reached() -> bool:
            nonlocal found
            found = self.scrape()
            at = "" if port is None else f"127.0.0.1:{port}"
            return any(each.startswith(name) and at in each and wanted(found[each]) for each in found)

        eventually(reached, f"{name} as wanted")
        return found


def placed(wire: WireClient, name: str, replicas: tuple[int, ...], **config: str) -> None:
    """Creates a topic with one partition on these brokers."""
    kind = "CreatableReplicaAssignment"
    place = part(ApiKey.CREATE_TOPICS, 7, kind, partition_index=0, broker_ids=replicas)
    keys = {key.replace("_", "."): value for key, value in config.items()}
    made = create_topic(wire, name, -1, keys, assignments=(place,))
    assert made.error_code is ErrorCode.none, made.error_message


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper", free_port()))
        tree = {
            "plugin": "zookeeper",
            "zookeeper.connect": f"{zookeeper.connect}/klamm",
            "zookeeper.session.timeout.ms": SESSION_MS,
        }
        ports = free_port(), free_port()
        audit = {**AUDIT, "broker.interval.ms": 20, "watermark.interval.ms": 100}
        keys = {"consumer.lag.interval.ms": 100, "default.replication.factor": 1}
        first = stack.enter_context(
            running_broker(
                folder / "0",
                coordination=tree,
                broker={**keys, "broker.id": 0, "metrics.port": ports[0]},
                audit=audit,
            )
        )
        second_stack = stack.enter_context(ExitStack())
        second = second_stack.enter_context(
            broker_thread(
                folder / "1",
                tree,
                {**keys, "broker.id": 1, "metrics.port": ports[1], "max.connections.per.ip": 60, "services": "fragile"},
                audit=audit,
                plugins={"modules": ["klammtest.plugins.fragile"]},
            )
        )  # fmt: skip
        made = Scene(folder, zookeeper, first, second, ports, second_stack.close)
        wait_until_all_are_known([first.bootstrap, f"127.0.0.1:{second.advertised[0].port}"])
        with WireClient(first.bootstrap) as wire:  # the controller
            placed(wire, "lagging", (1,))
            placed(wire, "full", (1,))
            placed(wire, "broken", (1,), flush_messages="1")
            placed(wire, "audited", (1,))
            placed(wire, "both", (1, 0), min_insync_replicas="2")
            placed(wire, "alone", (0,))
            placed(wire, "unclean", (1, 0), unclean_leader_election_enable="true")
        in_sync = lambda: sum(v for k, v in made.scrape().items() if "underreplicated" in k) == 0  # noqa: E731
        eventually(in_sync, "all replicas are in sync")
        yield made


Outcome = tuple[Samples, int]
"""The samples after a fault, and for how many minutes they stay."""


def lagging(cluster: Scene) -> Outcome:
    old_ms = int(time.time() * 1000) - 3_600_000
    with WireClient(cluster.bootstrap) as wire:
        produce(wire, "lagging", encode_batch([(old_ms, None, b"v", ())]))
    with ClusterClient(cluster.bootstrap, codecs=Settings().codec_table()) as client:
        client.commit_offsets("slow", {TopicPartition("lagging", 0): CommittedOffset(0)})
    return cluster.until("klamm_consumergroup_lag_seconds", lambda value: value > 600), FIRING_STEPS


def stalled(cluster: Scene) -> Outcome:
    cluster.second.failed.get_loop().call_soon_threadsafe(time.sleep, 1.0)
    return cluster.until("klamm_broker_eventloop_lag_max_seconds", lambda value: value > 0.5), FIRING_STEPS


def refused(cluster: Scene) -> Outcome:
    with ExitStack() as stack:
        for _ in range(61):
            stack.enter_context(WireClient(cluster.bootstrap))
        return cluster.until("klamm_server_socket_server_metrics_connection_rejected", bool), FIRING_STEPS


def without_descriptors(cluster: Scene) -> Outcome:
    limits = resource.prlimit(cluster.first.pid, resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path(f"/proc/{cluster.first.pid}/fd").iterdir())
    resource.prlimit(cluster.first.pid, resource.RLIMIT_NOFILE, (used + 2, limits[1]))
    try:
        return cluster.scrape(), FIRING_STEPS
    finally:
        resource.prlimit(cluster.first.pid, resource.RLIMIT_NOFILE, limits)


def unhealthy(cluster: Scene) -> Outcome:
    fragile.problems.append("its source does not answer")
    try:
        return cluster.scrape(), FIRING_STEPS
    finally:
        fragile.problems.clear()


def failing(point: str, error: int) -> Callable[[str], None]:
    def hook(name: str) -> None:
        if name == point:
            raise OSError(error, os.strerror(error))

    return hook


def full(cluster: Scene) -> Outcome:
    with fault_hook(failing("log.append.before_write", ENOSPC)), WireClient(cluster.bootstrap) as wire:
        assert produce(wire, "full", batch(b"v")).error_code is ErrorCode.kafka_storage_error
        return cluster.until("klamm_server_replicamanager_fulldiskpartitioncount", bool), FIRING_STEPS


def broken(cluster: Scene) -> Outcome:
    with fault_hook(failing("log.flush", EIO)), WireClient(cluster.bootstrap) as wire:
        produce(wire, "broken", batch(b"v"))
        cluster.until("klamm_server_replicamanager_offlinereplicacount", bool)
        return cluster.until("klamm_controller_kafkacontroller_offlinepartitionscount", bool), FIRING_STEPS


def corrupt(cluster: Scene) -> Outcome:
    damaged = bytearray(batch(b"value"))
    damaged[-1] ^= 1
    with WireClient(cluster.bootstrap) as wire:
        assert produce(wire, "full", bytes(damaged)).error_code is ErrorCode.corrupt_message
    return cluster.scrape(), FIRING_STEPS


def unaudited(cluster: Scene) -> Outcome:
    """A window is complete; the next has records of a producer that dies before it has counted them."""
    sections = {"producer": {"bootstrap.servers": cluster.bootstrap}, "audit": AUDIT}
    start_ms = int(time.time() * 1000) - 10 * 3_600_000
    with klamm.Producer(sections) as producer:
        producer.send("audited", b"counted", timestamp_ms=start_ms).result(60)
    cluster.until("klamm_audit_topicmetrics_completenesswatermark_seconds", bool)
    sections["audit"] = {**AUDIT, "publish.interval.ms": 600_000}
    program = (
        f"import klamm, os\nproducer = klamm.Producer({sections!r})\n"
        f"producer.send('audited', b'lost', timestamp_ms={start_ms + 3_600_000}).result(60)\nos._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 9
    return cluster.until("klamm_server_brokertopicmetrics_messagesin_total", lambda value: value >= 2), LATE_STEPS


def unmirrored(cluster: Scene) -> Outcome:
    """The source of a link has ended, and by the clock of the fetches an hour passes."""
    folder, link = cluster.folder, cluster.folder / "link.yaml"
    tree = {"plugin": "zookeeper", "zookeeper.connect": f"{cluster.coordination.connect}/klamm"}
    with running_broker(folder / "source", topics={"followed": {"partitions": 4}}) as source:
        mirrors = {"berlin": {"bootstrap.servers": source.bootstrap, "topics": ["followed"]}}
        link.write_text(yaml.safe_dump({"coordination": tree, "mirrors": mirrors}))
        made = CliRunner().invoke(mirror_app, ["create", "berlin", "--config", str(link)])
        assert made.exception is None, made.output
        name = "klamm_mirror_lag_seconds"
        cluster.until(name, lambda value: value < 600, cluster.ports[1])
    with patch("klamm.core.broker.mirror.link_fetches.monotonic", lambda: time.monotonic() + 3600):
        return cluster.until(name, lambda value: value > 600, cluster.ports[1]), FIRING_STEPS


def dead(cluster: Scene) -> Outcome:
    cluster.first.kill()
    return cluster.scrape(), FIRING_STEPS


def left_alone(cluster: Scene) -> Outcome:
    return cluster.until("klamm_server_replicamanager_underminisrpartitioncount", bool), FIRING_STEPS


def unclean(cluster: Scene) -> Outcome:
    """The broker that returns lacks a record, and the one that has it is stopped."""
    with WireClient(cluster.bootstrap) as wire:
        eventually(lambda: produce(wire, "unclean", batch(b"v"), acks=1).error_code is ErrorCode.none, "it is stored")
    cluster.stop_second()
    cluster.first.start()
    name = "klamm_controller_controllerstats_uncleanleaderelections"
    return cluster.until(name, bool, cluster.ports[0]), FIRING_STEPS


def without_coordination(cluster: Scene) -> Outcome:
    cluster.coordination.kill()
    name = "klamm_server_sessionexpirelistener_connected"
    return cluster.until(name, lambda value: value == 0, cluster.ports[0]), FIRING_STEPS


Fault = tuple[tuple[str, ...], str, Callable[[Scene], Outcome]]
FAULTS: Final[tuple[Fault, ...]] = (
    (("KlammConsumerLag",), "a group that has not committed a record of an hour ago", lagging),
    (("KlammEventLoopLate",), "a second in which the event loop does not run", stalled),
    (("KlammConnectionsRefused",), "61 connections, where max.connections.per.ip is 60", refused),
    (("KlammFewDescriptors",), "a limit of open files that is two above what is open", without_descriptors),
    (("KlammServiceUnhealthy",), "a service beside the broker that says what is wrong", unhealthy),
    (("KlammDiskFull",), "a write that fails with ENOSPC", full),
    (("KlammOfflineReplicas", "KlammOfflinePartitions"), "an fsync that fails with EIO", broken),
    (("KlammCorruption",), "a batch whose CRC does not match", corrupt),
    (("KlammAuditIncomplete",), "a producer that dies before it has counted what it sent", unaudited),
    (("KlammMirrorLag",), "the source of a link has ended an hour ago", unmirrored),
    (("KlammBrokerDown", "KlammNoController"), "kill -9 of the controller", dead),
    (("KlammUnderReplicated", "KlammUnderMinIsr"), "its partitions without it", left_alone),
    (("KlammUncleanElection",), "a replica that lacks a record leads", unclean),
    (("KlammCoordinationUnavailable",), "ZooKeeper is killed", without_coordination),
)

LOADS: Final = {
    "KlammLoadFailed": "a run of klamm load that could not load a topic",
    "KlammLoadLate": "the last run was three hours ago",
}


def raised(folder: Path) -> Iterator[tuple[str, str, bool, bool]]:
    """Yields for each alert what was done to raise it, whether it fired before that, and whether after it. The first
    line has no alert: with brokers that work none fires."""
    with scene(folder) as cluster:
        before = cluster.scrape()
        yield "", "two brokers that work", False, bool(firing(before, before) - ELSEWHERE)
        for alerts, what, fault in FAULTS:
            if fault is not left_alone:  # it goes on from the fault before
                before = cluster.scrape()
            after, steps = fault(cluster)
            for alert in alerts:
                yield alert, what, *fires(alert, before, after, steps)
    yield from loads(folder)


def fires(alert: str, before: Samples, after: Samples, steps: int = FIRING_STEPS) -> tuple[bool, bool]:
    """Returns whether an alert fires before and after a fault, of the metrics that it asks for."""
    asked = set(METRICS.findall(rules()[alert]["expr"]))
    healthy, faulty = ({k: v for k, v in each.items() if k.partition("{")[0] in asked} for each in (before, after))
    if alert in ELSEWHERE:
        healthy = dict.fromkeys(healthy, 0.0)
    return alert in firing(healthy, healthy, steps), alert in firing(healthy, faulty, steps)


def loads(folder: Path) -> Iterator[tuple[str, str, bool, bool]]:
    """The same for what `klamm load --metrics-file` writes."""

    def written(age_s: float, error: str | None = None) -> Samples:
        path = folder / "load.prom"
        report = RunReport("lake", 0.0, 1.0, (TopicReport("flights", (), 1.0, error),))
        LoadMetrics(path, "lake", lambda: time.time() - age_s).write(report)
        return samples(path.read_text())

    good = written(60.0)
    faults = {"KlammLoadFailed": written(0.0, "no disk"), "KlammLoadLate": written(3 * 3600.0)}
    for alert, what in LOADS.items():
        yield alert, what, *fires(alert, good, faults[alert])


def main() -> int:
    """Prints a line for each alert; returns 1 if one did not fire, or fired before its fault."""
    missing = set(rules())
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for alert, what, before, after in raised(Path(folder)):
            good = not before and after is bool(alert)
            wrong += not good
            missing.discard(alert)
            how = "ok" if good else "WRONG: it fired before" if before else "WRONG"
            print(f"{alert or 'no alert':30} {what:60} {how}", flush=True)
    for alert in sorted(missing):
        print(f"{alert:30} was not raised")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
