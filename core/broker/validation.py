"""Topic validation: opens batches of topics that have validators, off the event loop, and passes the records to the
validators. `Replica.validated` says for each partition whether there are any."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ..config.sections.topic import TopicConfig
from ..errors import BrokerError, CorruptRecordError, ErrorCode, KlammError, describe_error
from ..interfaces.codec import DecompressionBombError
from ..interfaces.service import BrokerContext
from ..interfaces.validator import QuickTopicValidator, StartedTopicValidator, TopicValidator
from ..log.errors import InvalidRecordError
from ..records.codecs import CodecTable
from ..records.decode import decode_batch
from ..records.header import BatchHeader, crc_matches
from ..records.partition import TopicPartition
from ..records.record import Record

log = logging.getLogger(__name__)

ON_LOOP_BYTES: Final = 2048
"""The size of an uncompressed batch up to which validators may be asked on the event loop."""


class Validation:
    """`max_size` bounds the decompressed size of one batch, in bytes."""

    def __init__(
        self,
        validators: Sequence[TopicValidator],
        codecs: CodecTable,
        max_size: int,
        worth_saying: Callable[[str], str | None] = lambda _: "",
    ) -> None:
        """`worth_saying` limits how often a line is logged: it returns text to append, or None to suppress the line."""
        self._worth_saying = worth_saying
        self._validators = tuple(validators)
        self._codecs = codecs
        self._max_size = max_size
        self._by_topic: dict[str, tuple[TopicValidator, ...]] = {}
        self._configs: dict[str, TopicConfig] = {}

    def start(self, context: BrokerContext) -> None:
        """Gives the broker to the validators that need it."""
        for validator in self._validators:
            if isinstance(validator, StartedTopicValidator):
                validator.start(context)

    def applies_to(self, topic: str, config: TopicConfig) -> bool:
        """Asks each validator whether batches of this topic have to be opened, and remembers which want them."""
        if self._configs.get(topic) != config:  # a topic has many partitions
            values = config.to_strings()
            self._by_topic[topic] = tuple(v for v in self._validators if v.applies_to(topic, values))
            self._configs[topic] = config
        return bool(self._by_topic[topic])

    def passes(self, name: TopicPartition, batch: memoryview) -> bool:
        """Returns True if the batch is small and its validators accept it at once; else `check` decides, on a thread.
        For one message, switching to another thread and back takes several times as long as reading it."""
        validators = self._by_topic.get(name.topic, ())
        if len(batch) > ON_LOOP_BYTES or not all(isinstance(one, QuickTopicValidator) for one in validators):
            return False
        try:
            header = BatchHeader.parse(batch)
            if header.size != len(batch) or header.codec_id or header.is_control:
                return False
            records = self._records(name, batch, header._replace(base_offset=0))
        except KlammError:
            return False
        return all(one.passes(name.topic, records) for one in validators if isinstance(one, QuickTopicValidator))

    def check(self, name: TopicPartition, batch: memoryview) -> None:
        """Validates a batch; blocking. Raises `InvalidRecordError` with the validator's line if it refuses the batch, a
        validator's retriable `BrokerError`, or `BrokerError` INVALID_RECORD if the records of a batch with a correct
        CRC cannot be read, MESSAGE_TOO_LARGE if they decompress to too much, and CORRUPT_MESSAGE for any other batch
        that is not complete. A control batch is left to the log, which refuses it."""
        header = BatchHeader.parse(batch)
        if header.size != len(batch):
            raise CorruptRecordError(f"{name}: {len(batch)} bytes of records are not exactly one batch")
        if header.is_control:
            return
        records = self._records(name, batch, header._replace(base_offset=0))
        for validator in self._by_topic.get(name.topic, ()):
            try:
                validator.validate(name.topic, name.partition, records)
            except InvalidRecordError as error:
                raise InvalidRecordError(f"{name}: {error}", error.record_errors) from error
            except KlammError as error:
                words, code = str(error), ErrorCode.invalid_record
                if isinstance(error, BrokerError):
                    words, code = error.words, error.code if error.code.retriable else code
                raise BrokerError(code, f"{name}: {words}") from error
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
