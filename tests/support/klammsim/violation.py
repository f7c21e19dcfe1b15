"""The error that ends a schedule when an invariant does not hold."""

from __future__ import annotations


class ViolationError(AssertionError):
    """An invariant of replication does not hold; the message says which, where and when."""
