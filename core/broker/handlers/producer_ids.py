"""InitProducerId: returns a new id for each idempotent producer; transactions are not served."""

from __future__ import annotations

import logging

from ...errors import CoordinationError, ErrorCode, KlammError
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...protocol.messages import Entity
from ..request import Request
from ..services import Services

log = logging.getLogger(__name__)


async def init_producer_id(services: Services, request: Request) -> Entity:
    """Returns a new id. A producer that names its old id (KIP-360, version 3 and later) gets a new one too, which is as
    safe as a new epoch.
    """
    message = request.message
    named = request.version >= 3 and (message.producer_id, message.producer_epoch)
    if message.transactional_id == "" or (named and (named[0] < 0) != (named[1] < 0)):
        return request.respond(error_code=ErrorCode.invalid_request, producer_id=-1, producer_epoch=-1)
    if message.transactional_id is not None:
        log.warning(
            "client %r asked for the transactional id %r: transactions are not served",
            request.client_id,
            message.transactional_id,
        )
        code = ErrorCode.transactional_id_authorization_failed
        return request.respond(error_code=code, producer_id=-1, producer_epoch=-1)
    if not _may_write(services, request):
        return request.respond(error_code=ErrorCode.cluster_authorization_failed, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await services.producer_ids.next()
    except CoordinationError as error:
        log.warning("no producer id for client %r: %s", request.client_id, error)
        return request.respond(error_code=ErrorCode.coordinator_not_available, producer_id=-1, producer_epoch=-1)
    except KlammError as error:
        return request.respond(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return request.respond(error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


def _may_write(services: Services, request: Request) -> bool:
    """Returns True if the client may write idempotently, or write to any topic at all (KIP-679)."""
    access = services.access
    return access.allows(request, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME) or any(
        access.allows(request, AclOperation.WRITE, ResourceType.TOPIC, topic) for topic in services.image.topics
    )
