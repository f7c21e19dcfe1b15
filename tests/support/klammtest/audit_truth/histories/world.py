"""The models under the production code: time, a topic's logs and leaders, the coordination, the audit topic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.interfaces.audit import NO_WINDOW, AuditIdentity
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.interfaces.service import AppendListener, MirrorSource, R, ServiceRead
from klamm.core.plugins import plugin_host
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import rewrite_base
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers
from klamm.plugins.audit.comparison.tiers import LogEnd, Place
from klamm.plugins.audit.counting.broker_tier import GROUP, Follower
from klamm.plugins.audit.counting.ranges import KlammRangeAudit
from klamm.plugins.audit.event import BROKER, AuditEvent, decode_event

TOPIC: Final = "trips"
WINDOW_MS: Final = 600_000
LATENESS_MS: Final = 600_000
START_MS: Final = 1_700_000_400_000
BROKERS: Final = 3
CODECS: Final = plugin_host().codec_table()


def window_of(stamp_ms: int) -> int:
    return stamp_ms - stamp_ms % WINDOW_MS if stamp_ms >= 0 else NO_WINDOW


class Crash(BaseException):
    """The process ends here."""


class Row(NamedTuple):
    """A stored record. `source`: its producer's id, empty for a client that does not audit."""

    source: str
    window: int
    stamp_ms: int


@dataclass(slots=True)
class Batch:
    base: int
    end: int
    epoch: int
    data: bytes


@dataclass(slots=True)
class Log:
    """One replica's log. Replicas that have the same records share one object."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def copy(self) -> Log:
        return Log(list(self.batches), self.start)

    def epoch_end(self, epoch: int) -> int:
        return max((batch.end for batch in self.batches if batch.epoch <= epoch), default=self.start)


@dataclass(slots=True)
class Part:
    """One partition as the cluster has it. `rows` are the records of `log` by offset, also those that retention has
    deleted. `leader` -1: there is none."""

    number: int
    leader: int
    epoch: int = 0
    log: Log = field(default_factory=Log)
    rows: list[Row] = field(default_factory=list)

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(TOPIC, self.number)


class Led(NamedTuple):
    """A partition that a broker leads, as far as it knows."""

    epoch: int
    log: Log
    topic_id: UUID


class AuditTopic:
    """The audit topic: `events` in order, each with the time at which it was stored. `fails`: so many publications are
    refused; `keeps` says that the next refused one is stored all the same. `refuses`: all are, until it is False."""

    def __init__(self, now: Callable[[], int], encoded: bool) -> None:
        self.events: list[AuditEvent] = []
        self.refuses = False
        self.keeps = False
        """Events that are refused are stored all the same: their acknowledgement is lost."""
        self.doubles = False
        """Each event is stored twice."""
        self.retained_ms = -math.inf
        """When the first event that is left was stored; -inf if none was deleted."""
        self.lost: list[AuditEvent] = []
        self.deleted: list[AuditEvent] = []
        self.crash_after: int | None = None
        self.loses: Callable[[AuditEvent], bool] | None = None
        self._now = now
        self._encoded = encoded

    def publish(self, key: object, value: object) -> Future[None]:
        future: Future[None] = Future()
        event = self._event(value)
        if self.refuses:
            if self.keeps:
                self.events.append(event)
            future.set_exception(TimeoutError("planted"))
            return future
        if self.loses is not None and self.loses(event):
            self.loses = None
            self.lost.append(event)
        else:
            self.events += [event] * (1 + self.doubles)
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                self.crash_after = None
                raise Crash
        future.set_result(None)
        return future

    def delete_before(self, time_ms: int) -> None:
        """Deletes the events that were stored before, as `audit.retention.ms` does."""
        kept = [event for event in self.events if event.stored_ms >= time_ms]
        if kept and len(kept) < len(self.events):
            self.deleted += [event for event in self.events if event.stored_ms < time_ms]
            self.events, self.retained_ms = kept, kept[0].stored_ms

    def _event(self, value: Any) -> AuditEvent:
        if self._encoded:
            return decode_event(value, self._now())
        object.__setattr__(value, "stored_ms", self._now())  # `replace` takes a quarter of a history's time
        return cast("AuditEvent", value)


def passed_as_it_is(event: AuditEvent) -> tuple[object, AuditEvent]:
    """Replaces `AuditEvent.encode` where the bytes of events are not examined: encoding is most of what they cost."""
    return event.key, event


class World:
    """One topic in a cluster of three brokers. `away`: no broker reaches the coordination."""

    def __init__(self, chance: Random, partitions: int, *, encoded: bool) -> None:
        self.chance = chance
        self.now_ms = START_MS + chance.randrange(WINDOW_MS)
        self.audit = AuditTopic(lambda: self.now_ms, encoded)
        self.topic_id = UUID(int=chance.getrandbits(128))
        self.life = 0
        self.away = False
        self.store: dict[TopicPartition, CommittedOffset] = {}
        self.parts = [Part(n, chance.randrange(BROKERS)) for n in range(partitions)]
        self.arrived: dict[int, int] = {}
        """When the last record of a window was stored."""
        self.ended: list[tuple[UUID, list[Part]]] = []
        """The topics that had the name before."""
        self.brokers = [Broker(self, number) for number in range(BROKERS)]
        for part in self.parts:
            self.brokers[part.leader].led[part.place] = Led(part.epoch, part.log, self.topic_id)

    # -- the log

    def append(self, part: Part, rows: list[Row], mark: Headers = (), codec: str = "none") -> int:
        """Appends one batch, whose first record has the headers `mark`; returns its base offset."""
        base = part.log.end
        records = [(row.stamp_ms, None, b"v", mark if n == 0 else ()) for n, row in enumerate(rows)]
        data = bytearray(encode_batch(records, codec=CODECS.by_name(codec)))
        rewrite_base(data, 0, base, part.epoch)
        part.log.batches.append(Batch(base, base + len(rows), part.epoch, bytes(data)))
        part.rows += rows
        for row in rows:
            self.arrived[row.window] = self.now_ms
        if part.leader >= 0:
            self.brokers[part.leader].appended(part, bytes(data), base)
        return base

    def delete_before(self, part: Part, offset: int) -> None:
        """Deletes whole batches, as retention does; the log's end stays."""
        kept = [batch for batch in part.log.batches if batch.end > offset]
        if not kept:
            kept, offset = [Batch(part.log.end, part.log.end, part.epoch, b"")], part.log.end
        part.log.batches[:] = kept
        part.log.start = kept[0].base

    def ends(self) -> dict[str, dict[Place, LogEnd]]:
        ends = {}
        for part in self.parts:
            served = part.leader >= 0 and part.place in self.brokers[part.leader].led
            found = self.store.get(part.place)
            known = self.audit.retained_ms > -math.inf and found is not None and found.topic_id == self.topic_id
            counted = found.offset if known and found is not None else -1
            log = LogEnd(part.log.start, part.log.end, counted, self._kept(part)) if served else LogEnd(-1, -1)
            ends[Place(str(self.topic_id), part.number)] = log
        return {TOPIC: ends}

    def _kept(self, part: Part) -> int:
        epochs = [
            event.epoch
            for event in self.audit.events
            if event.tier == BROKER and event.topic_id == str(self.topic_id) and event.partition == part.number
        ]
        return part.log.epoch_end(max(epochs)) if epochs else -1

    # -- leaders

    def elect(self, part: Part, leader: int, *, keeps: int | None = None, told: bool = True) -> None:
        """Makes another broker (or the same) the leader, in the next epoch. `keeps`: the end of its log, which loses
        what is after it. `told`: the former leader learns it now; else it goes on with what it has."""
        former = self.brokers[part.leader] if part.leader >= 0 else None
        if former is not None:
            if told or former.number == leader:
                former.led.pop(part.place, None)
            else:
                former.led[part.place] = Led(part.epoch, part.log.copy(), self.topic_id)
        if keeps is not None:
            part.log = part.log.copy()
            part.log.batches = [batch for batch in part.log.batches if batch.end <= keeps]
            if not part.log.batches and part.log.start > 0:
                part.log.batches = [Batch(part.log.start, part.log.start, part.epoch, b"")]
            del part.rows[part.log.end :]
        part.leader, part.epoch = leader, part.epoch + 1
        if leader >= 0:
            self.brokers[leader].led[part.place] = Led(part.epoch, part.log, self.topic_id)

    def candidate(self, besides: int = -1) -> int:
        """Returns a broker that can become the leader; -1 if there is none."""
        able = [broker.number for broker in self.brokers if not broker.cut_off and broker.number != besides]
        return self.chance.choice(able) if able else -1

    def create_again(self) -> None:
        """Deletes the topic and creates it again; brokers that are cut off still have the old one."""
        self.ended.append((self.topic_id, self.parts))
        self.topic_id, self.life = UUID(int=self.chance.getrandbits(128)), self.life + 1
        self.parts = [Part(part.number, self.candidate()) for part in self.parts]
        for broker in self.brokers:
            if not broker.cut_off:
                broker.learn()


class Broker:
    """One broker's process: the production broker tier over what this broker knows. A `BrokerContext`."""

    host = "host"
    bootstrap_servers = "127.0.0.1:1"
    codecs = CODECS
    coordination: Coordination  # the audit uses none

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.led: dict[TopicPartition, Led] = {}
        self.cut_off = False
        self.crash_before_commit = False
        self.crash_after_commit = False
        self.start()

    def start(self) -> None:
        world = self.world
        self.listeners: list[AppendListener] = []
        identity = AuditIdentity("broker", GROUP, self.host, "broker")
        ranges = KlammRangeAudit(identity, world.audit.publish, window_ms=WINDOW_MS, clock_ms=lambda: world.now_ms)
        self.tier = Follower(ranges, self, bool)

    def learn(self) -> None:
        """The broker reaches the cluster, and knows the present leaders."""
        world = self.world
        self.cut_off = False
        mine = [part for part in world.parts if part.leader == self.number]
        self.led = {part.place: Led(part.epoch, part.log, world.topic_id) for part in mine}

    def turn(self) -> None:
        """A pass of the tier, and further ones until it has caught up; ends where it fails."""
        try:
            while self.tier.advance() and self.tier.behind:
                pass
        except Crash:
            self.crash_before_commit = self.crash_after_commit = False
            self.start()
        except (BrokerError, CoordinationError):
            pass
        except Exception as error:
            if type(error).__name__ != "DeliveryError":
                raise

    def appended(self, part: Part, data: bytes, base: int) -> None:
        """This broker has appended a batch as the leader, if it knows that it is."""
        if self.led.get(part.place, (-1, None))[0] == part.epoch:
            for listener in self.listeners:
                listener(part.place, memoryview(data), base, part.epoch, -1)

    # -- BrokerContext

    def on_append(self, listener: AppendListener) -> None:
        self.listeners.append(listener)

    def shared(self, name: str, make: Callable[[], R]) -> R:
        return make()

    def partitions(self) -> Mapping[TopicPartition, UUID | None]:
        return {partition: led.topic_id for partition, led in self.led.items()}

    def read(
        self,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> ServiceRead:
        found = self.led.get(partition)
        if found is None:
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{partition} is not led here")
        epoch, log, topic_id = found
        data = b""
        if max_bytes and log.start <= offset < log.end:
            data = b"".join(batch.data for batch in log.batches if batch.end > offset)
        return ServiceRead(data, log.end, log.start, log.end, topic_id, epoch)

    def epoch_end(self, partition: TopicPartition, leader_epoch: int) -> int:
        return self.led[partition].log.epoch_end(leader_epoch)

    def mirrored(self, _partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, MirrorSource | None]:
        return {}

    def set_aside(self, *_: object) -> None:
        return None

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        self._reach()
        store = self.world.store
        return {partition: store[partition] for partition in partitions if partition in store}

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        leader_epochs: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        self._reach()
        if self.crash_before_commit:
            raise Crash
        refused = {p for p, offset in offsets.items() if not self._leads(p, leader_epochs[p], offset.topic_id)}
        self.world.store |= {p: offset for p, offset in offsets.items() if p not in refused}
        if self.crash_after_commit:
            raise Crash
        return refused

    def _leads(self, partition: TopicPartition, epoch: int, topic_id: UUID | None) -> bool:
        part = self.world.parts[partition.partition]
        return topic_id == self.world.topic_id and (part.leader, part.epoch) == (self.number, epoch)

    def _reach(self) -> None:
        if self.cut_off or self.world.away:
            raise CoordinationError("planted")

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        return
