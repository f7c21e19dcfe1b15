"""A link to the cluster whose topics this one mirrors: a section of `mirrors` in the YAML file (docs/mirror.md)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, model_validator

from ...transport.address import Address
from ..problems import unknown
from ..section import ConfigType, Int, Long, Names, Section, key, wrong_key
from .topic import TOPIC_DEFINITIONS

_LITERALS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Escaped characters and classes."""


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None
    if re.search(r"\)[*+{]", _LITERALS.sub("", value)):  # no other thread of the broker would run meanwhile
        raise ValueError(
            f"{value!r} repeats a group, which may take for ever with some names: write it with a class, as [a-z.]+"
        )
    return value


Pattern = Annotated[str, AfterValidator(_pattern), ConfigType.STRING]


def _prefix(value: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{0,248}", value):
        raise ValueError(f"{value!r} begins no topic name: use at most 248 letters, digits, '.', '_' or '-'")
    return value


Prefix = Annotated[str, AfterValidator(_prefix), ConfigType.STRING]


def _servers(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(Address.parse_server(server)) for server in given)


def _topic_configs(given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if name not in TOPIC_DEFINITIONS:
            raise ValueError(f"{name}: {unknown('topic config', name, TOPIC_DEFINITIONS)}")
    return given


class MirrorConfig(Section):
    bootstrap_servers: Annotated[Names, AfterValidator(_servers)] = key((), "brokers of the source, as `host:port`")
    topics: Names = key((), "the source's topics that are mirrored")
    topics_regex: Pattern = key(
        "", "a pattern of whole names of further topics; it selects no internal topic and none that begins with `_`"
    )
    prefix: Prefix = key("", "put before the names of the source's topics")
    groups_regex: Pattern = key("", "a pattern of the groups whose committed offsets are copied; empty: of none")
    groups_interval_ms: Long = key(5000, "milliseconds between two copies of the groups' offsets", ge=100)
    metadata_interval_ms: Long = key(
        10_000, "milliseconds between two checks of the source's topics, partitions and configurations", ge=100
    )
    configs: Annotated[Names, AfterValidator(_topic_configs)] = key(
        (
            "cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "message.timestamp.type",
            "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "delete.retention.ms",
        ),
        "the topic configurations that are copied",
    )  # fmt: skip
    retention: Literal["source", "own"] = key(
        "source", "`source`: records that the source deletes are deleted here; `own`: this cluster's retention decides"
    )
    on_gap: Literal["continue", "stop"] = key(
        "continue", "what a partition does whose next records the source has deleted"
    )
    on_divergence: Literal["follow", "stop"] = key(
        "follow", "what a partition does when the source has lost records that were copied"
    )
    throttle_bytes_per_second: Long = key(0, "the most that each broker fetches; 0: no limit", ge=0)
    fetch_connections: Int = key(2, "connections to each broker of the source, which share its partitions", ge=1, le=64)
    fetch_max_bytes: Int = key(
        16 * 1024 * 1024, "the most bytes in an answer of the source", gt=0, le=128 * 1024 * 1024
    )
    max_partition_fetch_bytes: Int = key(8 * 1024 * 1024, "the most bytes of one partition in an answer", gt=0)
    fetch_min_bytes: Int = key(1, "the source answers once it has so many bytes", ge=0)
    fetch_max_wait_ms: Int = key(500, "the longest that the source waits for them, in milliseconds", ge=0)
    socket_receive_buffer_bytes: Int = key(
        -1, "receive buffer of a connection to the source; -1: the system's, which grows with the round trip", ge=-1
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.bootstrap_servers:
            raise wrong_key("bootstrap.servers", "is required: the brokers of the source")
        if not self.topics and not self.topics_regex:
            raise wrong_key("topics", "one of topics and topics.regex is required")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys that differ from their defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
