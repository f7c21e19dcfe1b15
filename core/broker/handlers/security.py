"""ACLs and delegation tokens, which Klamm's brokers do not store: answered like a Kafka that has no authorizer and
no secret key for tokens.

The plugin that `authorizer` names decides what a principal may do; no request changes its rules.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ...errors import BrokerError, ErrorCode
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...protocol.messages import Entity
from ..request import Request
from ..services import Services

_NO_ACLS: Final = "No Authorizer is configured that keeps ACLs."
_NO_TIME: Final = datetime.fromtimestamp(0, UTC) - timedelta(milliseconds=1)
"""-1 ms, by which Kafka means no time."""


def describe_acls(services: Services, request: Request) -> Entity:
    code, text = _refusal(services, request, AclOperation.DESCRIBE)
    return request.respond(error_code=code, error_message=text, resources=())


def create_acls(services: Services, request: Request) -> Entity:
    code, text = _refusal(services, request, AclOperation.ALTER)
    result = request.part("AclCreationResult", error_code=code, error_message=text)
    return request.respond(results=tuple(result for _ in request.message.creations))


def delete_acls(services: Services, request: Request) -> Entity:
    code, text = _refusal(services, request, AclOperation.ALTER)
    result = request.part("DeleteAclsFilterResult", error_code=code, error_message=text, matching_acls=())
    return request.respond(filter_results=tuple(result for _ in request.message.filters))


def _refusal(services: Services, request: Request, operation: AclOperation) -> tuple[ErrorCode, str]:
    try:
        services.access.check(request, operation, ResourceType.CLUSTER)
    except BrokerError as error:
        return error.code, error.words
    return ErrorCode.security_disabled, _NO_ACLS


def create_delegation_token(_: Services, request: Request) -> Entity:
    principal_type, name = request.principal.split(":", 1)
    return request.respond(
        error_code=ErrorCode.delegation_token_auth_disabled,
        principal_type=principal_type,
        principal_name=name,
        token_requester_principal_type=principal_type,
        token_requester_principal_name=name,
        issue_timestamp=_NO_TIME,
        expiry_timestamp=_NO_TIME,
        max_timestamp=_NO_TIME,
        token_id="",
        hmac=b"",
    )


def renew_or_expire_delegation_token(_: Services, request: Request) -> Entity:
    return request.respond(error_code=ErrorCode.delegation_token_auth_disabled, expiry_timestamp=_NO_TIME)


def describe_delegation_token(_: Services, request: Request) -> Entity:
    return request.respond(error_code=ErrorCode.delegation_token_auth_disabled, tokens=())
