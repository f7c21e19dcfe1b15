"""How far groups are behind, in records and in seconds, for the partitions that this broker leads.

Every `interval_s` a thread asks for the groups of all brokers and their committed offsets, as any client does, and
compares them with the logs of this broker. A group's offset may be stored at another broker; the log end and the
records are on this one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.service import BrokerContext, ServiceMetric
from ...protocol.apis import ApiKey
from ...records.header import HEADER_SIZE, BatchHeader
from ...records.partition import TopicPartition

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient

log = logging.getLogger(__name__)
STOP_S = 10.0
_SOON = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
"""Errors of a coordinator that starts or moves: the last lags stay until the next computation."""


class Lag(NamedTuple):
    """`records` between the committed offset and the high watermark; `seconds` since the timestamp of the batch with
    the first of these records, 0 if there is none."""

    records: int
    seconds: float


class ConsumerLag:
    """Implements `klamm.core.interfaces.service.Service`. `lags` may be called from any thread."""

    def __init__(
        self,
        interval_s: float,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._interval_s = interval_s
        self._clock_ms = clock_ms
        self._found: Mapping[tuple[str, TopicPartition], Lag] = {}
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._context: BrokerContext | None = None

    def of(self, context: BrokerContext) -> ConsumerLag:
        """Sets the broker that is read; once, before `start`."""
        self._context = context
        return self

    def lags(self) -> Mapping[tuple[str, TopicPartition], Lag]:
        """Returns the lag by group and partition as of the last computation, of partitions with a committed offset."""
        return self._found

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="klamm-consumer-lag", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def health(self) -> str | None:
        return self._problem

    def metrics(self) -> Iterable[ServiceMetric]:
        return ()  # the collector of the broker's own metrics reads `lags`

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                assert self._context is not None, "call of() first"
                with client_of_self(self._context) as client:
                    while not self._stopping.is_set():
                        try:
                            self._found = self._compute(client, self._context)
                            self._problem = None
                        except BrokerError as error:
                            if error.code not in _SOON:
                                raise
                            log.debug("consumer lag: %s", error)
                        self._stopping.wait(self._interval_s)
            except Exception as error:  # the metrics lack a number; the broker continues
                self._problem = f"consumer lag: {error}"
                self._found = {}
                expected = isinstance(error, KlammError)
                log.log(logging.WARNING if expected else logging.ERROR, "%s", self._problem, exc_info=not expected)
                self._stopping.wait(self._interval_s)

    def _compute(self, client: ClusterClient, context: BrokerContext) -> dict[tuple[str, TopicPartition], Lag]:
        found = {}
        led = context.partitions()
        for group in sorted(_groups(client)) if led else ():
            if self._stopping.is_set():
                break
            for partition, committed in client.fetch_offsets(group).items():
                if partition in led:
                    lag = lag_of(context, partition, committed.offset, self._clock_ms())
                    if lag is not None:
                        found[group, partition] = lag
        return found


def lag_of(context: BrokerContext, partition: TopicPartition, offset: int, now_ms: int) -> Lag | None:
    """Returns the lag of a group that has committed `offset`; None if the partition is no longer led here. Records
    that retention has deleted before they were read count as records; the time is that of the first remaining
    record."""
    try:
        start = context.read(partition, 0, 0)
        if offset >= start.high_watermark:
            return Lag(0, 0.0)
        data = context.read(partition, max(offset, start.log_start_offset), HEADER_SIZE).data
    except BrokerError as error:
        log.debug("%s: %s", partition, error)
        return None
    records = start.high_watermark - offset
    if len(data) < HEADER_SIZE:  # retention has deleted all of them meanwhile
        return Lag(records, 0.0)
    header = BatchHeader.parse(data)
    written_ms = header.max_timestamp if header.log_append_time else header.base_timestamp
    return Lag(records, max(now_ms - written_ms, 0) / 1000 if written_ms >= 0 else 0.0)


def client_of_self(context: BrokerContext) -> ClusterClient:
    """Returns a client of the broker itself, which connects as any client does."""
    from ...client.factory import open_client  # a broker without metrics need not import it

    return open_client(context, "consumer-lag")


def _groups(client: ClusterClient) -> set[str]:
    """Returns the groups with classic members or with offsets."""
    found: set[str] = set()
    for node_id in client.metadata(()).nodes:
        message = client.call(ApiKey.LIST_GROUPS, node_id, states_filter=(), types_filter=())
        if message.error_code != ErrorCode.none:
            raise BrokerError(message.error_code, f"broker {node_id} cannot list its groups")
        found.update(group.group_id for group in message.groups)
    return found
