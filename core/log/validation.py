"""What may be appended: judged from a batch's header alone wherever that is enough (design D2)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from klamm.core.config.topic import TopicConfig
from klamm.core.errors import CorruptRecordError
from klamm.core.log.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
)
from klamm.core.records.codecs import CodecTable, UnsupportedCodecError
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import (
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
)

FIRST_THIRD_PARTY_CODEC: Final = 5


class AppendOrigin(Enum):
    """Who appends: a client, the leader that is followed (offsets are kept), or the broker itself."""

    CLIENT = "client"
    REPLICA = "replica"
    INTERNAL = "internal"


class Validator:
    """The rules of one topic."""

    def __init__(self, config: TopicConfig, codecs: CodecTable) -> None:
        self.config = config
        self.codecs = codecs
        self._largest = min(config.max_message_bytes, config.segment_bytes)
        self._kafkas_codecs = frozenset(i for i in range(FIRST_THIRD_PARTY_CODEC) if i in codecs)
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms

    def check(self, batch: Buffer, origin: AppendOrigin, now_ms: int) -> BatchHeader:
        """The header of the one batch in `batch`, or the error that the client gets."""
        header = self._ordinary(batch, now_ms) or self._judge(batch, origin, now_ms)
        if not crc_matches(batch, 0, header):
            raise CorruptRecordError("a record batch fails its CRC")
        return header

    def _ordinary(self, batch: Buffer, now_ms: int) -> BatchHeader | None:
        """The header where it breaks no rule for anyone; else `_judge` says which, or that it is allowed. Every append
        pays for this, so it is one expression."""
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

    def within_limits(self, size: int, codec_id: int, first_ms: int, largest_ms: int, now_ms: int) -> bool:
        """Of a batch that is plain otherwise (`records.plain_produce`): what of `_ordinary` is this topic's."""
        return (
            size <= self._largest
            and codec_id in self._kafkas_codecs
            and (first_ms == NO_TIMESTAMP or now_ms - first_ms <= self._before_ms)
            and largest_ms - now_ms <= self._after_ms
        )

    def _judge(self, batch: Buffer, origin: AppendOrigin, now_ms: int) -> BatchHeader:
        if len(batch) > MAGIC_AT and batch[MAGIC_AT] != MAGIC:
            raise InvalidRecordError(f"a record batch has magic {batch[MAGIC_AT]}, not {MAGIC}")
        header = BatchHeader.parse(batch)
        if header.size > len(batch):
            raise CorruptRecordError(f"a record batch of {header.size} bytes is cut off after {len(batch)}")
        if header.size < len(batch):
            raise InvalidRecordError(f"{len(batch) - header.size} bytes follow the one batch that is expected")
        self._check_size(header)
        self._check_header(header)
        if origin is AppendOrigin.CLIENT:
            self._check_client(header)
            self._check_timestamps(header, now_ms)
        return header

    def _check_size(self, header: BatchHeader) -> None:
        if header.size > self.config.max_message_bytes:
            limit = self.config.max_message_bytes
            raise MessageTooLargeError(f"a record batch has {header.size} bytes, max.message.bytes is {limit}")
        if header.size > self.config.segment_bytes:
            limit = self.config.segment_bytes
            raise RecordListTooLargeError(f"a record batch has {header.size} bytes, segment.bytes is {limit}")

    def _check_header(self, header: BatchHeader) -> None:
        if header.record_count < 1:
            raise InvalidRecordError(f"a record batch says that it holds {header.record_count} records")
        codec_id = header.codec_id
        if codec_id >= FIRST_THIRD_PARTY_CODEC or codec_id not in self.codecs:
            codec = self.codecs.by_id(codec_id)
            if codec.name != self.config.compression_type:
                raise UnsupportedCodecError(
                    f"the codec {codec.name} is not Kafka's: the topic's compression.type must name it"
                )

    def _check_client(self, header: BatchHeader) -> None:
        if header.last_offset_delta != header.record_count - 1:
            raise InvalidRecordError(
                f"a record batch of {header.record_count} records has the last offset delta {header.last_offset_delta}"
            )
        if header.is_control:
            raise InvalidRecordError("clients may not write control batches")
        if header.is_transactional:
            raise InvalidRecordError("transactions are not supported")
        if header.producer_id != NO_PRODUCER_ID and header.base_sequence == NO_SEQUENCE:
            raise InvalidRecordError(f"producer {header.producer_id} sent a batch without a sequence")
        if header.producer_id < NO_PRODUCER_ID or header.base_sequence < NO_SEQUENCE:
            raise InvalidRecordError(
                f"producer {header.producer_id} and sequence {header.base_sequence} should not be negative"
            )

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        """By the header's two timestamps: the records are not opened for it."""
        if header.log_append_time:
            raise InvalidTimestampError("a client sent a batch whose timestamp type is LogAppendTime")
        if self.config.message_timestamp_type == "LogAppendTime":
            return
        before, after = self.config.message_timestamp_before_max_ms, self.config.message_timestamp_after_max_ms
        if header.base_timestamp != NO_TIMESTAMP and now_ms - header.base_timestamp > before:
            raise InvalidTimestampError(
                f"timestamp {header.base_timestamp} lies more than message.timestamp.before.max.ms={before} before now"
            )
        if header.max_timestamp - now_ms > after:
            raise InvalidTimestampError(
                f"timestamp {header.max_timestamp} lies more than message.timestamp.after.max.ms={after} after now"
            )

    def requires_open(self, header: BatchHeader) -> bool:
        """Whether appending opens the batch (compacted topic, another codec to store): not on the event loop then."""
        return self.config.compacts or self.stored_codec(header) != header.codec_id

    def stored_codec(self, header: BatchHeader) -> int:
        """The id of the codec in which the topic stores the batch."""
        name = self.config.compression_type
        if name == "producer" or header.is_control:
            return header.codec_id
        return self.codecs.by_name("none" if name == "uncompressed" else name).codec_id

    def check_keys(self, batch: Buffer, header: BatchHeader, max_size: int) -> None:
        """Compacted topics keep the last record of each key: one without a key is refused."""
        keys = decode_columns(batch, 0, header, self.codecs, max_size).keys
        missing = [index for index, key in enumerate(keys) if key is None]
        if missing:
            raise InvalidRecordError(
                f"{len(missing)} of {len(keys)} records have no key, and the topic is compacted",
                [RecordError(index, "a record of a compacted topic needs a key") for index in missing],
            )
