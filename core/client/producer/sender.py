"""The sender: one thread that takes ready batches to the leaders of their partitions and settles them by the answers.

Rules:
- One Produce request carries at most one batch of each partition and about `max_request_size` bytes; at most
  `max.in.flight.requests.per.connection` of them wait for each broker.
- A batch that is not settled `delivery.timeout.ms` after its first record fails, in whatever state it is.
- A request without an answer for `request.timeout.ms` breaks its connection; the batches in flight are sent again. So
  does one without an answer for `OVERDUE_S` if another broker leads one of its partitions by then: the former leader
  may be unreachable.
- When a connection breaks, or a leader has moved, the metadata is requested at once; batches are sent again as soon as
  the leader is known, with the delays of a fail-over.
- Nothing blocks: metadata and producer ids come from `MetadataRefresher`, connections from dialling threads.
- An unexpected error ends the producer: unsettled records fail, and `send` raises.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import BrokerError, DeliveryError, ErrorCode, KlammError
from ...interfaces.codec import Codec
from ...protocol.apis import ApiKey
from ...records.partition import TopicPartition
from ..cluster_client import ProducedBatch, learn_leaders, produce_request, produce_results, produced_partitions
from ..errors import FAIL_OVER_ERRORS, STALE_LEADER_ERRORS, ConnectionFailedError, RequestTimeoutError
from ..network.backoff import Delays
from ..network.channel import CHANNEL_ERRORS, Channel, ChannelState
from ..network.connection import ClientConnection, Response
from ..network.metadata import ClusterMetadata
from ..network.request_router import Network
from .batch import BatchEvent, ProducerBatch
from .deliveries import DeliveryListeners, log
from .metadata_refresher import MetadataRefresher
from .partition_queue import PartitionQueue
from .record_accumulator import RecordAccumulator

OVERDUE_S = 1.0
"""Seconds without an answer after which the metadata is requested: the leader may have moved."""

_LONGEST_SLEEP_S = 1.0
_ANY_SIZE = 2**62


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Times in seconds, sizes in bytes. `acks_of` gives each topic's acks (-1, 0, 1)."""

    acks_of: Callable[[str], int]
    codec: Codec | None
    max_request_size: int
    request_timeout_s: float
    delivery_timeout_s: float
    retries: int


@dataclass(slots=True)
class _Sent:
    """A request in flight."""

    batches: dict[TopicPartition, tuple[PartitionQueue, ProducerBatch]]
    deadline_s: float
    answered: bool
    """False for acks=0: settled once the kernel has accepted its last byte."""
    overdue_s: float
    """When to check again whether another broker leads its partitions."""


@dataclass(slots=True)
class _Broker:
    node_id: int
    channel: Channel
    sent: dict[int, _Sent] = field(default_factory=dict)


class Sender:
    """`start`, then `stop`; `wake` and the accumulator may be called from any thread."""

    def __init__(
        self,
        options: SenderOptions,
        network: Network,
        cluster: ClusterMetadata,
        make_protocol: Callable[[], ClientConnection],
        deliveries: DeliveryListeners,
    ) -> None:
        self._options = options
        self._network = network
        self._cluster = cluster
        self._make_protocol = make_protocol
        self._deliveries = deliveries
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._asleep = False
        self._brokers: dict[int, _Broker] = {}
        self._stop_at_s = float("inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-producer-sender", daemon=True)
        self.problem: KlammError | None = None
        """The last error with a broker; None after a later answer."""

    def start(self, accumulator: RecordAccumulator, metadata_refresher: MetadataRefresher) -> None:
        self._accumulator = accumulator
        self._metadata_refresher = metadata_refresher
        self._thread.start()

    def wake(self) -> None:
        """Wakes the sender because there is new work. Cheap while it is awake."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(OSError):  # full: it is waking; closed: it has stopped
                self._waker.send(b"\0")

    def stop(self, timeout_s: float) -> None:
        """Once the accumulator is closed, sends the remaining records for up to that many seconds; the rest fails."""
        self._stop_at_s = self._network.clock() + timeout_s
        self._asleep = True
        self.wake()
        self._thread.join()

    # -- the thread

    def _run(self) -> None:
        ended = "the producer was closed"
        try:
            while not (self._accumulator.idle and self._stop_at_s < float("inf")):
                now = self._network.clock()
                if now >= self._stop_at_s:
                    break
                self._asleep = True  # news from here on wakes the selector
                self._poll(self._round(now))
        except Exception as error:  # the futures and `send` raise it, since nothing is sent any more
            ended = f"an unexpected error has ended the producer: {error!r}"
            log.exception("an unexpected error has ended the producer")
        finally:
            self._accumulator.close(ended)  # before the batches fail: nothing would settle a later one
            self._give_up(ended)

    def _round(self, now: float) -> float:
        """Does all that can be done now; returns the seconds to sleep."""
        self._expire(now)
        ready = self._accumulator.ready(now)
        next_s = min(
            self._send_ready(ready.queues, now),
            ready.next_s,
            self._accumulator.oldest_s() + self._options.delivery_timeout_s,
            self._stop_at_s,
            *(
                min(sent.deadline_s, sent.overdue_s)
                for broker in self._brokers.values()
                for sent in broker.sent.values()
            ),
        )
        return min(max(next_s - self._network.clock(), 0.0), _LONGEST_SLEEP_S)

    def _poll(self, timeout_s: float) -> None:
        events = self._selector.select(timeout_s)
        self._asleep = False
        for key, mask in events:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                continue
            for broker in self._brokers.values():
                if broker.channel is key.data:
                    self._read(broker, mask)

    def _send_ready(self, queues: list[PartitionQueue], now: float) -> float:
        """Sends the ready batches; returns when to try again for those that could not be sent."""
        begun = self._deliveries.begin(queues)
        try:
            return self._send_to_leaders([queue for queue in queues if begun.get(queue.partition.topic, True)], now)
        finally:
            self._deliveries.end(begun)

    def _send_to_leaders(self, queues: list[PartitionQueue], now: float) -> float:
        next_s = float("inf")
        by_leader: dict[int, deque[PartitionQueue]] = {}
        for queue in queues:
            leader = self._cluster.leader(queue.partition)
            if leader is None:
                self._metadata_refresher.refresh()
                continue
            by_leader.setdefault(leader, deque()).append(queue)
        for node_id, share in by_leader.items():
            broker = self._broker(node_id)
            if broker is None:
                self._metadata_refresher.refresh()
                continue
            try:
                broker.channel.prepare()
                while broker.channel.can_send and self._send_one(broker, share, now):
                    pass
            except CHANNEL_ERRORS as error:
                self._lost(broker, error)
            if broker.channel.failing:
                self._metadata_refresher.refresh()
            if broker.channel.state is ChannelState.DOWN:
                next_s = min(next_s, broker.channel.retry_at_s)
        return next_s

    def _broker(self, node_id: int) -> _Broker | None:
        """Returns the broker's channel; a new one if it has moved to another address; None if it has just been
        removed.
        """
        node = self._cluster.view.nodes.get(node_id)
        if node is None:
            return None
        address = node.address
        broker = self._brokers.get(node_id)
        if broker is not None and broker.channel.address != address:
            self._lost(broker, ConnectionFailedError(f"broker {node_id} has moved to {address}"))
            broker.channel.close()
            broker = None
        if broker is None:
            channel = Channel(address, self._make_protocol, self._network, self._selector, self._awaken)
            broker = self._brokers[node_id] = _Broker(node_id, channel)
        return broker

    def _awaken(self) -> None:
        """Wakes the sender from a dialling thread, whatever `_asleep` says."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _send_one(self, broker: _Broker, queues: deque[PartitionQueue], now: float) -> bool:
        """Sends one request, if there is a batch to send; returns whether it did."""
        taken: dict[TopicPartition, tuple[PartitionQueue, ProducerBatch]] = {}
        acks: int | None = None
        size = 0
        for _ in range(len(queues)):
            queue = queues[0]
            queues.rotate(-1)
            topic_acks = self._options.acks_of(queue.partition.topic)
            if acks is not None and topic_acks != acks:
                continue
            room = self._options.max_request_size - size if taken else _ANY_SIZE
            batch = self._take(queue, now, room)
            if batch is None:
                continue
            size += len(batch.encode(self._options.codec))
            acks = topic_acks
            taken[queue.partition] = (queue, batch)
        if not taken or acks is None:
            return False
        self._write(broker, taken, acks, now)
        return True

    def _take(self, queue: PartitionQueue, now: float, room: int) -> ProducerBatch | None:
        """Returns the partition's next batch, encoded; None if none may be sent now."""
        if not queue.waiting:
            return None
        batch = self._accumulator.take(queue, now, room)
        if batch is None:
            return None
        try:
            batch.encode(self._options.codec)
        except Exception as error:  # a codec is a plugin and may raise anything
            self._fail(queue, batch, self._delivery_error(batch, f"it cannot be encoded: {error}"), error)
            return None
        self._deliveries.attempted(batch)
        return batch

    def _write(
        self,
        broker: _Broker,
        taken: dict[TopicPartition, tuple[PartitionQueue, ProducerBatch]],
        acks: int,
        now: float,
    ) -> None:
        batches = {tp: batch.encode(self._options.codec) for tp, (_, batch) in taken.items()}
        timeout_s = self._options.request_timeout_s
        sent = _Sent(taken, now + timeout_s, answered=acks != 0, overdue_s=now + OVERDUE_S)
        try:
            correlation_id = broker.channel.send(
                ApiKey.PRODUCE,
                lambda schema: produce_request(schema, batches, acks, timeout_s),
                answered=acks != 0,
            )
        except CHANNEL_ERRORS:
            broker.sent[-1] = sent  # `_lost` takes them back
            raise
        except KlammError as error:  # no common version
            for queue, batch in taken.values():
                self._fail(queue, batch, self._delivery_error(batch, str(error)), error)
            return
        broker.sent[correlation_id] = sent
        self._settle_unanswered(broker)

    def _read(self, broker: _Broker, mask: int) -> None:
        try:
            responses = broker.channel.on_event(mask)
        except CHANNEL_ERRORS as error:
            self._lost(broker, error)
            return
        for response in responses:
            self.problem = None
            self._answered(broker, response)
        self._settle_unanswered(broker)

    def _settle_unanswered(self, broker: _Broker) -> None:
        """Settles requests with acks=0, but only once they are written: a producer that is flushed and closed would
        lose them.
        """
        if not broker.channel.written:
            return
        for correlation_id in [number for number, sent in broker.sent.items() if not sent.answered]:
            for queue, batch in broker.sent.pop(correlation_id).batches.values():
                if not batch.settled:
                    self._store(queue, batch, ProducedBatch(-1))

    def _answered(self, broker: _Broker, response: Response) -> None:
        sent = broker.sent.pop(response.correlation_id, None)
        if sent is None:
            return
        results = produce_results(response.message)
        if any(code is not ErrorCode.none for code, _, _ in results.values()):
            stale = [tp for tp, (code, _, _) in results.items() if code in STALE_LEADER_ERRORS]
            self._cluster.forget_leaders(stale, broker.node_id)
            learn_leaders(self._cluster, produced_partitions(response.message), response.message)
        missing = (ErrorCode.network_exception, ProducedBatch(-1), "the broker's answer leaves the partition out")
        for tp, (queue, batch) in sent.batches.items():
            if not batch.settled:
                self._settle(queue, batch, *results.get(tp, missing))

    def _settle(
        self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode, produced: ProducedBatch, words: str | None
    ) -> None:
        with self._accumulator.lock:
            event = queue.event_of(batch, code, produced.log_start_offset)
        if event is BatchEvent.STORE:
            self._store(queue, batch, produced)
            return
        batch.last_error = BrokerError(code, words or "")
        if code in FAIL_OVER_ERRORS:
            self._metadata_refresher.refresh()
        if event is BatchEvent.SPLIT:
            with self._accumulator.lock:
                queue.split(batch)
        elif event is BatchEvent.RETRY and batch.attempts <= self._options.retries:
            self._retry(queue, batch, code)
        else:
            self._fail(queue, batch, self._delivery_error(batch, str(batch.last_error)), batch.last_error)

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> None:
        delays: Delays = self._network.fail_over if code in FAIL_OVER_ERRORS else self._network.retry
        at_s = self._network.clock() + delays.delay(batch.attempts)
        with self._accumulator.lock:
            queue.retry(batch, at_s)

    def _lost(self, broker: _Broker, error: KlammError) -> None:
        """Handles a broken connection: the batches that it carried may or may not be stored."""
        self.problem = error
        broker.channel.fail()
        lost, broker.sent = list(broker.sent.values()), {}
        for sent in lost:
            for queue, batch in sent.batches.values():
                if not batch.settled:
                    self._settle(queue, batch, ErrorCode.network_exception, ProducedBatch(-1), str(error))
        self._metadata_refresher.refresh()

    def _expire(self, now: float) -> None:
        for broker in list(self._brokers.values()):
            negotiating = broker.channel.negotiating_since_s
            overdue = negotiating is not None and now - negotiating > self._options.request_timeout_s
            if overdue or any(sent.deadline_s <= now for sent in broker.sent.values()):
                self._lost(broker, RequestTimeoutError(f"no answer from {broker.channel.address} in time"))
            elif self._deposed(broker, now):
                problem = f"no answer from {broker.channel.address}, which leads the partitions no longer"
                self._lost(broker, ConnectionFailedError(problem))
        for queue, batch in self._accumulator.expired(now - self._options.delivery_timeout_s):
            waited = round(self._options.delivery_timeout_s * 1000)
            self._accumulator.mark_in_doubt(queue, batch)
            cause = batch.last_error or self.problem or self._metadata_refresher.problem
            why = f"no acknowledgement within delivery.timeout.ms ({waited} ms)" + (f"; last: {cause}" if cause else "")
            self._fail(queue, batch, self._delivery_error(batch, why), cause)

    def _deposed(self, broker: _Broker, now: float) -> bool:
        """Returns True if another broker leads a partition of an overdue request."""
        overdue = [sent for sent in broker.sent.values() if sent.overdue_s <= now]
        if not overdue:
            return False
        for sent in overdue:
            sent.overdue_s = now + OVERDUE_S
        self._metadata_refresher.avoid(broker.node_id)
        self._metadata_refresher.refresh()
        leaders = {self._cluster.leader(tp) for sent in overdue for tp in sent.batches}
        return not leaders <= {broker.node_id, None}

    def _give_up(self, ended: str) -> None:
        """Fails the remaining batches, because the producer was closed or ended by an error; `ended` is the reason."""
        for queue, batch in self._accumulator.unsettled():
            self._accumulator.mark_in_doubt(queue, batch)
            cause = batch.last_error or self.problem or self._metadata_refresher.problem
            why = f"{ended} before it was acknowledged" + (f"; last: {cause}" if cause else "")
            self._fail(queue, batch, self._delivery_error(batch, why), cause)
        for broker in self._brokers.values():
            broker.channel.close()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    # -- settling

    def _store(self, queue: PartitionQueue, batch: ProducerBatch, produced: ProducedBatch) -> None:
        with self._accumulator.lock:
            queue.stored(batch, produced.base_offset)
        self._deliveries.stored(batch, produced)
        first, end = batch.first, batch.end
        batch.release()
        batch.outcome.acknowledge(first, end, produced.base_offset, produced.log_append_time_ms)
        self._accumulator.release(batch.size, batch.outcome)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: DeliveryError, cause: Exception | None) -> None:
        error.__cause__ = cause
        with self._accumulator.lock:
            queue.failed(batch)
        self._deliveries.failed(batch, error)
        first, end = batch.first, batch.end
        batch.release()
        batch.outcome.fail(first, end, error)
        self._accumulator.release(batch.size, batch.outcome)

    def _delivery_error(self, batch: ProducerBatch, why: str) -> DeliveryError:
        partition = batch.outcome.partition
        doubt = " (it may be stored: its outcome is unknown)" if batch.in_doubt else ""
        where = f"topic {partition.topic!r} partition {partition.partition}"
        what = "1 record was" if batch.count == 1 else f"{batch.count} records were"
        return DeliveryError(f"{where}: {what} not delivered: {why}{doubt}")
