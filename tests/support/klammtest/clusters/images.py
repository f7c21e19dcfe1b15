"""Parts of metadata images, with what a test does not care about filled in."""

from __future__ import annotations

from klamm.core.cluster.image import BrokerNode, Endpoint, PartitionImage
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import BrokerRegistration


def broker_node(
    number: int,
    host: str = "127.0.0.1",
    port: int = 9092,
    epoch: int = 1,
    data_ids: tuple[str, ...] = (),
    *,
    leaving: bool = False,
    full: bool = False,
) -> BrokerNode:
    """Returns a live broker, whose data id is `data-<number>` unless `data_ids` are given."""
    found = data_ids or (f"data-{number}",)
    registration = BrokerRegistration(number, epoch, f"incarnation-{number}-{epoch}", found, leaving, full)
    return BrokerNode(number, registration, {"PLAINTEXT": Endpoint(host, port)}, "PLAINTEXT")


def registered_elsewhere(incarnation: str = "another", data_ids: tuple[str, ...] = ("another",)) -> BrokerIdNode:
    """Returns what another log directory's broker at `elsewhere:9092` registers."""
    return BrokerIdNode(
        host="elsewhere", port=9092, endpoints=("PLAINTEXT://elsewhere:9092",), timestamp=1, directory_id="another",
        incarnation=incarnation, data=data_ids, state="serving", inter_broker_listener="PLAINTEXT",
    )  # fmt: skip


def partition_image(
    leader: int,
    leader_epoch: int,
    replicas: tuple[int, ...],
    isr: tuple[int, ...] | None = None,
    elr: tuple[int, ...] = (),
    broker_epoch: int = 1,
) -> PartitionImage:
    """Returns a partition whose members have the data ids of `broker_node`; all replicas are in sync unless `isr` is
    given."""
    in_sync = replicas if isr is None else isr
    data_ids = {member: f"data-{member}" for member in in_sync + elr}
    leader_broker_epoch = -1 if leader == NO_LEADER else broker_epoch
    return PartitionImage(
        PartitionState(leader, leader_epoch, leader_broker_epoch, in_sync, elr, data_ids, 1), replicas
    )
