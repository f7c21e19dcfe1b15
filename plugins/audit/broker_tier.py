"""The broker tier: follows each audited partition that this broker leads to the high watermark, on a thread of its own.

Rules:

- How far it has counted is a committed offset of the group `GROUP`, which is also the owner in its events: whichever
  broker leads a partition goes on where the last one stopped.
- One pass reads at most `CHUNK` bytes of each partition, then publishes, then commits; passes follow each other
  until all have caught up, then there is a pause.
- A pass that could not publish or commit is not counted on: the next one starts by publishing the same again.
- A batch that cannot be opened makes its range lossy, and is passed over; the Produce path has checked its CRC, so this
  is a client that lied about what is inside, or a disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import CoordinationError, KlammError
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.audit import AuditIdentity, BrokerLogs, Publish
from klamm.core.seams.offsets import CommittedOffset
from klamm.plugins.audit.config import AuditConfig
from klamm.plugins.audit.event import BROKER
from klamm.plugins.audit.publisher import ClusterPublisher
from klamm.plugins.audit.ranges import KlammRangeAudit

log = logging.getLogger(__name__)

GROUP: Final = "__klamm_audit"
CHUNK: Final = 4 * 1024 * 1024
STOP_S: Final = 10.0
MAX_BACKOFF_S: Final = 10.0

Connect = Callable[[BrokerLogs], AbstractContextManager[Publish]]
"""Opens what events are sent with."""


class BrokerTier:
    """`klamm.core.seams.audit.BackgroundService`; see the module's rules."""

    def __init__(
        self,
        audits: Callable[[str], bool],
        window_ms: int,
        config: AuditConfig,
        logs: BrokerLogs,
        connect: Connect,
        clock_ms: Callable[[], int],
    ) -> None:
        self._audits = audits
        self._config = config
        self._logs = logs
        self._connect = connect
        self._identity = AuditIdentity(BROKER, GROUP, logs.host, "broker")
        self._window_ms = window_ms
        self._clock_ms = clock_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-broker-audit", daemon=True)

    def start(self) -> None:
        """Creates the audit topic; `KlammError` when it cannot."""
        self._logs.ensure_topic(self._config.topic, self._config.partitions, self._config.topic_configs())
        self._thread.start()

    def stop(self) -> None:
        """After a last pass, so that a broker that is stopped has counted what it stored."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        pause = interval = self._config.broker_interval_ms / 1000
        with self._connect(self._logs) as publish:
            follower = Follower(
                KlammRangeAudit(self._identity, publish, window_ms=self._window_ms, clock_ms=self._clock_ms),
                self._logs,
                self._audits,
            )
            last = False
            while not last:
                last = self._stopping.wait(pause)
                try:
                    while follower.advance() and not self._stopping.is_set():
                        pass
                    pause = interval
                except KlammError as error:
                    pause = min(MAX_BACKOFF_S, max(pause * 2, interval))
                    log.warning("broker audit: %s; trying again in %.1f s", error, pause)
                except Exception:  # an auditor that raises is passed over: the broker goes on
                    pause = MAX_BACKOFF_S
                    log.exception("broker audit: a pass failed; trying again in %.1f s", pause)


class Follower:
    """Where the tier is in each partition. Called from one thread."""

    def __init__(self, ranges: KlammRangeAudit, logs: BrokerLogs, audits: Callable[[str], bool]) -> None:
        self._ranges = ranges
        self._logs = logs
        self._audits = audits
        self._positions: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}

    def advance(self) -> bool:
        """One pass; whether there was anything to count. Raises what the log, the store or the publisher raised."""
        self._commit()
        self._follow_leadership()
        failed: KlammError | None = None
        for partition in list(self._positions):
            try:
                self._read(partition)
            except CoordinationError:
                raise
            except KlammError as error:
                log.warning("broker audit: %s: %s", partition, error)
                failed = error
        moved = bool(self._uncommitted)
        self._commit()
        if failed is not None and not moved:
            raise failed
        return moved

    def _follow_leadership(self) -> None:
        led = {partition for partition in self._logs.partitions() if self._audits(partition.topic)}
        lost = self._positions.keys() - led
        self._ranges.stop(lost)
        for partition in lost:
            del self._positions[partition]
        new = sorted(led - self._positions.keys())
        if not new:
            return
        stored = self._logs.offsets.fetch(GROUP, new)
        for partition in new:
            begin = stored[partition].offset if partition in stored else 0
            self._positions[partition] = begin
            self._ranges.start(partition, begin)

    def _read(self, partition: TopicPartition) -> None:
        position = self._positions[partition]
        read = self._logs.read(partition, position, CHUNK)
        if read.log_start_offset > position or read.high_watermark < position:
            self._jump(partition, read.log_start_offset)
            return
        for at, header in iter_headers(read.data):
            if header.next_offset > read.high_watermark:
                break
            if header.next_offset > position:
                self._count(partition, read.data, at, header, position)
                position = header.next_offset
        if position > self._positions[partition]:
            self._positions[partition] = self._uncommitted[partition] = position

    def _jump(self, partition: TopicPartition, start: int) -> None:
        """Retention was faster, or the topic was made anew: the ranges will not tile, and the comparison says so."""
        log.warning("broker audit: %s: offset %d is gone, going on at %d", partition, self._positions[partition], start)
        self._positions[partition] = start
        self._ranges.start(partition, start)

    def _count(self, partition: TopicPartition, data: bytes, at: int, header: BatchHeader, position: int) -> None:
        if header.is_control:
            return
        try:
            columns = decode_columns(data, at, header, self._logs.codecs, partition=partition)
        except KlammError as error:
            log.error("broker audit: %s; its records are counted as unknown", error)
            self._ranges.uncountable(partition, header.next_offset)
            return
        sizes = [len(k or b"") + len(v or b"") for k, v in zip(columns.keys, columns.values, strict=True)]
        first = next((n for n, offset in enumerate(columns.offsets) if offset >= position), len(sizes))
        self._ranges.count(partition, columns.offsets[first:], columns.timestamps_ms[first:], sizes[first:])

    def _commit(self) -> None:
        """Publish, then commit, as everywhere: a crash in between is made good by the next event with the same key."""
        if not self._uncommitted:
            return
        self._ranges.publish(self._uncommitted)
        now = {partition: CommittedOffset(to) for partition, to in self._uncommitted.items()}
        self._logs.offsets.commit(GROUP, now)
        self._ranges.committed(self._uncommitted)
        self._uncommitted = {}


def connect_to_self(topic: str) -> Connect:
    """A client of the broker itself: events go in by Produce, like anyone's."""

    @contextmanager
    def connect(logs: BrokerLogs) -> Iterator[Publish]:
        with ClusterClient(logs.bootstrap_servers, codecs=logs.codecs, client_id="klamm-audit") as client:
            yield ClusterPublisher(client, topic)

    return connect
