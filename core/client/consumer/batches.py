"""The result of `poll_batches`: whole record batches, as the log stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...errors import ConfigError
from ...interfaces.sink import RecordBatch
from ...records.decode import Columns, RecordColumns, decode_columns
from ...records.header import BatchHeader, crc_matches
from ...records.partition import TopicPartition
from ...records.record import Headers
from ..errors import UnreadableBatchError
from .delivery import BuiltRecords, Converted, Decoding, ReadBatches, Run
from .positions import ReadyRecords


@dataclass(frozen=True)
class BatchColumns:
    """One record batch in place of its records: a delivery returns it whole, and counts it as one. Its records are
    decoded only for an audit.
    """

    batch: RecordBatch
    decoding: Decoding

    @property
    def offsets(self) -> Sequence[int]:
        return (self.batch.from_offset,)

    @cached_property
    def records(self) -> Columns:
        """Returns the records from `from_offset` on. Raises `CorruptRecordError` or `UnsupportedCodecError` as the
        decoder does.
        """
        data, decoding = self.batch.data, self.decoding
        found = decode_columns(
            data, 0, BatchHeader.parse(data, 0), decoding.codecs, decoding.max_size, self.batch.partition
        )
        skipped = sum(offset < self.batch.from_offset for offset in found.offsets)
        return found.part(skipped, len(found.offsets))

    @property
    def timestamps_ms(self) -> Sequence[int]:
        return self.records.timestamps_ms

    @property
    def keys(self) -> Sequence[bytes | None]:
        return self.records.keys

    @property
    def values(self) -> Sequence[bytes | None]:
        return self.records.values

    @property
    def headers(self) -> Sequence[Headers]:
        return self.records.headers

    @property
    def sizes(self) -> Sequence[int]:
        return self.records.sizes

    def part(self, first: int, last: int, /) -> Columns:
        """Returns the batch itself: it is not divided."""
        del first, last
        return self


class BatchReader:
    """Reads one batch at a time without decompressing it. Its CRC is checked."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding

    def read(self, partition: TopicPartition, data: bytes, at: int, position: int) -> ReadBatches:
        """Reads one batch, as `Delivery.read_one` does."""
        header = BatchHeader.parse(data, at)
        end = at + header.size
        if header.is_control or header.next_offset <= position:
            empty = RecordColumns([], [], [], [], [])
            return ReadBatches(ReadyRecords(empty, 0, max(header.next_offset, position)), end)
        first = max(position, header.base_offset)
        if not crc_matches(data, at, header):
            raise UnreadableBatchError(
                f"{partition} offset {first}: the CRC of the batch does not match", partition, first, header.next_offset
            )
        batch = RecordBatch(partition, first, header.next_offset, header.record_count, bytes(data[at:end]))
        ready = ReadyRecords(
            BatchColumns(batch, self._decoding), 0, header.next_offset, header.leader_epoch, header.log_append_time
        )
        return ReadBatches(ready, end)


def convert_batch(
    partition: TopicPartition,
    columns: Columns,
    log_append_time: bool = False,  # noqa: ARG001 - a batch says itself
) -> Converted[RecordBatch]:
    """Returns the undecoded batch in the columns."""
    if not isinstance(columns, BatchColumns):
        raise ConfigError(f"{partition}: records of this batch were polled already; use another consumer for batches")
    return Converted(columns.batch, 1)


def joined(runs: Sequence[Run[RecordBatch]]) -> BuiltRecords[list[RecordBatch]]:
    """Returns the batches of a poll."""
    return BuiltRecords([batch for _, batch in runs], len(runs))
