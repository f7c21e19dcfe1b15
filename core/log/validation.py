"""Checks batches before they are appended, by the header alone where that is sufficient (design D2)."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ..config.sections.topic import TopicConfig
from ..errors import CorruptRecordError
from ..interfaces.codec import DecompressionBombError
from ..records import native
from ..records.checked_batch import CheckedBatch
from ..records.codecs import CodecTable, UnsupportedCodecError
from ..records.decode import decode_columns
from ..records.editing.recompress import recompress
from ..records.header import (
    CRC_FROM,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    crc_matches,
    rewrite_log_append_time,
    rewrite_max_timestamp,
)
from ..records.partition import TopicPartition
from .errors import (
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
    WouldBlockError,
)

FIRST_THIRD_PARTY_CODEC: Final = 5


class AppendOrigin(Enum):
    """The source of the batches that a leader appends: a client, or the broker itself."""

    CLIENT = "client"
    INTERNAL = "internal"


ON_LOOP_PACKED: Final = 64 * 1024
"""A compressed batch of more bytes is decompressed on a worker thread; so is a batch of more than `ON_LOOP_UNPACKED`
bytes of uncompressed records. For a smaller one, switching to another thread and back takes several times as long as
reading it."""
ON_LOOP_UNPACKED: Final = 256 * 1024


class Opened(NamedTuple):
    """A batch whose records were read: its corrected header, its uncompressed records, the number of records without
    key."""

    header: BatchHeader
    records: Buffer
    keyless: int


class Validator:
    """Checks batches for one partition by the rules of its topic. Its errors name the partition."""

    def __init__(self, tp: TopicPartition, config: TopicConfig, codecs: CodecTable) -> None:
        self._tp = tp
        self._config = config
        self._codecs = codecs
        self._largest = min(config.max_message_bytes, config.segment_bytes)
        self._kafkas_codecs = frozenset(i for i in range(FIRST_THIRD_PARTY_CODEC) if i in codecs)
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        self._verifies_all = config.verify_payload == "all"
        self._verifies_plain = config.verify_payload != "none"
        self._sets_append_time = config.message_timestamp_type == "LogAppendTime"

    def prepare(
        self, batch: bytearray | memoryview, origin: AppendOrigin, now_ms: int, max_size: int, *, on_loop: bool = False
    ) -> tuple[bytearray | memoryview, BatchHeader, int]:
        """Returns the batch as it will be stored, except for its offsets; its header; and the timestamp that the broker
        set, -1 if none. `max_size` bounds the uncompressed bytes of records that are read.

        Raises what `check` and `open` do, and with `on_loop` `WouldBlockError` if reading the records would block an
        event loop for too long.
        """
        try:
            header = self.check(batch, origin, now_ms)
            if self.requires_open(header):
                batch, header = self._opened(batch, header, now_ms, max_size, on_loop)
        except InvalidTimestampError as error:
            if on_loop:
                raise WouldBlockError(
                    f"{self._tp}: the records must be read to name those with wrong timestamps"
                ) from error
            raise self.with_records(error, batch, max_size, now_ms) from None
        if not self._sets_append_time:
            return batch, header, NO_TIMESTAMP
        return batch, rewrite_log_append_time(batch, 0, header, now_ms), now_ms

    def _opened(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int, max_size: int, on_loop: bool
    ) -> tuple[bytearray | memoryview, BatchHeader]:
        """Reads the records; returns the batch as it will be stored, and its header. With `on_loop`, raises
        `WouldBlockError` if the records exceed `ON_LOOP_UNPACKED`."""
        try:
            opened = self.open(batch, header, min(max_size, ON_LOOP_UNPACKED) if on_loop else max_size, now_ms)
        except MessageTooLargeError as error:
            if on_loop and max_size > ON_LOOP_UNPACKED:
                raise WouldBlockError(str(error)) from error
            raise
        if self._config.compacts:
            self.check_keys(opened)
        stored = self.stored_codec(header)
        if stored == header.codec_id:
            return batch, opened.header
        return recompress(opened.header, opened.records, self._codecs.by_id(stored))

    def passes(self, checked: CheckedBatch, now_ms: int) -> bool:
        """True if a batch that meets the rules of all topics (`records.checked_batch`) also meets the rules of this
        topic: its size, codec and timestamps are within the limits, its CRC is right, and its records match the header
        if the topic requires reading them.

        Also False if the check would block an event loop for too long. If it is False, `prepare` corrects, accepts or
        refuses the batch.
        """
        batch, count, first_ms, largest_ms, codec_id, _, crc = checked
        return (
            len(batch) <= self._largest
            and codec_id in self._kafkas_codecs
            and (first_ms == NO_TIMESTAMP or now_ms - first_ms <= self._before_ms)
            and largest_ms - now_ms <= self._after_ms
            and (crc < 0 or native.crc32c(batch[CRC_FROM:]) == crc)
            and (
                not self.verifies(codec_id, first_ms, largest_ms)
                or self._records_match(batch, count, codec_id, first_ms, largest_ms)
            )
        )

    def check(self, batch: Buffer, origin: AppendOrigin, now_ms: int) -> BatchHeader:
        """Returns the header of the one batch in `batch`; raises the error that the client receives."""
        header = self._header_if_valid(batch, now_ms) or self._check_each_rule(batch, origin, now_ms)
        if not crc_matches(batch, 0, header):
            raise CorruptRecordError(f"{self._tp}: a record batch fails its CRC")
        return header

    def _header_if_valid(self, batch: Buffer, now_ms: int) -> BatchHeader | None:
        """Returns the header if it is valid for every origin; None if `_check_each_rule` must decide.
        It is one expression because it runs for every append."""
        if len(batch) < HEADER_SIZE:
            return None
        fields = HEADER.unpack_from(batch)
        _, length, _, magic, _, attributes, last_delta, first_ms, largest_ms, producer, _, sequence, count = fields
        fits = (
            magic == MAGIC
            and length + LENGTH_OVERHEAD == len(batch) <= self._largest
            and 1 <= count == last_delta + 1
            and attributes in self._kafkas_codecs  # and no other bit is set
            and (producer >= 0 <= sequence or producer == NO_PRODUCER_ID <= sequence)
            and (first_ms == NO_TIMESTAMP or now_ms - first_ms <= self._before_ms)
            and largest_ms - now_ms <= self._after_ms
        )
        return BatchHeader._make(fields) if fits else None

    def _check_each_rule(self, batch: Buffer, origin: AppendOrigin, now_ms: int) -> BatchHeader:
        """Returns the header if it is valid for `origin`; raises the error that names the broken rule."""
        if len(batch) > MAGIC_AT and batch[MAGIC_AT] != MAGIC:
            raise InvalidRecordError(f"{self._tp}: a record batch has magic {batch[MAGIC_AT]}, not {MAGIC}")
        header = BatchHeader.parse(batch)
        if header.size > len(batch):
            raise CorruptRecordError(
                f"{self._tp}: a record batch of {header.size} bytes is truncated after {len(batch)} bytes"
            )
        if header.size < len(batch):
            raise InvalidRecordError(
                f"{self._tp}: {len(batch) - header.size} bytes follow the record batch; only one batch is allowed"
            )
        self._check_size(header)
        self._check_header(header)
        if origin is AppendOrigin.CLIENT:
            self._check_client(header)
            self._check_timestamps(header, now_ms)
        return header

    def _check_size(self, header: BatchHeader) -> None:
        if header.size > self._config.max_message_bytes:
            limit = self._config.max_message_bytes
            raise MessageTooLargeError(
                f"{self._tp}: a record batch has {header.size} bytes, max.message.bytes is {limit}"
            )
        if header.size > self._config.segment_bytes:
            limit = self._config.segment_bytes
            raise RecordListTooLargeError(
                f"{self._tp}: a record batch has {header.size} bytes, segment.bytes is {limit}"
            )

    def _check_header(self, header: BatchHeader) -> None:
        if header.record_count < 1:
            raise InvalidRecordError(
                f"{self._tp}: a record batch has the record count {header.record_count}, but must have at least 1"
            )
        codec_id = header.codec_id
        if codec_id >= FIRST_THIRD_PARTY_CODEC or codec_id not in self._codecs:
            codec = self._codecs.by_id(codec_id)
            if codec.name != self._config.compression_type:
                raise UnsupportedCodecError(
                    f"{self._tp}: the codec {codec.name} is not one of Kafka's: "
                    "the topic's compression.type must name it"
                )

    def _check_client(self, header: BatchHeader) -> None:
        if header.last_offset_delta != header.record_count - 1:
            raise InvalidRecordError(
                f"{self._tp}: a record batch of {header.record_count} records "
                f"has the last offset delta {header.last_offset_delta}"
            )
        if header.is_control:
            raise InvalidRecordError(f"{self._tp}: clients may not write control batches")
        if header.is_transactional:
            raise InvalidRecordError(f"{self._tp}: transactions are not supported")
        if header.producer_id != NO_PRODUCER_ID and header.base_sequence == NO_SEQUENCE:
            raise InvalidRecordError(f"{self._tp}: producer {header.producer_id} sent a batch without a sequence")
        if header.producer_id < NO_PRODUCER_ID or header.base_sequence < NO_SEQUENCE:
            raise InvalidRecordError(
                f"{self._tp}: the producer id {header.producer_id} and the sequence {header.base_sequence} "
                "must not be negative"
            )

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        """Checks the two timestamps of the header, without reading the records."""
        if header.log_append_time:
            raise InvalidTimestampError(f"{self._tp}: a client sent a batch whose timestamp type is LogAppendTime")
        if problem := self._timestamp_problem(header, now_ms):
            raise InvalidTimestampError(f"{self._tp}: {problem}")

    def _timestamp_problem(self, header: BatchHeader, now_ms: int) -> str:
        if self._config.message_timestamp_type == "LogAppendTime":
            return ""
        return self._too_early(header.base_timestamp, now_ms) or self._too_late(header.max_timestamp, now_ms)

    def _too_early(self, stamp_ms: int, now_ms: int) -> str:
        if stamp_ms == NO_TIMESTAMP or now_ms - stamp_ms <= self._before_ms:
            return ""
        return f"timestamp {stamp_ms} is more than message.timestamp.before.max.ms={self._before_ms} before now"

    def _too_late(self, stamp_ms: int, now_ms: int) -> str:
        if stamp_ms - now_ms <= self._after_ms:
            return ""
        return f"timestamp {stamp_ms} is more than message.timestamp.after.max.ms={self._after_ms} after now"

    def with_records(
        self, error: InvalidTimestampError, batch: Buffer, max_size: int, now_ms: int
    ) -> InvalidTimestampError:
        """Returns the error with the records whose timestamps are out of range (KIP-467), or `error` itself if the
        records cannot be read."""
        try:
            stamps = decode_columns(batch, 0, BatchHeader.parse(batch), self._codecs, max_size).timestamps_ms
        except CorruptRecordError:
            return error
        problems = [self._too_early(stamp, now_ms) or self._too_late(stamp, now_ms) for stamp in stamps]
        named = [RecordError(place, problem) for place, problem in enumerate(problems) if problem]
        return InvalidTimestampError(str(error), named)

    # -- the records ---------------------------------------------------------------------------------------------

    def verifies(self, codec_id: int, first_ms: int, largest_ms: int) -> bool:
        """True if the records of a batch that is stored unchanged must be read: because `verify.payload` says so, or
        because the header's timestamps contradict each other (Kafka reads every batch and corrects them)."""
        return (
            self._verifies_all
            or (self._verifies_plain and codec_id == 0)
            or largest_ms < first_ms
            or (first_ms == NO_TIMESTAMP and largest_ms != NO_TIMESTAMP)
        )

    def requires_open(self, header: BatchHeader) -> bool:
        """True if the append reads the records: because `verifies` says so, the topic is compacted, or the batch is
        stored with another codec."""
        if header.is_control:
            return False
        by_topic = self._config.compacts or self.stored_codec(header) != header.codec_id
        return by_topic or self.verifies(header.codec_id, header.base_timestamp, header.max_timestamp)

    def may_block(self, header: BatchHeader) -> bool:
        """True if the header shows that the append must run on a worker thread. The size limit of `open` covers other
        batches."""
        if header.is_control:
            return False
        if self._config.compacts or self.stored_codec(header) != header.codec_id:
            return True
        return header.codec_id != 0 and header.size > ON_LOOP_PACKED and self.requires_open(header)

    def open(self, batch: bytearray | memoryview, header: BatchHeader, max_size: int, now_ms: int) -> Opened:
        """Checks the records of a batch whose CRC is right, without building record objects. Corrects, in the batch, a
        max timestamp that no record has, as Kafka's brokers do.

        Raises `InvalidRecordError` if the records cannot be decompressed or do not match the header: the error is not
        retriable. Raises `MessageTooLargeError` if they take more than `max_size` bytes: some producers then split the
        batch.
        """
        records: Buffer = memoryview(batch)[HEADER_SIZE : header.size]
        try:
            if header.codec_id:
                records = self._codecs.by_id(header.codec_id).decompress(records, max_size)
            # The offset deltas are checked as the log will assign them: 0 to count - 1.
            count, first_ms = header.record_count, header.base_timestamp
            largest_ms, keyless = native.validate(records, count, 0, count - 1, first_ms, False)
        except DecompressionBombError as error:
            raise MessageTooLargeError(
                f"{self._tp}: a record batch cannot be decompressed: {error} (decompressed.max.bytes)"
            ) from error
        except CorruptRecordError as error:
            raise InvalidRecordError(
                f"{self._tp}: the records of a batch with the right CRC cannot be read: {error}"
            ) from error
        if largest_ms != header.max_timestamp:
            header = rewrite_max_timestamp(batch, 0, header, largest_ms)
            self._check_timestamps(header, now_ms)
        return Opened(header, records, keyless)

    def _records_match(self, batch: memoryview, count: int, codec_id: int, first_ms: int, largest_ms: int) -> bool:
        """True if the records match the header; also False if reading them would block an event loop for too long."""
        records: Buffer = batch[HEADER_SIZE:]
        try:
            if codec_id:
                if len(records) > ON_LOOP_PACKED:
                    return False
                records = self._codecs.by_id(codec_id).decompress(records, ON_LOOP_UNPACKED)
            return native.validate(records, count, 0, count - 1, first_ms, False)[0] == largest_ms
        except CorruptRecordError:
            return False

    def stored_codec(self, header: BatchHeader) -> int:
        """Returns the id of the codec with which the topic stores the batch."""
        name = self._config.compression_type
        if name == "producer" or header.is_control:
            return header.codec_id
        return self._codecs.by_name("none" if name == "uncompressed" else name).codec_id

    def check_keys(self, opened: Opened) -> None:
        """Raises `InvalidRecordError` for records without a key: compacted topics keep the last record of each key."""
        if opened.keyless:
            header = opened.header
            keys = native.lists(opened.records, header.record_count, 0, header.record_count - 1, 0, True)[2]
            missing = [index for index, key in enumerate(keys) if key is None]
            raise InvalidRecordError(
                f"{self._tp}: {len(missing)} of {len(keys)} records have no key, and the topic is compacted",
                [RecordError(index, "a record of a compacted topic needs a key") for index in missing],
            )
