"""Produce requests (v3 to v13). The records of a request are views into its frame, not copies, so that the broker can
rewrite a batch in place and write it.

A test compares the reading with kio, for every version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...records.checked_batch import CheckedBatch
from ...records.offset_and_epoch import OffsetAndEpoch
from ..primitives import Reader
from .conditional import read_expected_end

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
"""From this version on, topics are named by their ids (KIP-516)."""

FastProduceRequest = tuple[int, int, str, int, int, str | bytes, int, CheckedBatch]
"""A Produce request of one batch for one partition, read by the fast path: version, correlation id, client id ("" for
null), acks (1 or -1), time-out in ms, topic (its name, or the 16 bytes of its id), partition, and the batch, which has
been checked."""
_NO_BATCH: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """The part of a request for one partition. `topic`: its name, or the 16 bytes of its id."""

    topic: str | bytes
    partition: int
    records: memoryview | None
    after: OffsetAndEpoch | None = None
    """The end of the log at which the batch may be stored; None: at any."""

    @property
    def batch(self) -> memoryview:
        """The records; empty where they are null."""
        return _NO_BATCH if self.records is None else self.records


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


def read_produce_request(frame: bytearray, offset: int, version: int) -> ProduceRequest:
    """Reads the body of any Produce request. Raises `ProtocolError` if it cannot be read; bytes after it are ignored,
    as in Kafka.
    """
    reader = Reader(memoryview(frame), offset, version >= FLEXIBLE_FROM)
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.int16(), reader.int32()
    partitions: list[ProducePartition] = []
    for _ in range(reader.count()):
        topic = reader.uuid() if version >= TOPIC_IDS_FROM else reader.string()
        for _ in range(reader.count()):
            number, records = reader.int32(), reader.nullable_bytes()
            after = read_expected_end(reader) if version >= FLEXIBLE_FROM else None
            partitions.append(ProducePartition(topic, number, records, after))
        reader.tags()
    reader.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def as_produce_request(fast: FastProduceRequest) -> ProduceRequest:
    """Returns the same request in the general form."""
    _, _, _, acks, timeout_ms, topic, partition, checked = fast
    return ProduceRequest(None, acks, timeout_ms, [ProducePartition(topic, partition, checked[0])])
