"""The metrics endpoint: what it prints is what the page says, and counts what clients did."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from klamm.core.broker.metrics.counters import RequestTimes, _lists_of
from klamm.core.broker.metrics.definitions import DEFINITIONS, MetricType
from klamm.core.broker.metrics.recent_quantiles import WINDOW_S, RecentTimes
from klamm.core.broker.mirror.link_control import LAG_SECONDS
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.messages import response
from klamm.hadoop.load.metrics import METRICS as LOAD_METRICS
from klamm.plugins.audit.watermarks import WATERMARK
from klammtest import alerts
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker, running_broker
from klammtest.pages.metrics_reference import BEGIN, PROCESS, reference
from klammtest.ports import free_port
from klammtest.requests import batch, create_topic, fetch, metadata, produce, wait_until_all_are_known
from klammtest.waiting import eventually
from klammtest.wire import WireClient

PLAIN = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.HEARTBEAT,
    ApiKey.SYNC_GROUP,
    ApiKey.LEAVE_GROUP,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DELETE_GROUPS,
    ApiKey.UNREGISTER_BROKER,
}
"""Their responses (or old ones of theirs) have an error at the top only."""
PAGE = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, str]]:
    port = free_port()
    folder = tmp_path_factory.mktemp("metrics")
    topics = {"counted": {"partitions": 2}}
    with running_broker(folder, topics=topics, broker={"metrics.port": port, "max.connections": 4}) as broker:
        yield broker, f"http://127.0.0.1:{port}/metrics"


def scrape(url: str) -> dict[str, list[Sample]]:
    """Samples by name."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list[Sample]], name: str, **labels: str) -> float:
    (sample,) = [s for s in found[name] if labels.items() <= s.labels.items()]
    return sample.value


def test_the_endpoint_prints_what_the_page_lists(watched: tuple[RunningBroker, str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page.partition(BEGIN)[0] + reference(), (
        "run: python -m klammtest.pages.metrics_reference docs/metrics.md"
    )
    broker, url = watched
    with WireClient(broker.bootstrap) as wire:
        produce(wire, "counted", batch(b"one"))
        assert produce(wire, "counted", b"\0" * 100).error_code is not ErrorCode.none
        wire.send_raw(b"\xff\xff\xff\xff")
        assert wire.closed()
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    listed = {d.shown.removesuffix("_total"): d for d in DEFINITIONS} | {d.name: d for d in PROCESS}
    assert set(families) == set(listed)
    for name, definition in listed.items():
        family = families[name]
        assert family.type == {MetricType.INFO: "gauge"}.get(definition.kind, definition.kind.value), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(definition.labels), name


def test_labelled_counters_are_there_before_their_first_event(watched: tuple[RunningBroker, str]) -> None:
    """A rate over a counter that appears with its first event does not see that event."""
    found = scrape(watched[1])
    empty = [d.shown for d in DEFINITIONS if d.kind is MetricType.COUNTER and not found.get(d.shown)]
    assert empty == []
    times = {s.labels["request"] for s in found["klamm_network_requestmetrics_totaltimems_count"]}
    assert {"Produce", "Fetch", "DeleteTopics"} <= times
    assert value(found, "klamm_network_requestmetrics_errors_total", request="Fetch", error="CORRUPT_MESSAGE") == 0


def test_traffic_is_counted_by_topic(watched: tuple[RunningBroker, str]) -> None:
    broker, url = watched
    before = scrape(url)
    three = batch(b"a", b"b", b"c")
    with WireClient(broker.bootstrap) as wire:
        for _ in range(5):
            base = produce(wire, "counted", three, 1).base_offset
        assert fetch(wire, "counted", base, 1).error_code is ErrorCode.none
        assert fetch(wire, "counted", 10_000, 1).error_code is ErrorCode.offset_out_of_range
        assert produce(wire, "nowhere", three).error_code is ErrorCode.unknown_topic_or_partition
    after = scrape(url)

    def grown(name: str, **labels: str) -> float:
        then = [s.value for s in before.get(name, []) if labels.items() <= s.labels.items()]
        return value(after, name, **labels) - sum(then)

    traffic = "klamm_server_brokertopicmetrics_"
    assert grown(f"{traffic}messagesin_total", topic="counted") == 15
    assert grown(f"{traffic}bytesin_total", topic="counted") == 5 * len(three)
    assert grown(f"{traffic}totalproducerequests_total", topic="counted") == 5
    assert grown(f"{traffic}bytesout_total", topic="counted") == len(three)
    assert grown(f"{traffic}totalfetchrequests_total", topic="counted") == 2
    assert grown(f"{traffic}failedfetchrequests_total", topic="counted") == 1
    times = "klamm_network_requestmetrics_totaltimems"
    assert grown(f"{times}_count", request="Produce") == 6
    assert grown(f"{times}_bucket", request="Produce", le="+Inf") == 6
    assert grown(f"{times}_sum", request="Fetch") > 0
    assert value(after, f"{times}_recent", request="Fetch", quantile="0.99") > 0
    errors = "klamm_network_requestmetrics_errors_total"
    assert grown(errors, request="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
    assert grown(errors, request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    place = {"topic": "counted", "partition": "1"}
    assert value(after, "klamm_log_log_logendoffset", **place) == base + 3
    assert value(after, "klamm_log_log_size", **place) >= 5 * len(three)
    assert value(after, "klamm_log_log_numlogsegments", **place) == 1


def test_errors_of_other_apis_are_counted_at_any_depth(watched: tuple[RunningBroker, str]) -> None:
    broker, url = watched
    with WireClient(broker.bootstrap) as wire:
        assert metadata(wire, ["not.there"]).topics[0].error_code is ErrorCode.unknown_topic_or_partition
    found = scrape(url)
    name = "klamm_network_requestmetrics_errors_total"
    assert value(found, name, request="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION") >= 1


def test_connections_are_counted(watched: tuple[RunningBroker, str]) -> None:
    broker, url = watched
    prefix = "klamm_server_socket_server_metrics_connection_"
    eventually(lambda: value(scrape(url), f"{prefix}count") == 0, "the connections of the tests before are closed")
    clients = [WireClient(broker.bootstrap) for _ in range(4)]
    assert metadata(clients[3], []).brokers
    with WireClient(broker.bootstrap) as refused:
        assert refused.closed()
    found = scrape(url)
    assert value(found, f"{prefix}count") == 4
    assert value(found, f"{prefix}rejected_total", limit="max.connections") == 1
    assert value(found, f"{prefix}creation_total") >= 5
    for client in clients:
        client.close()


@pytest.mark.parametrize("api", list(SERVED))
def test_every_response_is_searched_for_errors(api: ApiKey) -> None:
    for version in range(SERVED[api][0], SERVED[api][1] + 1):
        found = _lists_of(response(api, version).root)
        assert found or api in PLAIN, f"{api.name} v{version}"


def test_times_fall_into_their_buckets() -> None:
    times = RequestTimes()
    for elapsed in (0, 1, 2, 3, 1_000, 1_000_000, 2**38, 2**50):
        before = list(times.buckets)
        times.add(elapsed)
        (index,) = [i for i, (then, now) in enumerate(zip(before, times.buckets, strict=True)) if then != now]
        below = RequestTimes.upper_bound_ns(index - 1) if index > 4 else 0
        assert below <= elapsed < RequestTimes.upper_bound_ns(index) or elapsed < 2
    assert sum(times.buckets) == 8


def test_the_alert_rules_ask_for_metrics_that_are_there() -> None:
    asked = {name for rule in alerts.rules().values() for name in alerts.METRICS.findall(rule["expr"])}
    there = {d.shown for d in DEFINITIONS} | {d.shown.removeprefix("klamm_") for d in PROCESS}
    assert asked <= there | set(LOAD_METRICS) | {f"klamm_{WATERMARK}", f"klamm_{LAG_SECONDS}", "up"}
    assert len(asked) > 5


def test_each_alert_is_raised_by_make_alerts_and_names_what_to_do() -> None:
    raised = [alert for names, _, _ in alerts.FAULTS for alert in names] + list(alerts.LOADS)
    assert sorted(raised) == sorted(alerts.rules())
    assert all(rule["annotations"]["summary"] for rule in alerts.rules().values())


def test_the_dashboard_asks_for_metrics_and_labels_that_are_there() -> None:
    dashboard = json.loads((PAGE.parents[1] / "examples" / "grafana.json").read_text())
    labels = {d.shown: d.labels for d in DEFINITIONS} | {d.shown.removeprefix("klamm_"): d.labels for d in PROCESS}
    for definition in DEFINITIONS:
        if definition.kind is MetricType.HISTOGRAM:
            labels |= {f"{definition.shown}{end}": (*definition.labels, "le") for end in ("_bucket", "_count")}
            del labels[definition.shown]
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for expression, legend in [(target["expr"], target["legendFormat"]) for target in targets]:
        asked = re.findall(r"\b(?:klamm|process)_\w+", expression)
        assert asked
        assert set(asked) <= labels.keys(), expression
        by = {label.strip() for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(",")}
        shown = set(re.findall(r"{{(\w+)}}", legend))
        for name in asked:
            assert by | shown <= {*labels[name], "instance"}, expression
    assert len(targets) > 20
    for variable in dashboard["templating"]["list"][1:]:
        (name,) = re.findall(r"\bklamm_\w+", variable["query"])
        assert name in labels


def test_quantiles_are_of_the_last_minutes() -> None:
    now = [0.0]
    times = {ApiKey.FETCH: RequestTimes(), ApiKey.PRODUCE: RequestTimes()}
    recent = RecentTimes(times, clock=lambda: now[0])
    for _ in range(99):
        times[ApiKey.FETCH].add(1_000_000)
    times[ApiKey.FETCH].add(2**50)
    (found,) = recent.quantiles_ns().values()
    assert all(786_432 <= value <= 1_048_576 for value in found[:3])
    assert found[3] == RequestTimes.upper_bound_ns(len(times[ApiKey.FETCH].buckets) - 2)
    for _ in range(2):
        now[0] += WINDOW_S
        recent.quantiles_ns()
    assert recent.quantiles_ns() == {}
    times[ApiKey.PRODUCE].add(1_000_000_000)
    assert set(recent.quantiles_ns()) == {ApiKey.PRODUCE}


def test_a_metrics_port_in_use_is_one_line(watched: tuple[RunningBroker, str], tmp_path: Path) -> None:
    taken = int(watched[1].rpartition(":")[2].partition("/")[0])
    line = f"metrics.port: cannot listen on 127.0.0.1:{taken}: Address already in use"
    with pytest.raises(RuntimeError, match=line), running_broker(tmp_path, broker={"metrics.port": taken}):
        raise AssertionError("it started")


def test_what_replicas_and_elections_have_come_to(tmp_path: Path) -> None:
    """The other of two brokers stops: its partition is led here, and one in-sync replica is left."""
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db"), "session.timeout.ms": 30_000}
    ports = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                running_broker(
                    tmp_path / str(number), coordination=tree, broker={"broker.id": number, "metrics.port": port}
                )
            )
            for number, port in enumerate(ports)
        )
        wait_until_all_are_known([first.bootstrap, second.bootstrap])
        with WireClient(first.bootstrap) as wire:
            made = create_topic(wire, "t", 2, {"min.insync.replicas": "2"}, replication_factor=2)
            assert made.error_code is ErrorCode.none
        place = "klamm_server_replicamanager_"
        leads = lambda: [value(scrape(url), f"{place}leadercount") for url in urls]  # noqa: E731
        eventually(lambda: leads() == [1, 1], "each leads one partition")
        found = [scrape(url) for url in urls]
        assert [value(one, f"{place}atminisrpartitioncount") for one in found] == [1, 1]
        assert [value(one, f"{place}reassigningpartitions") for one in found] == [0, 0]
        assert [value(one, "klamm_server_replicafetchermanager_maxlag", clientId="Replica") for one in found] == [0, 0]
        elections = "klamm_controller_controllerstats_leaderelectionrateandtimems"
        assert value(found[0], f"{elections}_count") == 0
        controller = "klamm_controller_kafkacontroller_preferredreplicaimbalancecount"
        assert value(found[0], controller) == 0
        assert second.stop() == 0
        now = scrape(urls[0])
        assert value(now, controller) == 1
        assert value(now, f"{elections}_count") >= 1
        assert value(now, "klamm_controller_controllerstats_uncleanleaderelections_total") == 0

        def under() -> list[float]:
            now = scrape(urls[0])
            return [each.value for each in now["klamm_cluster_partition_underminisr"]]

        eventually(lambda: under() == [1, 1], "both partitions are led here, under their minimum")
        assert value(scrape(urls[0]), f"{place}atminisrpartitioncount") == 0
