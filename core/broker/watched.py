"""The objects that metrics and health read, at each request of the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from ..cluster.cluster import Cluster
from ..log.manager import LogManager
from .append_placement import AppendPlacement
from .background.background_services import BackgroundServices
from .background.consumer_lag import ConsumerLag
from .coordinator.group_service import GroupService
from .network.connections import Connections
from .replication.partitions import Partitions
from .replication.role_changes import RoleChanges


@dataclass(frozen=True)
class Watched:
    """The parts of one broker that are read."""

    broker_id: int
    connections: Connections
    partitions: Partitions
    logs: LogManager
    cluster: Cluster
    groups: GroupService
    background: BackgroundServices
    roles: RoleChanges
    appends: AppendPlacement
    lag: ConsumerLag
