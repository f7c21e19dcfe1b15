"""The record batches of `__consumer_offsets`: a commit, a deletion, the state of a group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...errors import CoordinationError
from ...interfaces.offsets import CommittedOffset
from ...records.encode import encode_batch
from ...records.partition import TopicPartition
from .kafka_format import GroupKey, OffsetKey, encode_key, encode_value
from .kafka_groups import encode_group
from .stored_group import StoredGroup

__all__ = ["Rows", "batch_of", "commit_rows", "deletion_rows", "state_rows"]

Rows = Sequence[tuple[bytes, bytes | None]]
"""Key and value of each record."""


def commit_rows(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Rows:
    """Raises `CoordinationError` for an offset of more than 64 bits."""
    for tp, value in offsets.items():
        if not -(2**63) <= value.offset < 2**63:
            raise CoordinationError(f"{tp}: {value.offset} is not a valid offset: it should have 64 bits")
    return [(encode_key(OffsetKey(group, tp)), encode_value(value)) for tp, value in offsets.items()]


def deletion_rows(
    group: str,
    stored: Mapping[TopicPartition, CommittedOffset],
    partitions: Collection[TopicPartition] | None,
    seen: Mapping[TopicPartition, CommittedOffset] | None,
    *,
    has_state: bool,
) -> Rows:
    """Returns the tombstones of a deletion as `OffsetStore.delete` describes it, given the group's present offsets
    `stored`. If nothing of the group remains, its own tombstone is included. `has_state`: the group's members are
    stored."""
    chosen = set(stored if partitions is None else partitions) & stored.keys()
    if seen is not None:
        chosen = {tp for tp in chosen if stored[tp] == seen.get(tp)}
    rows: list[tuple[bytes, bytes | None]] = [(encode_key(OffsetKey(group, tp)), None) for tp in sorted(chosen)]
    if partitions is None and chosen == stored.keys() and has_state:
        rows.append((encode_key(GroupKey(group)), None))
    return rows


def state_rows(group: str, state: StoredGroup) -> Rows:
    return [(encode_key(GroupKey(group)), encode_group(state))]


def batch_of(rows: Rows, now_ms: int) -> bytearray:
    return bytearray(encode_batch([(now_ms, name, value, ()) for name, value in rows]))
