"""An authenticator and an authorizer for tests. Loaded by `plugins.modules`.

A client of the listener ADMIN is `User:admin` and may do everything. Everybody else is `User:guest` and may not use
resources named `secret…`, change the cluster, describe resources named `blind…` or delete those named `kept…`.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.errors import KlammError
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.security.authenticator import Authenticated, AuthenticationContext, Authenticator
from klamm.core.interfaces.security.authorizer import AclOperation, AuthorizableRequestContext, Authorizer, ResourceType


class ByListener:
    """Refuses everybody on the listener CLOSED; on BROKEN it raises, as a faulty plugin does. It is its own exchange
    with the client, of one step."""

    def __init__(self, listener: str = "") -> None:
        self._listener = listener

    def begin(self, connection: AuthenticationContext) -> ByListener:
        return ByListener(connection.listener)

    def step(self, data: bytes) -> Authenticated:
        if self._listener == "CLOSED":
            raise KlammError(f"{self._listener} accepts nobody")
        if self._listener == "BROKEN":
            raise ZeroDivisionError("a bug in the authenticator")
        return Authenticated("User:admin" if self._listener == "ADMIN" else "User:guest")


class KeepsSecrets:
    """Raises where a resource is named `bug`, as a faulty plugin does."""

    def authorize(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if name == "bug":
            raise ZeroDivisionError("a bug in the authorizer")
        if context.principal == "User:admin":
            return True
        if name.startswith("blind") and operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS):
            return False
        if name.startswith("kept") and operation is AclOperation.DELETE:
            return False
        return resource_type is not ResourceType.CLUSTER and not name.startswith("secret")


@hookimpl
def klamm_authenticators() -> Iterable[Provider[[], Authenticator]]:
    return [Provider("by-listener", lambda _: ByListener())]


@hookimpl
def klamm_authorizers() -> Iterable[Provider[[], Authorizer]]:
    return [Provider("keeps-secrets", lambda _: KeepsSecrets())]
