"""Every metric of the endpoint: its name, its kind and its meaning.

Names are those that Prometheus' JMX exporter gives Kafka's (its example rules), with `klamm` for `kafka`, so that a
dashboard for Kafka needs only the prefix changed. `docs/metrics.md` is made from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricType(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A counter's samples end in `_total`."""

    name: str
    kind: MetricType
    labels: tuple[str, ...]
    doc: str

    @property
    def shown(self) -> str:
        """Returns the name as it is printed."""
        suffix = {MetricType.COUNTER: "_total", MetricType.INFO: "_info"}.get(self.kind, "")
        return f"klamm_{self.name}{suffix}"


_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_C, _G = MetricType.COUNTER, MetricType.GAUGE


def _traffic(name: str, doc: str) -> MetricSpec:
    return MetricSpec(f"server_brokertopicmetrics_{name}", _C, _TOPIC, doc)


DEFINITIONS = (
    MetricSpec("server_app", MetricType.INFO, ("version", "broker", "cluster"), "What runs here; always 1."),
    _traffic("bytesin", "Bytes of record batches that producers sent and that were stored."),
    _traffic("bytesout", "Bytes of record batches given to consumers."),
    _traffic("messagesin", "Records that were stored."),
    _traffic("totalproducerequests", "Batches stored, one for each partition of a Produce."),
    _traffic("totalfetchrequests", "Partitions answered in Fetch responses."),
    _traffic("failedproducerequests", "Batches refused."),
    _traffic("failedfetchrequests", "Partitions answered with an error."),
    MetricSpec("network_requestmetrics_totaltimems", MetricType.HISTOGRAM, ("request",),
               "Milliseconds from taking a request up to its response being ready, waiting included; `_count`: how "
               "many there were. Two buckets per power of two."),
    MetricSpec("network_requestmetrics_totaltimems_recent", _G, ("request", "quantile"),
               "The same as quantiles (0.5, 0.95, 0.99, 0.999) of the last 2.5 to 5 minutes."),
    MetricSpec("network_requestmetrics_remotetimems", MetricType.HISTOGRAM, ("request",),
               "Milliseconds of these in which a Fetch waited for records to come; the rest is the broker's own "
               "(Kafka's LocalTimeMs)."),
    MetricSpec("network_requestmetrics_errors", _C, ("request", "error"),
               "Errors in responses, each topic's and partition's counted; answers without error are not."),
    MetricSpec("network_requestchannel_requestqueuesize", _G, (),
               "Requests that were read and wait behind another one (queued.max.requests)."),
    MetricSpec("network_requestchannel_inflight", _G, (), "Connections with a request that is not answered yet."),
    MetricSpec("network_requestchannel_requestbytes", _G, (), "Memory of requests (queued.max.request.bytes)."),
    MetricSpec("network_requestchannel_unreadresponsebytes", _G, (),
               "Memory of responses that clients have not read (queued.max.response.bytes)."),
    MetricSpec("server_brokertopicmetrics_replicationbytesin", _C, ("topic",),
               "Bytes of batches that this broker has copied from leaders."),
    MetricSpec("server_brokertopicmetrics_replicationbytesout", _C, ("topic",),
               "Bytes of batches that followers have copied from this broker."),
    MetricSpec("server_socket_server_metrics_connection_count", _G, (), "Connections that are open."),
    MetricSpec("server_socket_server_metrics_connection_creation", _C, (), "Connections that came, refused ones too."),
    MetricSpec("server_socket_server_metrics_connection_rejected", _C, ("limit",),
               "Connections closed at once, by the limit that they were over."),
    MetricSpec("server_socket_server_metrics_connection_accept_throttled", _C, (),
               "Times that new connections had to wait, because of max.connection.creation.rate or because no file "
               "descriptor was free."),
    MetricSpec("server_socket_server_metrics_connection_held_up", _C, ("limit",),
               "Times that a connection had to wait, by the limit over all of them that was reached "
               "(queued.max.requests, queued.max.request.bytes, queued.max.response.bytes)."),
    MetricSpec("server_socket_server_metrics_connection_closed", _C, ("reason",),
               "Connections that the broker closed later: idle, unfinished request, unhandled requests, reads "
               "nothing, bad request."),
    MetricSpec("server_delayedoperationpurgatory_purgatorysize", _G, ("delayedOperation",),
               "Fetches that wait for records, each counted at every partition it waits for."),
    MetricSpec("log_log_logendoffset", _G, _PARTITION, "The offset that the next record gets."),
    MetricSpec("log_log_logstartoffset", _G, _PARTITION, "The first offset that is there."),
    MetricSpec("cluster_partition_highwatermark", _G, _PARTITION, "Consumers see what lies below."),
    MetricSpec("log_log_size", _G, _PARTITION, "Bytes of the log's segments."),
    MetricSpec("log_log_corruptbatches", _C, _PARTITION,
               "Damaged places that reads and the scrubber have found since the log was opened; none is served."),
    MetricSpec("log_scrubber_bytes", _C, (), "Bytes of old segments that the scrubber has re-read."),
    MetricSpec("log_scrubber_corrupt", _C, ("what",), "Damaged batches and indexes that the scrubber has found."),
    MetricSpec("log_scrubber_passes", _C, (), "Times that it has been through all old segments."),
    MetricSpec("log_log_numlogsegments", _G, _PARTITION, "Segments of the log."),
    MetricSpec("server_replicamanager_partitioncount", _G, (), "Logs that are open here."),
    MetricSpec("server_replicamanager_leadercount", _G, (), "Partitions led here."),
    MetricSpec("server_replicamanager_offlinereplicacount", _G, (),
               "Logs that went offline here, after a disk error or damage."),
    MetricSpec("server_replicamanager_fulldiskpartitioncount", _G, (),
               "Partitions of which a write failed because the disk is full; 0 once it has space again."),
    MetricSpec("server_replicamanager_underreplicatedpartitions", _G, (),
               "Partitions led here of which a replica is not in sync."),
    MetricSpec("server_replicamanager_underminisrpartitioncount", _G, (),
               "Partitions led here that refuse acks=all: fewer replicas are in sync than min.insync.replicas."),
    MetricSpec("server_replicamanager_atminisrpartitioncount", _G, (),
               "Partitions led here with exactly min.insync.replicas in sync: one fewer, and they refuse acks=all."),
    MetricSpec("cluster_partition_underminisr", _G, _PARTITION,
               "1 where fewer replicas are in sync than min.insync.replicas; of partitions led here."),
    MetricSpec("server_replicamanager_reassigningpartitions", _G, (),
               "Partitions led here that are being moved to other replicas."),
    MetricSpec("server_replicafetchermanager_maxlag", _G, ("clientId",),
               "Records, at most, that a partition followed here lacks of those below the high watermark that its "
               "leader last reported."),
    MetricSpec("server_replicamanager_isrshrinks", _C, (), "Changes of in-sync replicas that took one out."),
    MetricSpec("server_replicamanager_isrexpands", _C, (), "Changes of in-sync replicas that added one."),
    MetricSpec("server_replicamanager_failedisrupdates", _C, (),
               "Changes of in-sync replicas that were refused or not answered; they are tried again."),
    MetricSpec("controller_kafkacontroller_activecontrollercount", _G, (), "1 where this broker is the controller."),
    MetricSpec("controller_kafkacontroller_offlinepartitionscount", _G, (),
               "Partitions of the cluster without a leader, as this broker knows it."),
    MetricSpec("controller_kafkacontroller_activebrokercount", _G, (), "Brokers of the cluster that live."),
    MetricSpec("controller_kafkacontroller_globaltopiccount", _G, (), "Topics of the cluster."),
    MetricSpec("controller_kafkacontroller_preferredreplicaimbalancecount", _G, (),
               "Partitions that are not led by their first replica; 0 where this broker is not the controller."),
    MetricSpec("controller_controllerstats_leaderelectionrateandtimems", MetricType.HISTOGRAM, (),
               "Milliseconds of each change in which this broker, as the controller, elected leaders."),
    MetricSpec("controller_controllerstats_uncleanleaderelections", _C, (),
               "Leaders elected by this broker, as the controller, that were not in sync: records may be lost."),
    MetricSpec("coordinator_group_groupmetadatamanager_numgroups", _G, (), "Classic groups with members here."),
    MetricSpec("consumergroup_lag", _G, ("group", *_PARTITION),
               "Records between the group's committed offset and the high watermark; of partitions led here with a "
               "committed offset, every consumer.lag.interval.ms."),
    MetricSpec("consumergroup_lag_seconds", _G, ("group", *_PARTITION),
               "Age of the batch with the first record that the group has not committed, by its timestamp; 0 without "
               "one."),
    MetricSpec("server_sessionexpirelistener_connected", _G, (),
               "1 while the session with the coordination (ZooKeeper) is up."),
    MetricSpec("server_sessionexpirelistener_zookeeperexpires", _C, (), "Sessions that ended without being closed."),
    MetricSpec("server_sessionexpirelistener_zookeeperdisconnects", _C, (),
               "Times that the coordination became unavailable."),
    MetricSpec("server_service_healthy", _G, ("service",),
               "1 while the service beside the broker (`audit`, or a plugin of `broker.services`) does its work."),
    MetricSpec("broker_eventloop_lag_seconds", _G, (), "How much later than asked the event loop last woke up."),
    MetricSpec("broker_eventloop_lag_max_seconds", _G, (), "The worst of the last minute."),
    MetricSpec("broker_appendsheldup", _C, (),
               "Times that appends moved to worker threads for a while, because the disk held writers up."),
)  # fmt: skip
