"""The error of a write that was sent and not answered, for coordinations over a network."""

from __future__ import annotations

from klamm.plugin import CoordinationUnavailableError


class UnknownOutcomeError(CoordinationUnavailableError):
    """The request was sent, and no response came."""
