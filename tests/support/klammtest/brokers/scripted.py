"""A broker in memory that does what a test tells it: answers with error codes, loses answers, closes connections, stays
silent.

It speaks the real protocol on a real socket and checks producer sequence numbers as Kafka does (an epoch begins with
sequence 0, numbers have no gap, the last five batches are recognised as duplicates), so that a client's reaction to a
fault shows in the records that the log then holds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import FrameSplitter
from klamm.core.protocol.headers import read_request_header, response_frame, skip_tags
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klammtest.apis import ADVERTISED

NO_TIME = timedelta()


class HangUpError(Exception):
    """Tells the broker to close the connection without a response."""


class SilenceError(Exception):
    """Tells the broker to send no response and keep the connection."""


Fault = ErrorCode | str
"""The broker's treatment of the next Produce: an error code (nothing is stored), `lost` (stored, then the connection
closes before the answer), `dropped` (the connection closes, nothing stored), `silent` (stored, no answer), `ok`.
"""


@dataclass
class ProducerState:
    epoch: int = -1
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """(first sequence, last sequence, base offset)"""


@dataclass
class Log:
    values: list[bytes | None] = field(default_factory=list)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    epochs_seen: list[int] = field(default_factory=list)

    def append(self, batch: bytes, codecs: CodecTable) -> tuple[ErrorCode, int]:
        header = BatchHeader.parse(batch)
        if header.producer_id >= 0:
            known = self._check(header)
            if known is not None:
                return known
        base = len(self.values)
        self.values += [record.value for record in decode_batch(batch, 0, header, codecs)]
        if header.producer_id >= 0:
            last = header.base_sequence + header.record_count - 1
            self.producers[header.producer_id].batches.append((header.base_sequence, last, base))
            self.epochs_seen.append(header.producer_epoch)
        return ErrorCode.none, base

    def _check(self, header: BatchHeader) -> tuple[ErrorCode, int] | None:
        state = self.producers.setdefault(header.producer_id, ProducerState())
        if header.producer_epoch < state.epoch:
            return ErrorCode.invalid_producer_epoch, -1
        if header.producer_epoch > state.epoch:
            if state.epoch >= 0 and header.base_sequence != 0:
                return ErrorCode.out_of_order_sequence_number, -1
            state.epoch = header.producer_epoch
            state.batches.clear()
        last = header.base_sequence + header.record_count - 1
        for first_seen, last_seen, base in state.batches:
            if (first_seen, last_seen) == (header.base_sequence, last):
                return ErrorCode.none, base
        expected = state.batches[-1][1] + 1 if state.batches else 0
        return None if header.base_sequence == expected else (ErrorCode.out_of_order_sequence_number, -1)


class ScriptedBroker:
    """`faults` are used up, one by each Produce request; `handlers` replace the response of an API."""

    def __init__(self, topics: dict[str, int], codecs: CodecTable) -> None:
        self.topics = topics
        self.faults: deque[Fault] = deque()
        self.handlers: dict[ApiKey, Callable[[Any, int], Any]] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.PRODUCE: self._produce,
        }
        self.versions = dict(ADVERTISED)
        self.requests: list[ApiKey] = []
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.log_start_offset = 0
        self.codecs = codecs
        self._next_producer_id = 1000
        self._lock = threading.RLock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._spawn(self._accept)

    def log(self, topic: str, partition: int = 0) -> Log:
        return self.logs.setdefault(TopicPartition(topic, partition), Log())

    def values(self, topic: str) -> list[bytes | None]:
        """Returns the values of all partitions, in order within each."""
        return [value for number in range(self.topics[topic]) for value in self.log(topic, number).values]

    def count(self, api: ApiKey) -> int:
        return self.requests.count(api)

    def disconnect(self) -> None:
        """Closes every connection; new ones are accepted."""
        with self._lock:
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Has other connections' requests answered while a handler waits."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.disconnect()
        for thread in list(self._threads):
            thread.join(60)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter(64 * 1024 * 1024)
        with connection, contextlib.suppress(OSError, HangUpError):
            while data := connection.recv(65536):
                for frame in splitter.feed(data):
                    with contextlib.suppress(SilenceError):
                        self._answer(connection, frame)
        with self._lock:
            self._connections.discard(connection)

    def _answer(self, connection: socket.socket, frame: bytearray) -> None:
        header = read_request_header(frame)
        api, version = ApiKey(header.api_key), header.api_version
        schema = messages.request(api, version)
        start = skip_tags(frame, header.end) if schema.header_flexible else header.end
        request = schema.decode(frame, start)
        with self._lock:
            self.requests.append(api)
            answer = self.handlers[api](request, version)
        if answer is not None:
            body = messages.response(api, version).encode(answer)
            connection.sendall(b"".join(response_frame(api, version, header.correlation_id, [body])))

    def _api_versions(self, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.API_VERSIONS, version)
        keys = tuple(
            schema.part("ApiVersion", api_key=api, min_version=low, max_version=high)
            for api, (low, high) in self.versions.items()
        )
        return schema.build(error_code=ErrorCode.none, api_keys=keys, throttle_time=NO_TIME)

    def _metadata(self, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.METADATA, version)
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return schema.build(
            throttle_time=NO_TIME,
            brokers=(schema.part("MetadataResponseBroker", node_id=1, host="127.0.0.1", port=self.port, rack=None),),
            cluster_id="scripted",
            controller_id=1,
            topics=tuple(self._topic(schema, name) for name in names),
            error_code=ErrorCode.none,
        )

    def _topic(self, schema: messages.Schema, name: str) -> Any:
        count = self.topics.get(name, 0)
        partitions = tuple(
            schema.part(
                "MetadataResponsePartition",
                error_code=ErrorCode.none,
                partition_index=number,
                leader_id=1,
                leader_epoch=0,
                replica_nodes=(1,),
                isr_nodes=(1,),
                offline_replicas=(),
            )
            for number in range(count)
        )
        error = ErrorCode.none if count else ErrorCode.unknown_topic_or_partition
        return schema.part(
            "MetadataResponseTopic",
            error_code=error,
            name=name,
            topic_id=self.topic_ids.setdefault(name, uuid4()) if count else None,
            is_internal=False,
            partitions=partitions,
        )

    def _init_producer_id(self, request: Any, version: int) -> Any:
        self._next_producer_id += 1
        return messages.response(ApiKey.INIT_PRODUCER_ID, version).build(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            producer_id=self._next_producer_id,
            producer_epoch=0,
        )

    def _produce(self, request: Any, version: int) -> Any:
        fault = self.faults.popleft() if self.faults else "ok"
        if fault == "dropped":
            raise HangUpError
        schema = messages.response(ApiKey.PRODUCE, version)
        topics = tuple(
            schema.part(
                "TopicProduceResponse",
                name=topic.name,
                partition_responses=tuple(
                    self._append(schema, TopicPartition(topic.name, data.index), bytes(data.records or b""), fault)
                    for data in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
        if fault == "lost":
            raise HangUpError
        if fault == "silent" or request.acks == 0:
            raise SilenceError
        return schema.build(responses=topics, throttle_time=NO_TIME)

    def _append(self, schema: messages.Schema, partition: TopicPartition, batch: bytes, fault: Fault) -> Any:
        if isinstance(fault, ErrorCode):
            code, base = fault, -1
        else:
            code, base = self.log(*partition).append(batch, self.codecs)
        return schema.part(
            "PartitionProduceResponse",
            index=partition.partition,
            error_code=code,
            base_offset=base,
            log_append_time=None,
            log_start_offset=self.log_start_offset,
            record_errors=(),
            error_message=None,
        )


@contextlib.contextmanager
def scripted_broker(topics: dict[str, int], codecs: CodecTable | None = None) -> Iterator[ScriptedBroker]:
    """Runs a scripted broker; `topics` maps a topic to its number of partitions."""
    broker = ScriptedBroker(topics, codecs or CodecTable())
    try:
        yield broker
    finally:
        broker.close()
