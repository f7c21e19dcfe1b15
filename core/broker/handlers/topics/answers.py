"""Errors of admin requests, as their answers contain them."""

from __future__ import annotations

from ....errors import BrokerError, CoordinationError, ErrorCode, KlammError


def wire_error(error: KlammError) -> tuple[ErrorCode, str]:
    """Returns an error's code and text for an admin client. An unreachable coordination is a time-out to clients (they
    may retry).
    """
    if isinstance(error, CoordinationError):
        return ErrorCode.request_timed_out, f"the coordination is unavailable, so nothing can be changed now: {error}"
    return error.code, words_of(error)


def words_of(error: KlammError) -> str:
    """Returns the error's message without its code, for which an answer has a separate field."""
    return (error.words if isinstance(error, BrokerError) else "") or str(error)


def twice(code: ErrorCode, name: str) -> BrokerError:
    return BrokerError(code, f"topic {name!r} is named more than once in the request")
