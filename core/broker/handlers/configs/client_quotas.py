"""DescribeClientQuotas (KIP-546): there are no quotas of clients yet, so no filter matches any."""

from __future__ import annotations

from ....errors import BrokerError, ErrorCode
from ....interfaces.security.authorizer import AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services


def describe_client_quotas(services: Services, request: Request) -> Entity:
    try:
        services.access.check(request, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    except BrokerError as error:
        return request.respond(error_code=error.code, error_message=error.words, entries=None)
    return request.respond(error_code=ErrorCode.none, error_message=None, entries=())
