"""Converts the broker's counters to Prometheus' families, at each scrape, on the scraper's thread.

No request runs this code. Dicts are copied in one step, so that the event loop may change them meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import klamm

from ..escaping import escaped
from ..interfaces.service import ServiceMetric
from ..protocol.apis import ApiKey
from .handlers.table import APIS
from .metrics.counters import RequestTimes
from .metrics.definitions import DEFINITIONS, MetricSpec, MetricType
from .metrics.recent_quantiles import QUANTILES, RecentTimes
from .watched import Watched

Sample = tuple[tuple[str, ...], float]
Times = tuple[tuple[str, ...], RequestTimes]
_NS_PER_MS = 1_000_000
_LOWEST, _HIGHEST = 2 * 14, 2 * 36


class BrokerCollector(Collector):
    """Yields every metric of `DEFINITIONS`, in its order, those without a sample included; then those of services."""

    def __init__(self, watched: Watched) -> None:
        metrics = watched.connections.metrics
        self._times: dict[str, Callable[[], Iterable[Times]]] = {
            "network_requestmetrics_totaltimems": lambda: _by_api(metrics.requests),
            "network_requestmetrics_remotetimems": lambda: _by_api(metrics.waits),
            "controller_controllerstats_leaderelectionrateandtimems": lambda: [((), metrics.elections)],
        }
        self._recent = RecentTimes(metrics.requests)
        self._samples = _samples(watched)
        self._samples["network_requestmetrics_totaltimems_recent"] = self._quantiles
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        for definition in DEFINITIONS:
            if definition.kind is MetricType.HISTOGRAM:
                yield self._histogram(definition)
            elif definition.kind is MetricType.INFO:
                yield self._info(definition)
            else:
                yield _family(definition, self._samples[definition.name]())
        yield from of_services(self._watched.background.metrics())

    def _info(self, definition: MetricSpec) -> Metric:
        family = InfoMetricFamily(f"klamm_{definition.name}", definition.doc)
        cluster = self._watched.cluster.image().cluster_id
        values = (klamm.__version__, str(self._watched.broker_id), cluster)
        family.add_metric((), dict(zip(definition.labels, values, strict=True)))
        return family

    def _histogram(self, definition: MetricSpec) -> Metric:
        family = HistogramMetricFamily(definition.shown, definition.doc, labels=definition.labels)
        for labels, times in self._times[definition.name]():
            counts = list(times.buckets)
            total_ms = times.total_ns / _NS_PER_MS
            family.add_metric(_shown(labels), list(_cumulative(counts)), sum_value=total_ms)
        return family

    def _quantiles(self) -> Iterable[Sample]:
        for api, found in self._recent.quantiles_ns().items():
            for quantile, ns in zip(QUANTILES, found, strict=True):
                yield (_api_name(api.name), repr(quantile)), ns / _NS_PER_MS


def _family(definition: MetricSpec, samples: Iterable[Sample]) -> Metric:
    family = _empty_family(definition.name, definition.doc, definition.labels, definition.kind is MetricType.COUNTER)
    for labels, value in samples:
        family.add_metric(_shown(labels), value)
    return family


def _empty_family(
    name: str, doc: str, labels: tuple[str, ...], is_counter: bool
) -> CounterMetricFamily | GaugeMetricFamily:
    if is_counter:
        return CounterMetricFamily(f"klamm_{name}", doc, labels=labels)
    return GaugeMetricFamily(f"klamm_{name}", doc, labels=labels)


def of_services(samples: Iterable[ServiceMetric]) -> Iterable[Metric]:
    """Yields a family for each metric name; its labels are those of its first sample."""
    families: dict[str, tuple[CounterMetricFamily | GaugeMetricFamily, tuple[str, ...]]] = {}
    for sample in samples:
        if sample.name not in families:
            labels = tuple(sample.labels)
            families[sample.name] = _empty_family(sample.name, sample.doc, labels, sample.is_counter), labels
        family, labels = families[sample.name]
        family.add_metric(_shown(sample.labels.get(label, "") for label in labels), sample.value)
    return [family for family, _ in families.values()]


def _shown(labels: Iterable[str]) -> list[str]:
    """Returns each label as one visible line; Prometheus's text format has no form for a lone surrogate."""
    return [escaped(label) for label in labels]


def _cumulative(counts: list[int]) -> Iterator[tuple[str, float]]:
    """Yields the buckets by their upper bound in ms, always the same ones: from 16 us to 34 s, and +Inf."""
    total = sum(counts[:_LOWEST])
    for index in range(_LOWEST, _HIGHEST):
        total += counts[index]
        yield repr(RequestTimes.upper_bound_ns(index) / _NS_PER_MS), total
    yield "+Inf", total + sum(counts[_HIGHEST:])


def _by_api(times: Mapping[ApiKey, RequestTimes]) -> list[Times]:
    return [((_api_name(api.name),), each) for api, each in times.items() if api in APIS]


def _api_name(name: str) -> str:
    """Returns the API's name as Kafka writes it, such as ListOffsets."""
    return "".join(part.capitalize() for part in name.split("_"))


def _samples(watched: Watched) -> dict[str, Callable[[], Iterable[Sample]]]:
    """Returns, for each metric name, the function that reads it."""
    metrics, memory = watched.connections.metrics, watched.connections.memory

    def one(read: Callable[[], float]) -> Callable[[], Iterable[Sample]]:
        return lambda: [((), read())]

    def topic(field: str) -> Callable[[], Iterable[Sample]]:
        return lambda: [((name,), getattr(traffic, field)) for name, traffic in list(metrics.topics.items())]

    def per_log(field: str) -> Callable[[], Iterable[Sample]]:
        return lambda: [
            ((name.topic, str(name.partition)), getattr(log, field)) for name, log in watched.logs.logs().items()
        ]

    found: dict[str, Callable[[], Iterable[Sample]]] = {
        f"server_brokertopicmetrics_{name}": topic(field)
        for name, field in (
            ("bytesin", "bytes_in"), ("bytesout", "bytes_out"), ("messagesin", "messages_in"),
            ("totalproducerequests", "produces"), ("totalfetchrequests", "fetches"),
            ("failedproducerequests", "failed_produces"), ("failedfetchrequests", "failed_fetches"),
            ("replicationbytesin", "replication_bytes_in"), ("replicationbytesout", "replication_bytes_out"),
        )
    }  # fmt: skip
    found |= {
        "log_log_logendoffset": per_log("log_end_offset"),
        "log_log_logstartoffset": per_log("log_start_offset"),
        "cluster_partition_highwatermark": per_log("high_watermark"),
        "log_log_size": per_log("size"),
        "log_log_numlogsegments": per_log("segment_count"),
        "log_log_corruptbatches": per_log("corrupt_batches"),
        "log_scrubber_bytes": one(lambda: watched.logs.scrubbed.bytes),
        "log_scrubber_corrupt": lambda: [
            (("batch",), watched.logs.scrubbed.corrupt_batches),
            (("index",), watched.logs.scrubbed.corrupt_indexes),
        ],
        "log_scrubber_passes": one(lambda: watched.logs.scrubbed.passes),
        "network_requestmetrics_errors": lambda: [
            ((_api_name(api.name), error.name.upper()), count) for (api, error), count in list(metrics.errors.items())
        ],
        "network_requestchannel_requestqueuesize": one(lambda: memory.queued),
        "network_requestchannel_inflight": one(lambda: sum(member.busy for member in watched.connections)),
        "network_requestchannel_requestbytes": one(lambda: memory.held),
        "network_requestchannel_unreadresponsebytes": one(lambda: memory.unread),
        "server_service_healthy": lambda: [
            ((name,), problem is None) for name, problem in watched.background.health().items()
        ],
        "consumergroup_lag": lambda: [
            ((group, tp.topic, str(tp.partition)), lag.records) for (group, tp), lag in watched.lag.lags().items()
        ],
        "consumergroup_lag_seconds": lambda: [
            ((group, tp.topic, str(tp.partition)), lag.seconds) for (group, tp), lag in watched.lag.lags().items()
        ],
        "broker_eventloop_lag_seconds": one(lambda: metrics.loop_lag_s),
        "broker_eventloop_lag_max_seconds": one(lambda: metrics.loop_lag_max_s),
        "broker_appendsheldup": one(lambda: watched.appends.held_up),
    }
    return found | _of_connections(watched, one) | _of_cluster(watched, one)


def _of_connections(
    watched: Watched, one: Callable[[Callable[[], float]], Callable[[], Iterable[Sample]]]
) -> dict[str, Callable[[], Iterable[Sample]]]:
    metrics = watched.connections.metrics
    return {
        "server_socket_server_metrics_connection_count": one(lambda: len(watched.connections)),
        "server_socket_server_metrics_connection_creation": one(lambda: metrics.connections_accepted),
        "server_socket_server_metrics_connection_rejected": lambda: [
            ((limit,), count) for limit, count in list(metrics.connections_rejected.items())
        ],
        "server_socket_server_metrics_connection_accept_throttled": one(lambda: metrics.connections_throttled),
        "server_socket_server_metrics_connection_held_up": lambda: [
            ((limit,), count) for limit, count in list(metrics.held_up.items())
        ],
        "server_socket_server_metrics_connection_closed": lambda: [
            ((reason,), count) for reason, count in list(metrics.connections_closed.items())
        ],
        "server_delayedoperationpurgatory_purgatorysize": lambda: [
            (("Fetch",), sum(led.parked for led in watched.partitions))
        ],
    }


def _of_cluster(
    watched: Watched, one: Callable[[Callable[[], float]], Callable[[], Iterable[Sample]]]
) -> dict[str, Callable[[], Iterable[Sample]]]:
    metrics, cluster = watched.connections.metrics, watched.cluster

    def leaderless() -> int:
        image = cluster.image()
        return sum(
            part.leader not in image.brokers for topic in image.topics.values() for part in topic.partitions.values()
        )

    def imbalanced() -> int:
        if not cluster.is_controller:
            return 0
        return sum(part.leader != part.replicas[0] for _, part in cluster.image().partitions())

    def reassigning() -> int:
        own, moved = watched.broker_id, cluster.reassignments()
        return sum((part := cluster.image().partition(tp)) is not None and part.leader == own for tp in moved)

    return {
        "server_replicamanager_partitioncount": one(lambda: len(watched.logs.logs())),
        "server_replicamanager_leadercount": one(lambda: sum(1 for _ in watched.partitions)),
        "server_replicamanager_offlinereplicacount": one(
            lambda: sum(log.offline is not None for log in watched.logs.logs().values())
        ),
        "server_replicamanager_fulldiskpartitioncount": one(lambda: len(watched.logs.space.refused)),
        "server_replicamanager_underreplicatedpartitions": one(
            lambda: sum(led.in_sync < len(led.replicas) for led in watched.partitions)
        ),
        "server_replicamanager_underminisrpartitioncount": one(
            lambda: sum(led.leader is not None and led.leader.is_under_min_isr for led in watched.partitions)
        ),
        "server_replicamanager_atminisrpartitioncount": one(
            lambda: sum(led.leader is not None and led.leader.is_at_min_isr for led in watched.partitions)
        ),
        "cluster_partition_underminisr": lambda: [
            ((led.name.topic, str(led.name.partition)), led.leader is not None and led.leader.is_under_min_isr)
            for led in watched.partitions
        ],
        "server_replicamanager_reassigningpartitions": one(reassigning),
        "server_replicafetchermanager_maxlag": lambda: [(("Replica",), watched.roles.max_lag)],
        "controller_kafkacontroller_preferredreplicaimbalancecount": one(imbalanced),
        "controller_controllerstats_uncleanleaderelections": one(lambda: metrics.unclean_elections),
        "server_replicamanager_isrshrinks": one(lambda: metrics.isr_shrinks),
        "server_replicamanager_isrexpands": one(lambda: metrics.isr_expands),
        "server_replicamanager_failedisrupdates": one(lambda: metrics.failed_isr_updates),
        "controller_kafkacontroller_activecontrollercount": one(lambda: cluster.is_controller),
        "controller_kafkacontroller_offlinepartitionscount": one(leaderless),
        "controller_kafkacontroller_activebrokercount": one(lambda: len(cluster.image().brokers)),
        "controller_kafkacontroller_globaltopiccount": one(lambda: len(cluster.image().topics)),
        "coordinator_group_groupmetadatamanager_numgroups": one(lambda: watched.groups.coordinator.group_count),
        "server_sessionexpirelistener_connected": one(lambda: metrics.session_up),
        "server_sessionexpirelistener_zookeeperexpires": one(lambda: metrics.session_expirations),
        "server_sessionexpirelistener_zookeeperdisconnects": one(lambda: metrics.session_losses),
    }


def registry(watched: Watched) -> CollectorRegistry:
    """Returns the registry of everything that the endpoint prints: the broker's metrics and the process's."""
    found = CollectorRegistry(auto_describe=False)
    found.register(BrokerCollector(watched))
    ProcessCollector(registry=found)
    return found
