"""Applications of a history: they drive the production code as `klamm.Producer`, `klamm.Consumer` and `klamm load` do.

What they did is recorded beside it, and is the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import DeliveryError
from klamm.core.interfaces.audit import AuditIdentity, RangeCount, WindowCount
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.layout import AUDIT, OFFSETS, TopicLayout
from klamm.hadoop.lake.manifest import Manifest, PartitionRange, lake_origin, last_manifest
from klamm.hadoop.load.audit import LoadAudit, LoadAuditor
from klamm.plugins.audit.counting.origins import mark
from klamm.plugins.audit.counting.producer import KlammProducerAudit
from klamm.plugins.audit.counting.ranges import KlammRangeAudit

from .world import LATENESS_MS, TOPIC, WINDOW_MS, Crash, Part, Row, World, window_of

INTERVAL_S: Final = 240
FOREIGN: Final = ""
Offset = tuple[UUID, int, int]
"""Topic id, partition, offset."""


class Sender:
    """An application with `klamm.Producer`. `acknowledged` are its records by window, whatever it has told;
    `too_late` gets the windows of those that were acknowledged later than the lateness allows."""

    def __init__(self, world: World, name: str, too_late: set[int], ahead_ms: int = 0) -> None:
        self.world = world
        self.too_late = too_late
        self.name = name
        self.ahead_ms = ahead_ms
        self.alive = True
        self.closed = False
        self.acknowledged: Counter[int] = Counter()
        self.died_ms = -1
        self.sent: set[int] = set()
        self.in_flight: list[tuple[tuple[tuple[int, int, int], ...], bool, Sequence[int]]] = []
        """Batches whose outcome the application has not got yet: (counts, are they acknowledged, timestamps)."""
        self.identity = AuditIdentity("producer", name, "host", "app")
        self.audit = KlammProducerAudit(
            self.identity, world.audit.publish, window_ms=WINDOW_MS, interval_s=INTERVAL_S,
            clock_ms=lambda: world.now_ms + ahead_ms, clock=lambda: world.now_ms / 1000,
        )  # fmt: skip
        self.next_ms = world.now_ms

    def turn(self) -> None:
        """What its audit's thread does by now: it publishes when it is woken, and after each interval."""
        audit = self.audit
        if not self.alive:
            return
        heartbeat = False
        if self.world.now_ms >= self.next_ms:
            heartbeat = audit._thread is not None and not audit._wake.is_set()
        elif not audit._wake.is_set():
            return
        audit._wake.clear()
        self.next_ms = self.world.now_ms + INTERVAL_S * 1000
        try:
            audit._send(final=False, heartbeat=heartbeat)
        except DeliveryError:
            pass
        except Crash:
            self.kill()

    def send(
        self, part: Part, stamps: Sequence[int], *, stored: int = 1, acknowledged: bool = True, slow: bool = False
    ) -> bool:
        """Sends one batch, which the log stores `stored` times. `slow`: the application gets the outcome later.
        Returns False if the audit lets it wait."""
        if not self.audit.begin(TOPIC):
            self.turn()
            if not self.alive or not self.audit.begin(TOPIC):
                return False
        windows = Counter(map(window_of, stamps))
        counted = tuple((start, count, count) for start, count in windows.items())
        headers = mark(self.identity, part.place, counted, WINDOW_MS)
        for start, count, size in counted:
            self.audit.attempted(TOPIC, start, size, count)
        rows = [Row(self.name, window_of(stamp), stamp) for stamp in stamps]
        for _ in range(stored):
            self.world.append(part, rows, headers)
        self.sent |= windows.keys()
        self.audit.end(TOPIC)
        self.in_flight.append((counted, acknowledged, stamps))
        if not slow:
            self.hear()
        return True

    def hear(self) -> None:
        """The application gets the outcomes. A record that is acknowledged after the lateness is too late."""
        for counted, acknowledged, stamps in self.in_flight:
            allowed_ms = self.world.now_ms - LATENESS_MS
            self.too_late |= {window_of(stamp) for stamp in stamps if 0 <= stamp < allowed_ms}
            for start, count, size in counted:
                if acknowledged:
                    self.acknowledged[start] += count
                    self.audit.acknowledged(TOPIC, start, size, count)
                else:
                    self.audit.failed(TOPIC, count)
        self.in_flight.clear()

    def kill(self) -> None:
        if self.alive:
            self.alive, self.died_ms = False, self.world.now_ms

    def close(self) -> None:
        """`Producer.close`; if the audit topic refuses the last event, the producer looks killed."""
        if not self.alive:
            return
        self.hear()
        try:
            self.audit.close()
            self.closed = True
        except (DeliveryError, Crash):
            pass
        self.kill()


class NoThread:
    """Replaces the thread of `KlammProducerAudit`, whose work `Sender.turn` does in virtual time."""

    def __init__(self, **_: object) -> None:
        return

    def start(self) -> None:
        return

    def join(self, _: float) -> None:
        return


class Group:
    """A consumer group of one member. `began` is where it began to read, by topic id and partition; `received` are the
    records that a member was given; `committed` survives members."""

    def __init__(self, world: World, name: str, *, latest: bool = False) -> None:
        self.world = world
        self.name = name
        self.latest = latest
        self.stopped = False
        self.ended = False
        """Its end event is stored."""
        self.zombies: list[tuple[KlammRangeAudit, UUID, int, dict[TopicPartition, int]]] = []
        """Members that are suspended: their counts, their epoch, and up to where they have read."""
        self.epoch = 0
        self.committed: dict[tuple[UUID, int], int] = {}
        self.began: dict[tuple[UUID, int], int] = {}
        self.received: set[Offset] = set()
        self.uncommitted: set[Offset] = set()
        """Of these the ones that no commit followed: another member is given them again."""
        self.passed: dict[tuple[UUID, int], int] = {}
        """Up to where a member published that the group had read, before its commit was refused. The next member tells
        that it begins below."""
        self.read_on: set[Offset] = set()
        """Offsets behind a cut that were counted before it. The group was below, and does not find the cut."""
        self.set_back: set[Offset] = set()
        self.jumped: set[Offset] = set()
        """Records that `auto.offset.reset` passed over: they were deleted, or the group had committed nothing."""
        self.furthest: dict[tuple[UUID, int], int] = {}
        """Where it stopped in each partition, if nothing had set it back."""
        self.counts_from: dict[tuple[UUID, int], int] = {}
        """Where the range of the present member begins."""
        self.published: dict[tuple[UUID, int], int] = {}
        self.told: dict[tuple[UUID, int], int] = {}
        """Up to where any member has told its counts, committed or not, since the last one told that it begins."""
        self.begun: dict[tuple[UUID, int], int] = {}
        """The epoch of that one."""
        self.untold: set[Offset] = set()
        """Records whose counts were lost with a member, because the audit topic had refused them."""
        self.positions: dict[int, int] = {}
        self.topic_id = world.topic_id
        self.join()

    def join(self) -> None:
        """A new member owns all partitions; what the one before it had not committed is read again."""
        identity = AuditIdentity("consumer", self.name, "host", "app")
        world = self.world
        self.epoch += 1
        for key, committed in self.committed.items():
            begin = self.published.get(key, self.began.get(key, committed))
            self.untold |= {(*key, offset) for offset in range(begin, committed)}
            if self.counts_from.get(key, committed) < committed:  # its range began below the commit, and goes past it
                self.untold |= {(*key, offset) for offset in range(committed, begin)}
            self.set_back |= {(*key, offset) for offset in range(committed, self.furthest.get(key, 0))}
            self.published[key] = committed
        self.topic_id = world.topic_id
        self.positions = {}
        self.ranges = KlammRangeAudit(identity, world.audit.publish, window_ms=WINDOW_MS, clock_ms=lambda: world.now_ms)

    def _place(self, part: Part) -> None:
        """Finds where to begin: at the committed offset, else by `auto.offset.reset`."""
        key = self.world.topic_id, part.number
        committed = self.committed.get(key)
        again = {at for at in self.uncommitted if at[:2] == key}
        if committed is not None and committed == self.told.get(key):
            self.uncommitted -= {at for at in again if at[2] < committed}  # somebody committed for the refused member
            again &= self.uncommitted
        self.received -= again
        self.uncommitted -= again
        if committed is None:
            begin = part.log.end if self.latest else part.log.start
            self.jumped |= {(*key, offset) for offset in range(self.began.get(key, begin), begin)}
            self._start(part, begin, reset=True)
        else:
            self._start(part, committed)
            if committed < part.log.start or committed > part.log.end:
                self._start(part, self._reset(part, committed), reset=True)

    def _start(self, part: Part, offset: int, *, reset: bool = False) -> None:
        key = self.topic_id, part.number
        self.positions[part.number] = self.counts_from[key] = offset
        self.began[key] = min(offset, self.began.get(key, offset))
        self.ranges.start(part.place, offset, topic_id=self.topic_id, epoch=self.epoch, reset=reset)
        with suppress(DeliveryError):  # an audit that fails is passed over
            self.ranges.begin([part.place])
            self.passed.pop(key, None)
            self.told[key] = min(offset, self.told.get(key, 0))
            self.begun[key] = self.epoch

    def _reset(self, part: Part, position: int) -> int:
        """`auto.offset.reset` after the log has lost the position."""
        begin = part.log.end if self.latest else part.log.start
        key = self.world.topic_id, part.number
        if begin > position:
            self.jumped |= {(*key, offset) for offset in range(position, begin)}
            told = min(self.committed.get(key, self.began.get(key, position)), self.counts_from.get(key, position))
            self.untold |= {(*key, offset) for offset in range(told, begin)}  # its counts start again
        counted = self.counts_from.get(key, 0)
        self.set_back |= {(*key, offset) for offset in range(begin, counted)}  # after a seek below the log's start
        return begin

    def poll(self, part: Part, records: int) -> None:
        if self.topic_id != self.world.topic_id:  # the consumer finds that the topic was created again
            self.join()
        if part.number not in self.positions:
            self._place(part)
        position = self.positions[part.number]
        if position < part.log.start or position > part.log.end:
            position = self._reset(part, position)
            self._start(part, position, reset=True)
        end = min(position + records, part.log.end)
        if end <= position:
            return
        rows = part.rows[position:end]
        self.ranges.count(part.place, range(position, end), [row.stamp_ms for row in rows], [1] * len(rows))
        first = max(position, self.counts_from[self.topic_id, part.number])  # below it is a replay (R10)
        given = {(self.topic_id, part.number, offset) for offset in range(first, end)}
        self.uncommitted |= given - self.received
        self.received |= given
        self.positions[part.number] = end

    def commit(self, *, ahead: int = 0, refused: bool = False) -> None:
        """Commits the positions; `ahead`: the application commits records that it has not got. `refused`: the commit
        does not succeed, though its events are stored."""
        if self.topic_id != self.world.topic_id:
            return
        ends = {}
        for part in self.world.parts:
            if part.number in self.positions:
                ends[part.place] = min(self.positions[part.number] + ahead, part.log.end)
        if not ends:
            return
        try:
            self.ranges.publish(ends)
            for place, end in ends.items():
                for offsets in (self.published, self.told):
                    key = self.topic_id, place.partition
                    offsets[key] = max(end, offsets.get(key, 0))
            told = True
        except DeliveryError:
            told = False  # an audit that fails is passed over
            for place, end in ends.items() if self.world.audit.keeps else ():  # the events are stored all the same
                key = self.topic_id, place.partition
                self.told[key] = max(end, self.told.get(key, 0))
        except Crash:  # after the first event
            event = self.world.audit.events[-1]
            key = self.topic_id, event.partition or 0
            self.told[key] = self.passed[key] = max(event.to_offset, self.told.get(key, 0))
            self.join()
            return
        if refused:
            self.passed |= {(self.topic_id, place.partition): end for place, end in ends.items()}
            return
        self.uncommitted = {at for at in self.uncommitted if at[2] >= ends.get(TopicPartition(TOPIC, at[1]), 0)}
        for place, end in ends.items():
            key = self.topic_id, place.partition
            self.committed[key] = end
            self.furthest[key] = max(end, self.furthest.get(key, 0))
            self.counts_from[key] = max(end if told else 0, self.counts_from[key])
            if told:
                self.passed.pop(key, None)
            self.positions[place.partition] = max(self.positions[place.partition], end)
        self.ranges.committed(ends)

    def suspend(self) -> None:
        """Another member takes over; this one goes on later, and does not know it yet."""
        ends = {part.place: self.positions[part.number] for part in self.world.parts if part.number in self.positions}
        if self.topic_id == self.world.topic_id and ends:
            self.zombies.append((self.ranges, self.topic_id, self.epoch, ends))
        self.join()

    def wake(self) -> None:
        """A suspended member publishes what it has read; its commit is refused."""
        if self.zombies:
            ranges, topic_id, epoch, ends = self.zombies.pop()
            with suppress(DeliveryError):
                ranges.publish(ends)
                for place, end in ends.items():
                    key = topic_id, place.partition
                    if self.begun.get(key, 0) <= epoch:  # else its range is void
                        self.told[key] = max(end, self.told.get(key, 0))
                        self.passed[key] = max(end, self.passed.get(key, 0))

    def end(self) -> None:
        """`klamm groups delete`; without the event it is compared on, and `klamm audit retire` sends it."""
        self.stopped = True
        with suppress(DeliveryError):
            self.ranges.end([TOPIC], "the group was deleted")
            self.ended = True

    def renamed(self, name: str) -> Group:
        """Ends it; returns the group that goes on with its offsets under another name."""
        group = Group(self.world, name)
        group.committed = {key: offset for key, offset in self.committed.items() if key[0] == self.world.topic_id}
        self.end()
        return group

    def seek(self, part: Part, offset: int) -> None:
        """The application moves its position, back or forward."""
        if part.number not in self.positions or self.topic_id != self.world.topic_id:
            return
        self.ranges.seek(part.place, offset)
        self.positions[part.number] = offset

    def cut(self, part: Part, end: int) -> None:
        """The log has lost what is after `end`; the consumer finds it by the leader epoch, and goes on there."""
        key = self.world.topic_id, part.number
        counted = {at for at in self.received if at[:2] == key and at[2] >= end}
        counts_from = self.counts_from.get(key, end)
        self.received -= counted
        self.uncommitted -= counted
        for offsets in (self.committed, self.published, self.furthest, self.told):
            if offsets.get(key, 0) > end:
                offsets[key] = end
        if self.positions.get(part.number, 0) > end:
            self._start(part, end)
        elif counted:
            self.counts_from[key] = min(end, counts_from)
            self.read_on |= counted | {(*key, at) for at in range(end, counts_from)}  # it takes these for a replay

    def set_offset(self, part: Part, offset: int) -> None:
        """`klamm groups reset` of a group without members; the next member begins there."""
        key = self.world.topic_id, part.number
        committed = self.committed.get(key)
        if committed is None:
            return
        if offset < committed:
            self.set_back |= {(*key, at) for at in range(offset, committed)}
        self.committed[key] = offset
        self.join()


class Lakes:
    """The file system of the lakes: a `Publisher` as far as the audit of loads needs one."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self.contents.get(path)

    def names(self, path: str) -> list[str]:
        prefix = f"{path}/"
        return sorted({name[len(prefix) :].partition("/")[0] for name in self.contents if name.startswith(prefix)})

    def make(self, path: str) -> None:
        return

    def write(self, path: str, data: bytes) -> None:
        self.contents[path] = data

    def move(self, source: str, target: str, *, copied: bool = False) -> None:
        for path in [path for path in self.contents if path.startswith(f"{source}/")]:
            self.contents[target + path[len(source) :]] = self.contents[path]
            if not copied:
                del self.contents[path]

    def remove(self, source: str) -> None:
        for path in [path for path in self.contents if path.startswith(f"{source}/")]:
            del self.contents[path]


@dataclass
class Content:
    """What a lake holds after a load: its rows by offset, where the next load begins, and the offsets that were deleted
    before it loaded them."""

    loaded: Counter[Offset] = field(default_factory=Counter)
    ends: dict[int, int] = field(default_factory=dict)
    skipped: set[Offset] = field(default_factory=set)

    def copy(self) -> Content:
        return Content(Counter(self.loaded), dict(self.ends), set(self.skipped))


class Lake:
    """One topic's directory, filled by the loads of one sink as `klamm load` does it, without Spark. `history` has its
    content after each load. `replaced`: another lake was begun in its directory; `retired`: its end is told."""

    def __init__(self, world: World, files: Lakes, root: str, sink: str) -> None:
        self.world = world
        self.files = files
        self.layout = TopicLayout(root, TOPIC)
        self.sink = sink
        self.id = ""
        """That of its newest load."""
        self.stopped = self.replaced = self.retired = False
        self.topic_id: UUID | None = None
        self.told_directory = ""
        self.forgotten: list[tuple[str, str]] = []
        """Ids that it had, and in which directories: their loads were all removed by hand after it was moved."""
        self.former: Lake | None = None
        """The lake in whose place it was begun."""
        self.history: list[Content] = [Content()]
        self.told = 0
        """The last load whose event is stored."""
        publisher: Any = files
        audit: Any = AuditOfLoads(world)
        self._publisher = publisher
        self.auditor = LoadAuditor(audit, sink, _no_client, publisher, watermarks=False)

    @property
    def now(self) -> Content:
        return self.history[-1]

    @property
    def loads(self) -> int:
        return len(self.history) - 1

    def load(self, *, loses: bool = False, doubles: bool = False, crash: bool = False) -> bool:
        """Makes one load of everything that is new. `loses`, `doubles`: one of its rows. `crash`: it ends before its
        audit event is sent; the next load sends it. Returns False if there is nothing new."""
        self.send()
        world = self.world
        if not self.loads:
            self.topic_id = world.topic_id
        if self.topic_id is None or self.topic_id != world.topic_id:
            return False  # `klamm load` refuses it
        content = self.now.copy()
        spoil = 0 if loses else 2 if doubles else 1
        counts, lost = [], []
        for part in world.parts:
            begin, end = content.ends.get(part.number, 0), part.log.end
            if end < begin:
                return False  # the log was cut, and `klamm load` refuses it
            start, key = max(begin, part.log.start), (self.topic_id, part.number)
            if start > begin:
                lost.append(RangeCount(part.place, begin, start, (), self.topic_id))
                content.skipped |= {(*key, offset) for offset in range(begin, start)}
            windows: Counter[int] = Counter()
            for offset in range(start, end):
                windows[part.rows[offset].window] += spoil
                content.loaded[(*key, offset)] += spoil
                spoil = 1
            held = tuple(WindowCount(window, count, count) for window, count in sorted(windows.items()))
            counts.append(RangeCount(part.place, start, end, held, self.topic_id))
            content.ends[part.number] = end
        if self.loads and content.ends == self.now.ends:
            return False
        self._publish(content, counts, lost)
        if not crash:
            self.send()
        return True

    def _publish(self, content: Content, counts: list[RangeCount], lost: list[RangeCount]) -> None:
        chance, number, job = self.world.chance, self.loads + 1, f"{self.world.chance.getrandbits(64):x}"
        last = last_manifest(self._publisher, self.layout)
        lake = lake_origin(self._publisher, self.layout, last, f"{chance.getrandbits(64):x}")
        partitions = {number: PartitionRange(start=0, end=end) for number, end in content.ends.items()}
        manifest = Manifest(
            topic=TOPIC, topic_id=self.topic_id, load=number, job_id=job, created_ms=0, rows=0, files=0,
            partitions=partitions, lake=lake,
        )  # fmt: skip
        audit = LoadAudit.of(self.sink, (TOPIC, self.topic_id), number, job, WINDOW_MS, counts, lost)
        if self.id != lake.id:
            if self.id and self.told_directory != self.layout.base and self.id not in lake.replaces:
                self.forgotten.append((self.id, self.told_directory))
            self.id, self.told = lake.id, 0
        if last is None or last.lake != lake:
            with suppress(DeliveryError, Crash):
                self.auditor.announce(TOPIC, self.topic_id, min(partitions), lake)
        self.files.write(f"{self.layout.load(number)}/{OFFSETS}", manifest.to_bytes())
        self.files.write(f"{self.layout.load(number)}/{AUDIT}", audit.to_bytes())
        self.history.append(content)
        self.told_directory = self.layout.base
        if self.former is not None and self.former.told_directory == self.layout.base:
            self.former.replaced = True  # R6: else the audit does not know that it was moved here before

    def send(self) -> None:
        with suppress(DeliveryError, Crash):
            self.auditor.send_missing(self.layout)
            if self.told_directory == self.layout.base:  # else the next load, which gives it an id, tells all
                self.told = self.loads

    def remove_last(self, loads: int) -> None:
        """Somebody removes the newest loads by hand; their offsets are loaded again."""
        if self.loads > loads and self.topic_id == self.world.topic_id and self.told == self.loads:
            for _ in range(loads):
                self.files.remove(self.layout.load(self.loads))
                self.history.pop()
            self.told = self.loads
            self.load()

    def retire(self) -> None:
        """`klamm audit retire hadoop/SINK --lake ID`."""
        ranges = AuditOfLoads(self.world).ranges(AuditIdentity("hadoop", self.sink, "host", "app"), None)
        with suppress(DeliveryError):
            ranges.end([TOPIC], "it is not loaded any more", self.id)
            self.retired = True

    def begin_anew(self) -> Lake:
        """What `klamm load` names as a remedy: the directory is moved away, and loaded again from the start."""
        made = Lake(self.world, self.files, self.layout.root, self.sink)
        made.former, self.stopped = self, True
        self.move(f"{self.layout.root}.old")
        return made

    def move(self, root: str) -> None:
        target = TopicLayout(root, TOPIC)
        self.files.move(self.layout.base, target.base)
        self.layout = target

    def copy(self, root: str) -> Lake:
        """Returns a lake in a copy of the directory, which loads of the same sink fill."""
        made = Lake(self.world, self.files, root, self.sink)
        self.files.move(self.layout.base, made.layout.base, copied=True)
        made.history, made.topic_id = [content.copy() for content in self.history], self.topic_id
        return made


@contextmanager
def _no_client() -> Any:
    yield None


class AuditOfLoads:
    """`klamm.core.interfaces.audit.Audit` for a `LoadAuditor`."""

    topic = "__klamm_audit"
    window_ms = WINDOW_MS

    def __init__(self, world: World) -> None:
        self.world = world

    def audits(self, topic: str) -> bool:
        return topic == TOPIC

    def ranges(self, identity: AuditIdentity, _: object) -> KlammRangeAudit:
        publish: Any = self.world.audit.publish
        return KlammRangeAudit(identity, publish, window_ms=WINDOW_MS, clock_ms=lambda: self.world.now_ms)
