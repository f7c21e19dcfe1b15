"""DescribeCluster (KIP-700): the live brokers. There are no fenced brokers, so including them adds none."""

from __future__ import annotations

from ....errors import ErrorCode
from ....interfaces.security.authorizer import ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ..metadata import nodes

_BROKERS, _CONTROLLERS = 1, 2


def describe_cluster(services: Services, request: Request) -> Entity:
    image = services.image
    if request.version >= 1 and request.message.endpoint_type != _BROKERS:
        controllers = request.message.endpoint_type == _CONTROLLERS
        return request.respond(
            error_code=ErrorCode.mismatched_endpoint_type if controllers else ErrorCode.unsupported_endpoint_type,
            error_message="only the brokers' addresses are known here (endpoint type 1)",
            cluster_id="",
            brokers=(),
        )
    brokers = tuple(
        request.part("DescribeClusterBroker", broker_id=node, host=host, port=port, rack=rack, is_fenced=False)
        for node, host, port, rack in nodes(services, request.listener)
    )
    return request.respond(
        error_code=ErrorCode.none,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=services.access.operations(
            request.message.include_cluster_authorized_operations, request, ResourceType.CLUSTER
        ),
    )
