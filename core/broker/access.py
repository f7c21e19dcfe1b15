"""Access control: calls the configured authorizer, and translates its answers.

Without one every client may do everything that Kafka defines for the kind of resource. An authorizer that raises
refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from ..errors import BrokerError, ErrorCode
from ..interfaces.security.authorizer import (
    CLUSTER_NAME,
    AclOperation,
    AuthorizableRequestContext,
    Authorizer,
    ResourceType,
)

log = logging.getLogger(__name__)

NOT_ASKED: Final = -(2**31)
"""The value of the authorized operations (KIP-430) if the client did not request them."""

_ON_A_GROUP: Final = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_OPERATIONS: Final = {
    ResourceType.GROUP: _ON_A_GROUP,
    ResourceType.TOPIC: (*_ON_A_GROUP, AclOperation.WRITE, AclOperation.CREATE, AclOperation.ALTER),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
}


class AccessControl:
    """Asks the authorizer. `enforced`: True if there is one; where a check is costly, callers test it first."""

    def __init__(
        self,
        authorizer: Authorizer | None,
        worth_saying: Callable[[str], str | None] = lambda _: "",
    ) -> None:
        """`worth_saying` limits how often a line is logged: it returns text to append, or None to suppress the line."""
        self.enforced = authorizer is not None
        self._authorizer = authorizer
        self._worth_saying = worth_saying

    def allows(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if self._authorizer is None:
            return True
        try:
            return self._authorizer.authorize(context, operation, resource_type, name)
        except Exception as error:  # a third party's authorizer may raise anything; its contract: refuse
            more = self._worth_saying("authorizer failed")
            if more is not None:
                what = f"{operation.name} {resource_type.name} {name!r}"
                log.error("the authorizer failed, so %s may not %s: %r%s", context.principal, what, error, more)
            return False

    def refusal(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> ErrorCode | None:
        """Returns the error code for a resource that the principal may not use in this way; None if it may."""
        return None if self.allows(context, operation, resource_type, name) else _ERRORS[resource_type]

    def check(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Raises `BrokerError` if the principal may not do this."""
        if not self.allows(context, operation, resource_type, name):
            what = f"{operation.name} {resource_type.name} {name!r}"
            raise BrokerError(_ERRORS[resource_type], f"{context.principal} may not {what}")

    def operations(
        self,
        asked: bool,
        context: AuthorizableRequestContext,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> int:
        """Returns the operations that the principal may do, as a bit field (KIP-430): bit n stands for ACL
        operation n.
        """
        if not asked:
            return NOT_ASKED
        return _bits(o for o in _OPERATIONS[resource_type] if self.allows(context, o, resource_type, name))


def _bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)
