"""The error that ends a schedule when an invariant does not hold."""

from __future__ import annotations


class LateBrokerError(Exception):
    """A broker noticed a restore after the wait of a cold start, when others had elected by the backup's states. It
    does not join, and its log is left to an administrator (docs/replication.md, R13), so the schedule ends here."""


class ViolationError(AssertionError):
    """An invariant of replication does not hold; the message says which, where and when."""
