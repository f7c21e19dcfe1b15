"""What one replica has stored, read from its directory with the log's own decoders, without a broker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from klamm.core.records.decode import decode_batch
from klamm.core.records.header import iter_headers
from klammtest.logs import codec_table


class StoredBatch(NamedTuple):
    """`digest` is that of all its bytes, the leader epoch included; `values` are its records as (offset, value)."""

    base: int
    next: int
    leader_epoch: int
    digest: bytes
    values: tuple[tuple[int, str | int], ...]


@dataclass(frozen=True)
class ReplicaLog:
    broker: int
    batches: list[StoredBatch]

    @property
    def start(self) -> int:
        return self.batches[0].base if self.batches else 0

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else 0

    @property
    def rows(self) -> Iterator[tuple[int, str | int]]:
        for batch in self.batches:
            yield from batch.values


def read_replica(directory: Path, broker: int) -> ReplicaLog:
    """Reads all whole batches of a partition's directory. While its broker runs, the last write may be unfinished: a
    batch that is cut short ends the log. Raises `CorruptRecordError` for damage.
    """
    batches, codecs = [], codec_table()
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        for position, header in iter_headers(data):
            end = position + header.size
            records = decode_batch(data, position, header, codecs)
            values = tuple((record.offset, _value(record.value)) for record in records)
            digest = hashlib.blake2b(data[position:end], digest_size=12).digest()
            batches.append(StoredBatch(header.base_offset, header.next_offset, header.leader_epoch, digest, values))
    return ReplicaLog(broker, batches)


def _value(value: bytes | None) -> str | int:
    """Returns a decimal number as an int, as senders record it, and any other value as text."""
    text = (value or b"").decode(errors="replace")
    return int(text) if text.isdecimal() else text
