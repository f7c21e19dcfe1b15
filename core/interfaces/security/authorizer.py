"""The authorization interface: decides what a principal may do with a topic, a group or the cluster.

The broker calls it on the one path that every request takes, for each resource that the request names, with Kafka's
operations. A resource that is refused is answered with its authorization error (TOPIC_AUTHORIZATION_FAILED, …), or is
left out if the request asks for all of its kind. Without an authorizer everything is allowed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

__all__ = ["CLUSTER_NAME", "AclOperation", "AuthorizableRequestContext", "Authorizer", "ResourceType"]


class AclOperation(IntEnum):
    """Kafka's ACL operations."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """Kafka's resource types, as far as the broker serves them."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class AuthorizableRequestContext(Protocol):
    """The sender of a request."""

    @property
    def principal(self) -> str:
        """The authenticator's result, such as `User:alice`; `User:ANONYMOUS` without one."""
        ...

    @property
    def listener(self) -> str: ...

    @property
    def client_address(self) -> str:
        """`host:port` of the client's end of the connection."""
        ...

    @property
    def client_id(self) -> str:
        """The id that the client sends; "" for none. It is not verified."""
        ...


class Authorizer(Protocol):
    def authorize(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Returns True if the principal may do this. Called for each resource of each request, on the event loop: it
        must return at once, from memory. Unlike in Kafka, no operation implies another: a principal that may READ but
        not DESCRIBE a topic does not see it in Metadata.
        """
        ...
