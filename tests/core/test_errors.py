"""How errors are said in a log."""

from __future__ import annotations

from klamm.core.errors import describe_error, describe_failure


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_only_an_unexpected_error_has_a_place() -> None:
    error = raised(ConnectionError("no\n  answer"))
    assert describe_failure(error) == "ConnectionError: no answer"
    assert describe_error(error).startswith(f"ConnectionError: no answer at {__file__}:")


def test_an_error_without_a_message_is_its_kind() -> None:
    assert describe_failure(raised(TimeoutError())) == "TimeoutError"
