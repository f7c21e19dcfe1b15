"""Produce responses (v3 to v13), encoded here: a tenth of the generated writer's cost.

A test compares the bytes with kio's, for every version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ErrorCode
from ..current_leader import PRODUCE_FROM as LEADERS_FROM
from ..current_leader import CurrentLeader, NodeEndpoint, node_endpoints
from ..primitives import INT32, array, string
from .request import FLEXIBLE_FROM

__all__ = ["Produced", "write_produce_response"]

_PARTITION = struct.Struct(">ihqq")
_PARTITION_WITH_START = struct.Struct(">ihqqq")


@dataclass(slots=True)
class Produced:
    """The outcome for one partition. `topic`: as the request names it. Offsets and times are -1 on error;
    `log_append_time_ms` -1 with CreateTime."""

    topic: str | bytes
    partition: int
    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    """The records for which the batch was refused (KIP-467): each by its index in the batch, with the reason."""
    leader: CurrentLeader | None = None
    """The partition's leader, if this broker does not lead it (KIP-951); sent from version 10 on."""


def write_produce_response(
    outcomes: Sequence[Produced], version: int, throttle_ms: int = 0, nodes: Sequence[NodeEndpoint] = ()
) -> bytes:
    """Returns the body of a response. `nodes`: the addresses of the leaders that the outcomes name."""
    flexible = version >= FLEXIBLE_FROM
    topics: dict[str | bytes, list[Produced]] = {}
    for outcome in outcomes:
        topics.setdefault(outcome.topic, []).append(outcome)
    tags = b"\0" if flexible else b""
    parts = [array(len(topics), flexible)]
    for topic, partitions in topics.items():
        name = topic if isinstance(topic, bytes) else string(topic, flexible)
        parts += [name, array(len(partitions), flexible)]
        for p in partitions:
            leader = None if version < LEADERS_FROM else p.leader
            parts += [_partition(p, version, flexible), tags if leader is None else b"\1" + leader.field(0)]
        parts.append(tags)
    parts += [INT32.pack(throttle_ms), node_endpoints(nodes) if version >= LEADERS_FROM else tags]
    return b"".join(parts)


def _partition(p: Produced, version: int, flexible: bool) -> bytes:
    if version < 5:
        return _PARTITION.pack(p.partition, p.error, p.base_offset, p.log_append_time_ms)
    fixed = _PARTITION_WITH_START.pack(p.partition, p.error, p.base_offset, p.log_append_time_ms, p.log_start_offset)
    if version < 8:
        return fixed
    tags = b"\0" if flexible else b""
    errors = [INT32.pack(index) + string(why, flexible) + tags for index, why in p.record_errors]
    return b"".join((fixed, array(len(errors), flexible), *errors, string(p.message, flexible)))
