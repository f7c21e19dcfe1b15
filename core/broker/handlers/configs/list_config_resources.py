"""ListConfigResources (KIP-1142): the resources that have configs. Version 0 lists client metrics, of which there
are none."""

from __future__ import annotations

from typing import Final

from ....errors import BrokerError, ErrorCode
from ....interfaces.security.authorizer import AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ..metadata import nodes
from .describe_configs import Resource

_CLIENT_METRICS, _GROUP = 16, 32
_KINDS: Final = (*Resource, _CLIENT_METRICS, _GROUP)


def list_config_resources(services: Services, request: Request) -> Entity:
    """Answers the kinds of the request, or all for none. A group has no configs here."""
    wanted = (request.message.resource_types or _KINDS) if request.version >= 1 else (_CLIENT_METRICS,)
    try:
        services.access.check(request, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    except BrokerError as error:
        return request.respond(error_code=error.code, config_resources=())
    if not set(wanted) <= set(_KINDS):
        return request.respond(error_code=ErrorCode.unsupported_version, config_resources=())
    brokers = [str(node[0]) for node in nodes(services, request.listener)]
    names = {
        Resource.TOPIC: sorted(services.image.topics),
        Resource.BROKER: brokers,
        Resource.BROKER_LOGGER: brokers,
    }
    return request.respond(
        error_code=ErrorCode.none,
        config_resources=tuple(
            request.part("ConfigResource", resource_name=name, resource_type=int(kind))
            for kind in sorted(set(wanted))
            for name in names.get(kind, ())
        ),
    )
