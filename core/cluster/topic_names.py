"""The rules for topic names, as in Kafka (`org.apache.kafka.common.internals.Topic`)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import BrokerError, ErrorCode

MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises `BrokerError` INVALID_TOPIC_EXCEPTION, which names the rule that the topic's name breaks."""
    if name in ("", ".", ".."):
        raise BrokerError(ErrorCode.invalid_topic_exception, f"{name!r} is not a valid topic name")
    if len(name) > MAX_LENGTH:
        raise BrokerError(
            ErrorCode.invalid_topic_exception, f"topic name of {len(name)} characters; {MAX_LENGTH} at most"
        )
    if not _LEGAL.fullmatch(name):
        raise BrokerError(
            ErrorCode.invalid_topic_exception, f"topic {name!r} may have only ASCII letters, digits, '.', '_' and '-'"
        )


def check_no_collision(name: str, others: Iterable[str]) -> None:
    """Raises if the name differs from another only in '.' and '_', which are the same in Kafka's metric names."""
    for other in others:
        if other != name and other.replace(".", "_") == name.replace(".", "_"):
            raise BrokerError(ErrorCode.invalid_topic_exception, f"topic {name!r} collides with {other!r}")
