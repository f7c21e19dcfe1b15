"""Audit parts in memory: an audit topic, which keeps what auditors publish and can refuse it, and a broker's logs, as
the broker tier of the audit reads them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID, uuid4

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.audit import AuditIdentity
from klamm.core.interfaces.codec import Buffer
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.interfaces.service import AppendListener, MirrorSource, R, ServiceRead
from klamm.core.plugins import plugin_host
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader, rewrite_base
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers
from klamm.plugin import NO_WINDOW
from klamm.plugins.audit.comparison.compare import TopicAudit
from klamm.plugins.audit.comparison.tiers import State, TierKey
from klamm.plugins.audit.counting import origins
from klamm.plugins.audit.counting.broker_tier import GROUP as AUDIT_GROUP
from klamm.plugins.audit.counting.broker_tier import Follower
from klamm.plugins.audit.counting.ranges import KlammRangeAudit
from klamm.plugins.audit.event import FOREIGN, UNATTRIBUTED, AuditEvent, EventWindow, decode_event
from klamm.plugins.audit.reader import AuditReader

FLIGHTS = TopicPartition("flights", 0)
WINDOW_MS = 600_000
CODECS = plugin_host().codec_table()


class AuditTopic:
    """A `klamm.core.interfaces.audit.Publish`. `events` are the stored ones; the next `fail` publications are
    refused."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.fail = 0
        self.store_failed = False
        self._changed = threading.Condition()

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        future: Future[None] = Future()
        if self.fail > 0:
            self.fail -= 1
            if self.store_failed:
                self.events.append(decode_event(value))
            future.set_exception(TimeoutError("no acknowledgement"))
            return future
        with self._changed:
            self.events.append(decode_event(value))
            self._changed.notify_all()
        future.set_result(None)
        return future

    def wait_for(self, wanted: Callable[[AuditEvent], bool], timeout_s: float) -> None:
        """Waits until a stored event satisfies `wanted`."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.events)), timeout_s)


class MemoryOffsets:
    """Committed offsets in memory; the next `fail` commits are refused."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.fail = 0

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if self.fail:
            self.fail -= 1
            raise CoordinationError("the coordination is away")
        self.offsets.update(offsets)


class MemoryLogs:
    """A `BrokerContext` in memory."""

    host = "host"
    bootstrap_servers = "127.0.0.1:1"
    codecs = CODECS
    coordination: Coordination  # the audit uses none

    def __init__(self) -> None:
        self.offsets = MemoryOffsets()
        self.batches: dict[TopicPartition, list[bytearray]] = {FLIGHTS: []}
        self.ends = {FLIGHTS: 0}
        self.starts = {FLIGHTS: 0}
        self.topics: list[str] = []
        self.topic_id: UUID | None = UUID(int=1)
        self.leader_epoch = 0
        self.source: MirrorSource | None = None
        """That of all partitions, which are mirrors then."""
        self.aside: list[bytearray] = []
        """The batches that the last `cut` has removed, as they are set aside."""
        self.reads = 0
        """Reads of data."""
        self.listeners: list[AppendListener] = []

    def on_append(self, listener: AppendListener) -> None:
        self.listeners.append(listener)

    def shared(self, name: str, make: Callable[[], R]) -> R:
        return make()

    def append(
        self,
        timestamps: Sequence[int],
        codec: str = "zstd",
        headers: Headers = (),
        producer: str = "",
        each: Sequence[Headers] = (),
    ) -> None:
        """Appends one batch, of an audited `producer` if one is given. `headers` are those of each record except the
        first ones, whose headers are in `each`."""
        if producer:
            each = [mark_of(producer, timestamps)]
        more = [*each, *[headers] * (len(timestamps) - len(each))]
        records = [(stamp, b"key", b"value", own) for stamp, own in zip(timestamps, more, strict=True)]
        batch = bytearray(encode_batch(records, codec=CODECS.by_name(codec)))
        rewrite_base(batch, 0, self.ends[FLIGHTS], self.leader_epoch)
        self.batches[FLIGHTS].append(batch)
        base = self.ends[FLIGHTS]
        self.ends[FLIGHTS] += len(records)
        for listener in self.listeners:
            listener(FLIGHTS, memoryview(bytes(batch)), base, self.leader_epoch, -1)

    def partitions(self) -> dict[TopicPartition, UUID | None]:
        return dict.fromkeys([*self.batches, TopicPartition("__klamm_audit", 0)], self.topic_id)

    def read(
        self,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> ServiceRead:
        wanted = [b for b in self.batches[partition] if BatchHeader.parse(b).next_offset > offset] if max_bytes else []
        data = b"".join(wanted)
        self.reads += bool(data)
        end = self.ends[partition]
        return ServiceRead(data, end, self.starts[partition], end, self.id_read(), self.leader_epoch)

    def id_read(self) -> UUID | None:
        """The topic id of the log that is read."""
        return self.topic_id

    def delete_before(self, offset: int) -> None:
        self.batches[FLIGHTS] = [b for b in self.batches[FLIGHTS] if BatchHeader.parse(b).base_offset >= offset]
        self.starts[FLIGHTS] = offset

    def create_again(self) -> None:
        """Deletes the topic and creates it again with another id."""
        self.topic_id, self.batches, self.ends, self.starts = uuid4(), {FLIGHTS: []}, {FLIGHTS: 0}, {FLIGHTS: 0}

    def cut(self, offset: int) -> None:
        """Truncates the log and elects another leader."""
        kept = [batch for batch in self.batches[FLIGHTS] if BatchHeader.parse(batch).next_offset <= offset]
        self.aside = self.batches[FLIGHTS][len(kept) :]
        self.batches[FLIGHTS], self.ends[FLIGHTS] = kept, offset
        self.leader_epoch += 1

    def epoch_end(self, partition: TopicPartition, leader_epoch: int) -> int:
        headers = [BatchHeader.parse(batch) for batch in self.batches[partition]]
        later = (h.base_offset for h in headers if h.leader_epoch > leader_epoch)
        return next(later, self.ends[partition])

    def mirrored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, MirrorSource | None]:
        return {} if self.source is None else dict.fromkeys(partitions, self.source)

    def set_aside(self, partition: TopicPartition, offset: int, end: int, leader_epoch: int) -> Buffer | None:
        below = [h for h in map(BatchHeader.parse, self.aside) if h.base_offset < end]
        return b"".join(self.aside) if below and below[-1].leader_epoch == leader_epoch else None

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        return {
            partition: self.offsets.offsets[partition] for partition in partitions if partition in self.offsets.offsets
        }

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        leader_epochs: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        refused = {p for p, offset in offsets.items() if (leader_epochs[p], offset.topic_id) != self.fence()}
        self.offsets.commit({p: offset for p, offset in offsets.items() if p not in refused})
        return refused

    def fence(self) -> tuple[int, UUID | None]:
        """Leader epoch and topic id as the coordination has them."""
        return self.leader_epoch, self.topic_id

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self.topics.append(name)


def read_audit_log(client: ClusterClient, topic: str) -> AuditReader:
    """Returns a reader that has read the audit topic. Raises `KlammError` if it does not exist or a partition
    cannot be read."""
    reader = AuditReader(client, topic)
    reader.read()
    return reader


def mark_of(producer: str, timestamps: Sequence[int], partition: TopicPartition = FLIGHTS) -> Headers:
    """Returns the headers that a producer adds to the first record of a batch of `MemoryLogs`."""
    windows = Counter(stamp - stamp % WINDOW_MS if stamp >= 0 else -1 for stamp in timestamps)
    counted = tuple((start, records, 8 * records) for start, records in windows.items())
    return origins.mark(identity("producer", producer), partition, counted, WINDOW_MS)


def identity(tier: str, owner: str = "owner") -> AuditIdentity:
    return AuditIdentity(tier, owner, "host", "tests")


def event(tier: str, owner: str, begin: int, end: int, windows: dict[int, int], **more: Any) -> AuditEvent:
    """Returns an event of partition 0 of `flights` (of no partition for producers).

    `windows` gives records by window number, -1 for those without a timestamp. The
    broker's events have `sources` ({source: {window number:
    records}}), or unknown producers.
    """
    fields: dict[str, Any] = {
        "partition": None if tier == "producer" else 0,
        "host": "host",
        "application": "tests",
        "topic": "flights",
        "window_ms": WINDOW_MS,
        "interval_ms": 1000 if tier == "producer" else 0,
        "final": tier == "producer",
    }
    attempted = tier == "producer"
    sources = more.pop("sources", {UNATTRIBUTED if tier == "broker" else FOREIGN: windows})
    counts = tuple(
        EventWindow(
            max(number * WINDOW_MS, NO_WINDOW), n, 10 * n, n if attempted else 0, 10 * n if attempted else 0, source
        )
        for source, held in sources.items()
        for number, n in held.items()
    )
    return AuditEvent(
        tier=tier,
        owner=owner,
        from_offset=begin,
        to_offset=end,
        windows=counts,
        **(fields | more),
    )


def readers_of(events: Iterable[AuditEvent]) -> tuple[TierKey, ...]:
    """Returns the groups and lakes of these events, to be expected."""
    return tuple(sorted({TierKey(each.tier, each.owner) for each in events if each.tier in ("consumer", "hadoop")}))


def follower(logs: MemoryLogs, topic: AuditTopic) -> Follower:
    """The audit's broker tier over logs in memory; it counts topics that are not internal."""
    ranges = KlammRangeAudit(identity("broker", AUDIT_GROUP), topic, window_ms=WINDOW_MS, clock_ms=lambda: 1)
    return Follower(ranges, logs, lambda name: not name.startswith("__"))


def states(audit: TopicAudit, tier: TierKey) -> list[State]:
    """Returns the state of one tier in each window, in order."""
    return [window.cells[tier].state for window in audit.windows]
