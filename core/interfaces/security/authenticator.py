"""The authentication interface: determines the client of a connection."""

from __future__ import annotations

from typing import Protocol

__all__ = ["AuthenticationContext", "Authenticator"]


class AuthenticationContext(Protocol):
    """A connection, before its first request is handled."""

    @property
    def listener(self) -> str: ...

    @property
    def client_address(self) -> str:
        """`host:port` of the client's end."""
        ...


class Authenticator(Protocol):
    def authenticate(self, connection: AuthenticationContext) -> str:
        """Returns the principal, such as `User:alice`, for all requests of the connection. Raise `KlammError` to
        refuse: the connection is closed, with the error's line in the broker's log. Called once per connection, on the
        event loop: it must return at once.
        """
        ...
