"""Creates the topics that brokers themselves need: `__consumer_offsets`, the audit's. Only the controller changes
topics; another broker asks it, as a client."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..errors import BrokerError, ErrorCode
from ..records.partition import counted
from ..transport.address import Address
from .services import Services
from .topic_creation import create_topic, plan_topic

log = logging.getLogger(__name__)
_TIMEOUT_S = 20.0


async def ensure_topic(
    services: Services, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Creates the topic unless it exists. Raises `KlammError` if that is not possible now.

    When this returns this broker serves its part of the partitions; if another broker is the controller, this one
    may learn of the topic later.
    """
    workers, cluster = services.workers, services.cluster
    if name in cluster.image().topics:
        return
    try:
        if cluster.is_controller:
            plan = plan_topic(services, name, partitions, replication_factor, configs)
            await workers.coordination(create_topic, services, plan)
            log.info(
                "created topic %s: %s, replication factor %d",
                name,
                counted(plan.partitions, "partition"),
                plan.replication_factor,
            )
        else:
            await workers.offsets(_ask_controller, services, name, partitions, replication_factor, configs)
    except BrokerError as error:
        if error.code is not ErrorCode.topic_already_exists:
            raise
    await services.leadership.refresh()


def _ask_controller(
    services: Services, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    from ..client.cluster_client import NewTopic
    from ..client.factory import ClusterAccess, open_client  # 25 ms that most brokers' starts need not spend

    image = services.cluster.image()
    controller = image.brokers.get(image.controller_id)
    if controller is None:
        raise BrokerError(ErrorCode.not_controller, f"topic {name!r} cannot be created: there is no controller now")
    address = str(Address(controller.host, controller.port))
    with open_client(ClusterAccess(address, services.codecs), "broker", request_timeout_s=_TIMEOUT_S) as client:
        client.create_topics(
            {name: NewTopic(partitions, replication_factor, configs)}, exists_ok=True, timeout_s=_TIMEOUT_S
        )
