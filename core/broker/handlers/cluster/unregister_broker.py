"""UnregisterBroker (KIP-500): removes what the cluster stores of a broker that will not return."""

from __future__ import annotations

import logging

from ....errors import ErrorCode, KlammError
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ..topics.answers import wire_error

log = logging.getLogger(__name__)


async def unregister_broker(services: Services, request: Request) -> Entity:
    broker_id = request.message.broker_id
    try:
        services.access.check(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        await services.workers.coordination(services.cluster.unregister_broker, broker_id)
    except KlammError as error:
        code, text = wire_error(error)
        return request.respond(error_code=code, error_message=text)
    log.info("unregistered broker %d", broker_id)
    return request.respond(error_code=ErrorCode.none, error_message=None)
