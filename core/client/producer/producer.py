"""The producer that users see: `send` returns a future, `close` flushes."""

from __future__ import annotations

import atexit
import random
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from ...config.settings import Settings, load_settings
from ...errors import ConfigError, DeliveryError, KlammError, SchemaError
from ...interfaces.audit import AuditIdentity, Counted
from ...records.codecs import UnsupportedCodecError
from ...records.encode import MAX_RECORD_OVERHEAD
from ...records.header import HEADER_SIZE
from ...records.partition import TopicPartition
from ...records.record import LAST_TIMESTAMP_MS, Headers, ProducerRecord, RecordMetadata
from ..factory import open_client
from ..keys import key_bytes
from ..network.backoff import Backoff
from ..network.connection import ClientConnection
from ..network.request_router import Network
from ..typed import SharedCoordination, TypedValues
from .batch import BatchAudit
from .columns import ColumnSender, OversizedRecordError, RawRecords
from .deliveries import DeliveryListeners, log
from .metadata_refresher import MetadataRefresher
from .partition_queue import PartitionQueue
from .partitioner import load_partitioner
from .record_accumulator import (
    RECORD_OVERHEAD,
    Buffering,
    ProducerClosedError,
    RecordAccumulator,
)
from .record_future import failed_future
from .sender import Sender, SenderOptions
from .table_future import TableFuture
from .topic_writer import TopicWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Producer"]

_HEADER_OVERHEAD = 12
_AUDIT_S = 10.0
"""The longest time that closing waits for the audit topic."""
"""Estimated upper bound of the overhead per header, in bytes."""

_AT_EXIT_S = 10.0

_MOST = 2**31 - 1
"""The largest count of records, bytes or partitions."""

_MOST_COUNTED: Counted = ((LAST_TIMESTAMP_MS, _MOST, _MOST),)
"""The largest counts, with which a batch's mark has its largest size."""

_MARKS = 64
"""The number of audit marks that are cached for each partition."""


class Producer:
    """Sends records to topics; thread-safe; one per process is enough.

    `config` is a YAML file, a mapping of the same shape, or `Settings`, of which the `producer` section and each
    topic's `schema` and `serde` are used. Use it as a context manager, or `close` it: only then is everything sent.
    """

    def __init__(self, config: str | Path | Mapping[str, Any] | Settings, *, network: Network | None = None) -> None:
        """Opens no connection yet. `network` replaces sockets and clock (tests)."""
        settings = config if isinstance(config, Settings) else load_settings(config)
        options = settings.producer
        retry = Backoff(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000)
        reconnect = Backoff(options.reconnect_backoff_ms / 1000, options.reconnect_backoff_max_ms / 1000)
        self._network = network or Network(retry=retry, reconnect=reconnect)
        self._options = options
        self._partitioner = load_partitioner(options.partitioner)
        codecs = settings.codec_table()
        try:
            codec = codecs.by_name(options.compression_type)
        except UnsupportedCodecError as error:
            raise ConfigError(f"{settings.source}: producer.compression.type: {error}") from error
        self._client = open_client(
            settings,
            "producer",
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_ms / 1000,
            network=self._network,
        )
        self._coordination = SharedCoordination(settings)
        self._values = TypedValues(
            settings, options.bootstrap_servers, self._coordination, options.delivery_timeout_ms / 1000
        )
        self._listeners = DeliveryListeners(settings.make_producer_interceptors())
        self._writers: dict[str, TopicWriter] = {}
        self._opening = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._largest = options.max_request_size - HEADER_SIZE - MAX_RECORD_OVERHEAD
        self._start_audit(settings)  # before any thread is started, since it may refuse the configuration
        self._start(codec if codec.codec_id else None)
        self._at_exit = _close_at_exit(self)

    def _start(self, codec: Any) -> None:
        options = self._options
        max_in_flight = options.max_in_flight_requests_per_connection
        self._sender = Sender(
            SenderOptions(
                acks_of=self._acks_of,
                codec=codec,
                max_request_size=options.max_request_size,
                request_timeout_s=options.request_timeout_ms / 1000,
                delivery_timeout_s=options.delivery_timeout_ms / 1000,
                retries=options.retries,
            ),
            self._network,
            self._client.cluster,
            lambda: ClientConnection(options.client_id, self._client.software_version, max_in_flight=max_in_flight),
            self._listeners,
        )
        self._metadata_refresher = MetadataRefresher(
            self._client,
            idempotent=options.enable_idempotence,
            max_age_s=options.metadata_max_age_ms / 1000,
            backoff=self._network.retry,
            changed=self._metadata_changed,
        )
        self._accumulator = RecordAccumulator(
            Buffering(options.linger_ms / 1000, options.buffer_memory, options.max_block_ms / 1000),
            wake=self._sender.wake,
            clock=self._network.clock,
        )
        self._metadata_refresher.start()
        self._sender.start(self._accumulator, self._metadata_refresher)

    def _start_audit(self, settings: Settings) -> None:
        self._audit = settings.make_audit()
        if self._audit is None:
            return
        application = self._options.client_id
        owner = f"{application}-{uuid.uuid4().hex[:12]}"
        identity = AuditIdentity("producer", owner, socket.gethostname(), application)
        topic = self._audit.topic
        self._mark_of = partial(self._audit.mark, identity)
        largest = _checked_headers(topic, self._mark_of(TopicPartition(topic, _MOST), _MOST_COUNTED))
        self._usual_mark_size = _headers_size(largest)
        self._listeners.audit_topic = self._audit.topic
        self._listeners.audit = self._audit.producer(identity, self._publish_audit)

    # -- sending

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | int | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Future[RecordMetadata]:
        """Sends a record. The future returns where it is stored, or raises: `DeliveryError` with topic, partition and
        cause, or `SchemaError` for a value that does not match the schema.

        Blocks for up to `max.block.ms` while the topic's metadata is fetched or `buffer.memory` is full. Raises at
        once, and sends nothing, if the producer is closed (`ProducerClosedError`), the topic or partition does not
        exist (`UnknownTopicError`), the record is larger than `max.request.size` (`DeliveryError`), or the buffer stays
        full (`BufferFullError`). `timestamp_ms` is since the epoch; None means now.
        """
        if self._closed:
            raise ProducerClosedError("the producer is closed; nothing can be sent any more")
        if self._listeners.intercepts:
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, tuple(headers))
            record = self._listeners.intercept(record)
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            timestamp_ms, headers = record.timestamp_ms, record.headers
        writer = self._writers.get(topic)
        if writer is None:
            writer = self._open(topic)
        try:
            raw = writer.serialize(value)
            raw_key = key if key.__class__ is bytes else key_bytes(topic, key)
            timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else _checked_ms(topic, timestamp_ms)
        except KlammError as error:
            return self._refuse(topic, partition, error)
        except Exception as error:  # a serde is a plugin and may raise anything
            wrapped = SchemaError(f"topic {topic}: the value cannot be serialized: {error!r}")
            wrapped.__cause__ = error
            return self._refuse(topic, partition, wrapped)
        size = RECORD_OVERHEAD + (0 if raw is None else len(raw)) + (0 if raw_key is None else len(raw_key))
        if writer.headers and raw is not None:
            headers = (*writer.headers, *headers)
        if headers:
            headers = _checked_headers(topic, headers)
            size += _headers_size(headers)
        else:
            headers = ()
        if size + writer.mark_size > self._largest:
            raise self._too_large(topic, size)
        queue = writer.queue(raw_key, raw, partition, size)
        return self._accumulator.append(queue, timestamp_ms, raw_key, raw, headers, size)

    def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key: str | None = None,
        partition: int | None = None,
        timestamp: str | None = None,
    ) -> TableFuture:
        """Sends a record for each row of a table. The future returns the ranges of offsets where they are stored, or
        raises the first `DeliveryError`.

        The column `value` (bytes or text) holds the values; for a topic with a schema all columns are the fields of its
        record, or `value` is a struct of them. `key` and `timestamp` name columns: keys are bytes, text or whole
        numbers, null for none; timestamps are Arrow's, or numbers of milliseconds, now if there are none. Beside a
        `value`, the columns `key` and `timestamp` need not be named. Rows with a key go to the key's partition. Rows
        without one go to the partitions in turn, a batch at a time.

        All rows are checked before the first is sent: `SchemaError` names row and column, `DeliveryError` a row that is
        too large; nothing was sent then. Blocks as `send` does. Not possible with interceptors, which need records
        (`ConfigError`). Needs pyarrow (the extra `arrow`).
        """
        if self._closed:
            raise ProducerClosedError("the producer is closed; nothing can be sent any more")
        if self._listeners.intercepts:
            raise ConfigError("producer.interceptors see records, and a table has none: use send, or no interceptors")
        from .arrow import TableSender

        window_ms = None if self._audit is None else self._audit.window_ms
        sender = TableSender(self._accumulator, self._listeners, self._values, self._largest, window_ms)
        return sender.send(self._writers.get(topic) or self._open(topic), table, key, partition, timestamp)

    def send_raw(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> TableFuture:
        """Sends a record for each of `values`, which are sent as they are: no serde is called. The future is that of
        `send_arrow`.

        `keys` and `timestamps_ms` are as long as `values`; `headers` are those of every record. Records with a key go
        to the key's partition. Records without one go to the partitions in turn, a batch at a time. The records of a
        partition stay in order. All are checked before the first is sent (`OversizedRecordError` names one that is too
        large). Blocks as `send` does. Not possible with interceptors (`ConfigError`).
        """
        if self._closed:
            raise ProducerClosedError("the producer is closed; nothing can be sent any more")
        if self._listeners.intercepts:
            raise ConfigError("producer.interceptors see single records: use send, or no interceptors")
        if any(column is not None and len(column) != len(values) for column in (keys, timestamps_ms)):
            raise SchemaError(f"topic {topic}: keys and timestamps_ms are as many as values ({len(values)})")
        window_ms = None if self._audit is None else self._audit.window_ms
        for stamp in (min(timestamps_ms), max(timestamps_ms)) if timestamps_ms else ():
            _checked_ms(topic, stamp)
        records = RawRecords(values, keys, timestamps_ms, _checked_headers(topic, headers))
        sender = ColumnSender(self._accumulator, self._largest, window_ms)
        return sender.send(self._writers.get(topic) or self._open(topic), records, partition)

    def flush(self, timeout_s: float | None = None) -> None:
        """Sends all records passed to `send`, and waits until each is stored or has failed, as its future shows.
        Raises `DeliveryError` if `timeout_s` seconds are over before."""
        left = self._accumulator.flush(timeout_s)
        if left:
            what = "1 record was" if left == 1 else f"{left} records were"
            raise DeliveryError(f"{what} not settled within {timeout_s} s; sending continues")

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes, publishes the audit's counts, and stops. After `timeout_s` seconds (default: `delivery.timeout.ms`)
        the futures of unsettled records raise `DeliveryError`. Closing twice is not an error.

        The audit's last counts have `_AUDIT_S` of this time: if the audit topic accepts no event (too few replicas are
        in sync), a line is logged, and the audit shows this producer as killed.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        clock = self._network.clock
        deadline = clock() + (self._options.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s)
        self._accumulator.flush(max(deadline - clock(), 0.0))
        for _, batch in self._accumulator.close_batches():
            self._listeners.attempted(batch)
        deadline = min(deadline, clock() + _AUDIT_S)  # the records are settled, or their time is over
        audit = threading.Thread(target=self._close_audit, name="klamm-producer-audit-close", daemon=True)
        audit.start()
        audit.join(max(deadline - clock(), 0.0))
        self._accumulator.close()
        self._sender.stop(max(deadline - clock(), 0.0))  # the futures of unsettled events fail, which ends the thread
        audit.join()
        self._client.close()
        self._metadata_refresher.close()
        self._values.close()
        self._coordination.close()

    def metrics(self) -> dict[str, int]:
        """Returns counts since the producer was made, and `buffered_bytes` now."""
        return {**self._listeners.counts(), "buffered_bytes": self._accumulator.used_bytes}

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topics

    def partitions(self, topic: str) -> int:
        """Returns the topic's number of partitions. Raises `UnknownTopicError` if it does not exist."""
        return (self._writers.get(topic) or self._open(topic)).partitions

    def _open(self, topic: str) -> TopicWriter:
        """Prepares for the first record of a topic: fetches its metadata, makes its serializer."""
        with self._opening:
            if topic in self._writers:
                return self._writers[topic]
            view = self._client.topic(topic, auto_create=True, timeout_s=self._options.max_block_ms / 1000)
            audited = self._audit is not None and self._audit.audits(topic)
            writer = TopicWriter(
                topic,
                self._values.serializer(topic),
                len(view.partitions),
                self._make_queue,
                partitioner=None if self._audit is not None and topic == self._audit.topic else self._partitioner,
                audited=audited,
                mark_size=self._mark_size(topic),
                choose=random.randrange,
            )
            writer.resize(len(view.partitions), view.topic_id)
            self._metadata_refresher.follow([topic])
            self._writers[topic] = writer
            return writer

    def _make_queue(self, partition: TopicPartition) -> PartitionQueue:
        options, mark_size = self._options, self._mark_size(partition.topic)
        return PartitionQueue(
            partition,
            min(options.batch_size, self._largest - mark_size),
            options.max_in_flight_requests_per_connection,
            self._metadata_refresher if options.enable_idempotence else None,
            self._batch_audit(partition, mark_size),
        )

    def _batch_audit(self, partition: TopicPartition, mark_size: int) -> BatchAudit | None:
        """Returns the audit's part in the partition's batches. Batches of records of one size have the same mark, so
        marks are cached; an error is not.
        """
        if self._audit is None or not self._audit.audits(partition.topic):
            return None
        kept = lru_cache(_MARKS)(partial(self._mark_of, partition))
        return BatchAudit(partial(self._listeners.mark, kept), self._audit.window_ms, mark_size)

    def _mark_size(self, topic: str) -> int:
        """Returns the most bytes that the audit adds to a batch of the topic. After an error: those for the audit's
        own topic plus the length of this topic's name; the audit's later marks are still added."""
        if self._audit is None or not self._audit.audits(topic):
            return 0
        largest = self._listeners.mark(partial(self._mark_of, TopicPartition(topic, _MOST)), _MOST_COUNTED)
        return _headers_size(largest) or self._usual_mark_size + len(topic)

    def _metadata_changed(self) -> None:
        topics = self._client.cluster.view.topics
        for name, writer in list(self._writers.items()):
            if name in topics:
                writer.resize(len(topics[name].partitions), topics[name].topic_id)
        self._sender.wake()

    def _acks_of(self, topic: str) -> int:
        audit = self._audit is not None and topic == self._audit.topic
        return -1 if audit else self._options.acks

    # -- refusals, audit

    def _refuse(self, topic: str, partition: int | None, error: KlammError) -> Future[RecordMetadata]:
        self._listeners.refused(error)
        return failed_future(TopicPartition(topic, -1 if partition is None else partition), error)

    def _too_large(self, topic: str, size: int) -> DeliveryError:
        limit = self._options.max_request_size
        error = OversizedRecordError(
            0,
            f"topic {topic!r}: a record of about {size} bytes is larger than max.request.size ({limit}); "
            "raise it, and max.message.bytes of the topic",
        )
        self._listeners.refused(error)
        return error

    def _publish_audit(self, key: bytes, value: bytes) -> Future[None]:
        """Sends an event to the audit topic for the audit; the event is neither audited nor intercepted."""
        assert self._audit is not None
        writer = self._writers.get(self._audit.topic) or self._open(self._audit.topic)
        size = len(key) + len(value) + RECORD_OVERHEAD
        if size > self._largest:
            raise self._too_large(self._audit.topic, size)
        queue = writer.queue(key, value, None, size)
        now_ms = time.time_ns() // 1_000_000
        return cast("Future[None]", self._accumulator.append(queue, now_ms, key, value, (), size, bounded=False))

    def _close_audit(self) -> None:
        if self._listeners.audit is None:
            return
        try:
            self._listeners.audit.close()
        except Exception as error:  # a plugin may raise anything; missing counts show as incomplete
            log.error("the audit's counts could not be published: %s", error)


def _checked_headers(topic: str, headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    checked = tuple(headers)
    for header in checked:
        pair = header if isinstance(header, tuple | list) and len(header) == 2 else (None, None)
        if not isinstance(pair[0], str) or not (pair[1] is None or isinstance(pair[1], bytes)):
            raise SchemaError(f"topic {topic}: a header is (str, bytes or None), not {header!r}")
        if not pair[0].isascii() and any("\ud800" <= char <= "\udfff" for char in pair[0]):
            raise SchemaError(f"topic {topic}: the name of a header is text without surrogates, not {pair[0]!r}")
    return checked


def _headers_size(headers: Headers) -> int:
    return sum(len(name) + len(item or b"") + _HEADER_OVERHEAD for name, item in headers)


def _checked_ms(topic: str, given: SupportsIndex) -> int:
    """Checks a timestamp: one that cannot be encoded would fail its whole batch."""
    try:
        number = index(given)
    except TypeError:
        number = LAST_TIMESTAMP_MS + 1
    if not -1 <= number <= LAST_TIMESTAMP_MS:
        wanted = "a whole number of milliseconds since 1970, at most those of the year 9999, or -1 for none"
        raise SchemaError(f"topic {topic}: timestamp_ms is {wanted}; not {given!r}")
    return number


def _close_at_exit(producer: Producer) -> Any:
    """Closes a producer that the application did not close when the interpreter exits, so that its records are sent."""
    reference = weakref.ref(producer)

    def close() -> None:
        forgotten = reference()
        if forgotten is not None:
            log.warning("a producer was not closed; closing it now")
            forgotten.close(_AT_EXIT_S)

    atexit.register(close)
    return close
