"""The table of `docs/metrics.md`, made from the definitions so that the two agree."""

# ruff: noqa: E501  (names of MBeans)
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from klamm.core.broker.metrics.definitions import DEFINITIONS, MetricSpec, MetricType

BEGIN = "<!-- The table from here on is made by klammtest.pages.metrics_reference; a test compares. -->"

_C, _G = MetricType.COUNTER, MetricType.GAUGE
PROCESS = (
    MetricSpec("process_cpu_seconds", _C, (), "CPU time of the process, user and system."),
    MetricSpec("process_resident_memory_bytes", _G, (), "Memory in use (RSS)."),
    MetricSpec("process_virtual_memory_bytes", _G, (), "Address space in use."),
    MetricSpec("process_open_fds", _G, (), "File descriptors in use."),
    MetricSpec("process_max_fds", _G, (), "File descriptors that there may be."),
    MetricSpec("process_start_time_seconds", _G, (), "When the process started, seconds since the epoch."),
)
"""The metrics of prometheus-client's own collector, on Linux; their names have no `klamm_`."""

KAFKAS = {
    "server_app": "kafka.server:type=app-info",
    "server_brokertopicmetrics_bytesin": "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=*",
    "server_brokertopicmetrics_bytesout": "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic=*",
    "server_brokertopicmetrics_messagesin": "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=*",
    "server_brokertopicmetrics_totalproducerequests": "kafka.server:type=BrokerTopicMetrics,name=TotalProduceRequestsPerSec,topic=*",
    "server_brokertopicmetrics_totalfetchrequests": "kafka.server:type=BrokerTopicMetrics,name=TotalFetchRequestsPerSec,topic=*",
    "server_brokertopicmetrics_failedproducerequests": "kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec,topic=*",
    "server_brokertopicmetrics_failedfetchrequests": "kafka.server:type=BrokerTopicMetrics,name=FailedFetchRequestsPerSec,topic=*",
    "network_requestmetrics_totaltimems": "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=* (and RequestsPerSec)",
    "network_requestmetrics_totaltimems_recent": "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=* (50thPercentile and so on)",
    "network_requestmetrics_remotetimems": "kafka.network:type=RequestMetrics,name=RemoteTimeMs,request=*",
    "network_requestmetrics_errors": "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*",
    "network_requestchannel_requestqueuesize": "kafka.network:type=RequestChannel,name=RequestQueueSize",
    "network_requestchannel_requestbytes": "kafka.network:type=SocketServer,name=MemoryPoolUsed",
    "server_brokertopicmetrics_replicationbytesin": "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesInPerSec",
    "server_brokertopicmetrics_replicationbytesout": "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec",
    "server_socket_server_metrics_connection_count": "kafka.server:type=socket-server-metrics,name=connection-count",
    "server_socket_server_metrics_connection_creation": "kafka.server:type=socket-server-metrics,name=connection-creation-total",
    "server_socket_server_metrics_connection_closed": "kafka.server:type=socket-server-metrics,name=expired-connections-killed-count",
    "server_delayedoperationpurgatory_purgatorysize": "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
    "log_log_logendoffset": "kafka.log:type=Log,name=LogEndOffset,topic=*,partition=*",
    "log_log_logstartoffset": "kafka.log:type=Log,name=LogStartOffset,topic=*,partition=*",
    "log_log_size": "kafka.log:type=Log,name=Size,topic=*,partition=*",
    "log_log_numlogsegments": "kafka.log:type=Log,name=NumLogSegments,topic=*,partition=*",
    "server_replicamanager_partitioncount": "kafka.server:type=ReplicaManager,name=PartitionCount",
    "server_replicamanager_leadercount": "kafka.server:type=ReplicaManager,name=LeaderCount",
    "server_replicamanager_offlinereplicacount": "kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
    "server_replicamanager_underreplicatedpartitions": "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions",
    "server_replicamanager_underminisrpartitioncount": "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount",
    "server_replicamanager_atminisrpartitioncount": "kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount",
    "cluster_partition_underminisr": "kafka.cluster:type=Partition,name=UnderMinIsr,topic=*,partition=*",
    "server_replicamanager_reassigningpartitions": "kafka.server:type=ReplicaManager,name=ReassigningPartitions",
    "server_replicafetchermanager_maxlag": "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
    "server_replicamanager_isrshrinks": "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec",
    "server_replicamanager_isrexpands": "kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
    "server_replicamanager_failedisrupdates": "kafka.server:type=ReplicaManager,name=FailedIsrUpdatesPerSec",
    "controller_kafkacontroller_activecontrollercount": "kafka.controller:type=KafkaController,name=ActiveControllerCount",
    "controller_kafkacontroller_offlinepartitionscount": "kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
    "controller_kafkacontroller_activebrokercount": "kafka.controller:type=KafkaController,name=ActiveBrokerCount",
    "controller_kafkacontroller_globaltopiccount": "kafka.controller:type=KafkaController,name=GlobalTopicCount",
    "controller_kafkacontroller_preferredreplicaimbalancecount": "kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount",
    "controller_controllerstats_leaderelectionrateandtimems": "kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs",
    "controller_controllerstats_uncleanleaderelections": "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    "coordinator_group_groupmetadatamanager_numgroups": "kafka.coordinator.group:type=GroupMetadataManager,name=NumGroups",
    "server_sessionexpirelistener_connected": "kafka.server:type=SessionExpireListener,name=SessionState",
    "server_sessionexpirelistener_zookeeperexpires": "kafka.server:type=SessionExpireListener,name=ZooKeeperExpiresPerSec",
    "server_sessionexpirelistener_zookeeperdisconnects": "kafka.server:type=SessionExpireListener,name=ZooKeeperDisconnectsPerSec",
}
"""The MBeans of Kafka with the same meaning, by the names of Klamm's metrics."""


def reference() -> str:
    """Returns Markdown with a row for each metric."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield BEGIN
    yield "\n| Metric | Type | Labels | | Kafka's MBean |\n| --- | --- | --- | --- | --- |"
    for definition in DEFINITIONS:
        yield _row(definition.shown, definition)
    for definition in PROCESS:
        yield _row(definition.shown.removeprefix("klamm_"), definition)


def _row(name: str, definition: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    kafka = f"`{KAFKAS[definition.name]}`" if definition.name in KAFKAS else ""
    return f"| `{name}` | {definition.kind.value} | {labels} | {definition.doc} | {kafka} |"


def main(page: Path) -> None:
    """Replaces the table on the page."""
    head = page.read_text(encoding="utf-8").partition(BEGIN)[0]
    page.write_text(head + reference(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
