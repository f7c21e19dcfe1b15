"""Fetch responses (v4 to v18), encoded here: record batches go to the socket as they are in the file, without a copy.

A test compares the bytes with kio's, for every version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ErrorCode
from ..records.isolation import AbortedTransaction, IsolationLevel
from .bounds_check import write_uvarint
from .current_leader import FETCH_FROM as LEADERS_FROM
from .current_leader import CurrentLeader, NodeEndpoint, node_endpoints
from .messages import Buffer
from .primitives import INT32, array, string, tagged

__all__ = ["Fetched", "write_fetch_response"]

_FLEXIBLE_FROM = 12
_TOP = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqq")
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iqB")
"""Leader epoch, end offset, no tags."""
_DIVERGING_TAG, _LEADER_TAG = 0, 1


@dataclass(slots=True)
class Fetched:
    """The answer of one partition: whole batches, or an error. Offsets are -1 where unknown. `topic`: name or, from
    version 13 on, the 16 bytes of its id. `diverging_epoch`: leader epoch and end offset up to which a follower's log
    may agree.
    `preferred_read_replica`: the broker that the consumer should fetch from (KIP-392), -1 for none. `leader`: where the
    partition is led, if not here or in another leader epoch (KIP-951); sent from version 16 on."""

    topic: str | bytes
    partition: int
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Buffer = b""
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    leader: CurrentLeader | None = None
    aborted: Sequence[AbortedTransaction] = ()


def write_fetch_response(
    answers: Sequence[Fetched],
    version: int,
    *,
    isolation: int = IsolationLevel.READ_UNCOMMITTED,
    error: ErrorCode = ErrorCode.none,
    throttle_ms: int = 0,
    session_id: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """Returns the body in pieces. A reader with READ_COMMITTED gets a list of aborted transactions with each partition,
    which may be empty; another one gets null. `session_id` is 0 without a fetch session (KIP-227). `nodes`: the
    addresses of the leaders that the answers name.
    """
    flexible = version >= _FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    topics: dict[str | bytes, list[Fetched]] = {}
    for answer in answers:
        topics.setdefault(answer.topic, []).append(answer)
    small = bytearray(_TOP.pack(throttle_ms, error, session_id) if version >= 7 else INT32.pack(throttle_ms))
    small += array(len(topics), flexible)
    pieces: list[Buffer] = []
    committed = isolation == IsolationLevel.READ_COMMITTED
    no_aborted = array(0 if committed else -1, flexible)
    for topic, partitions in topics.items():
        small += topic if isinstance(topic, bytes) else string(topic, flexible)
        small += array(len(partitions), flexible)
        for p in partitions:
            small += _PARTITION.pack(p.partition, p.error, p.high_watermark, p.last_stable_offset)
            if version >= 5:
                small += _INT64.pack(p.log_start_offset)
            small += _aborted(p.aborted, flexible, tags) if committed and p.aborted else no_aborted
            if version >= 11:
                small += INT32.pack(p.preferred_read_replica)
            small += write_uvarint(len(p.records) + 1) if flexible else INT32.pack(len(p.records))
            if p.records:
                pieces += [bytes(small), p.records]
                small = bytearray()
            if p.diverging_epoch is None and p.leader is None:
                small += tags
            else:
                small += _tags_of(p, version)
        small += tags
    small += node_endpoints(nodes) if nodes else tags
    pieces.append(bytes(small))
    return pieces


def _aborted(transactions: Sequence[AbortedTransaction], flexible: bool, tags: bytes) -> bytes:
    rows = (_ABORTED.pack(*transaction) + tags for transaction in transactions)
    return array(len(transactions), flexible) + b"".join(rows)


def _tags_of(p: Fetched, version: int) -> bytes:
    """Returns the tagged fields of a partition."""
    fields = []
    if p.diverging_epoch is not None:
        fields.append(tagged(_DIVERGING_TAG, _DIVERGING.pack(*p.diverging_epoch, 0)))
    if p.leader is not None and version >= LEADERS_FROM:
        fields.append(p.leader.field(_LEADER_TAG))
    return bytes((len(fields),)) + b"".join(fields)
