"""Topic validation: opens batches of topics that have validators, off the event loop, and passes the records to the
validators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..errors import BrokerError, CorruptRecordError, ErrorCode, KlammError, describe_error
from ..interfaces.codec import DecompressionBombError
from ..interfaces.validator import TopicValidator
from ..records.codecs import CodecTable
from ..records.decode import decode_batch
from ..records.header import BatchHeader, crc_matches
from ..records.partition import TopicPartition
from ..records.record import Record

log = logging.getLogger(__name__)


class Validation:
    """`max_size` bounds the decompressed size of one batch, in bytes. `enforced`: True if there is a validator; where a
    check is costly, callers test it first.
    """

    def __init__(
        self,
        validators: Sequence[TopicValidator],
        codecs: CodecTable,
        max_size: int,
        worth_saying: Callable[[str], str | None] = lambda _: "",
    ) -> None:
        """`worth_saying` limits how often a line is logged: it returns text to append, or None to suppress the line."""
        self._worth_saying = worth_saying
        self.enforced = bool(validators)
        self._validators = tuple(validators)
        self._codecs = codecs
        self._max_size = max_size
        self._by_topic: dict[str, tuple[TopicValidator, ...]] = {}

    def applies_to(self, topic: str) -> bool:
        """Returns True if batches of this topic have to be opened. Each validator is asked once per topic."""
        return self.enforced and bool(self._of(topic))

    def check(self, name: TopicPartition, batch: memoryview) -> None:
        """Validates a batch; blocking. Raises `BrokerError`: INVALID_RECORD with the validator's line if it refuses,
        or if the records of a batch with a correct CRC cannot be read; MESSAGE_TOO_LARGE if they decompress to too
        much; CORRUPT_MESSAGE for any other batch that is not complete."""
        header = BatchHeader.parse(batch)
        if header.size != len(batch):
            raise CorruptRecordError(f"{name}: {len(batch)} bytes of records are not exactly one batch")
        records = self._records(name, batch, header._replace(base_offset=0))
        for validator in self._of(name.topic):
            try:
                validator.validate(name.topic, name.partition, records)
            except KlammError as error:
                words = error.words if isinstance(error, BrokerError) else str(error)
                raise BrokerError(ErrorCode.invalid_record, f"{name}: {words}") from error
            except Exception as error:  # a third party's validator may raise anything; its contract: refuse the batch
                more = self._worth_saying("validator failed")
                if more is not None:
                    kind = type(validator).__name__
                    log.error("%s: the validator %s failed: %s%s", name, kind, describe_error(error), more)
                raise BrokerError(ErrorCode.invalid_record, f"{name}: the validator failed: {error!r}") from error

    def _records(self, name: TopicPartition, batch: memoryview, header: BatchHeader) -> list[Record]:
        if not crc_matches(batch, 0, header):
            raise CorruptRecordError(f"{name}: a record batch fails its CRC")
        try:
            return decode_batch(batch, 0, header, self._codecs, self._max_size, name)
        except DecompressionBombError as error:
            raise BrokerError(ErrorCode.message_too_large, f"{error} (decompressed.max.bytes)") from error
        except CorruptRecordError as error:
            raise BrokerError(ErrorCode.invalid_record, str(error)) from error

    def _of(self, topic: str) -> tuple[TopicValidator, ...]:
        if topic not in self._by_topic:
            self._by_topic[topic] = tuple(v for v in self._validators if v.applies_to(topic))
        return self._by_topic[topic]
