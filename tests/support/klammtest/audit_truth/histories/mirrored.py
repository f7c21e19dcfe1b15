"""Random histories of a mirrored topic: the production code counts at both clusters and compares.

The source appends, loses its last records in an unclean election, deletes its first ones, and is created again; the
mirror copies, is cut, has gaps, restarts between event and commit, and takes the new topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Final
from uuid import UUID

from klamm.core.errors import KlammError
from klamm.core.interfaces.service import MirrorSource
from klamm.core.records.header import BatchHeader
from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.mirrors import at_source
from klamm.plugins.audit.comparison.tiers import State, TierKey
from klamm.plugins.audit.counting.broker_tier import GROUP, Follower
from klamm.plugins.audit.counting.ranges import KlammRangeAudit
from klamm.plugins.audit.event import MIRROR, AuditEvent
from klammtest.audits import FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, event, identity

STEPS: Final = 25
WINDOWS: Final = 4
BROKER_TIER: Final = TierKey("broker", GROUP)
Sent = tuple[str, int, int]
"""A record as it was sent: its producer, empty for a client that does not audit, its window, and a number."""


@dataclass
class Cluster:
    """One of the two: its log, its tier, and by topic id and offset the records that it has, or had at the end."""

    logs: MemoryLogs
    tier: Follower
    rows: dict[UUID | None, dict[int, Sent]]
    counted: set[Sent]

    @property
    def here(self) -> dict[int, Sent]:
        return self.rows.setdefault(self.logs.topic_id, {})

    def cut(self, offset: int) -> list[Sent]:
        epoch = self.logs.leader_epoch
        self.logs.cut(offset)
        self.logs.leader_epoch = epoch
        self.logs.starts[FLIGHTS] = min(self.logs.starts[FLIGHTS], offset)
        return [self.here.pop(at) for at in sorted(self.here) if at >= offset]

    def everything(self) -> set[Sent]:
        return {sent for rows in self.rows.values() for sent in rows.values()}


class MirrorHistory:
    def __init__(self, seed: str) -> None:
        self.chance = Random(seed)
        self.wrong: list[str] = []
        self.states: Counter[tuple[str, str]] = Counter()
        """The cells of the mirror at the end, as in `Score`."""
        self.checks = 0
        self.topic = AuditTopic()
        self.now_ms = 1
        self.sent: list[Sent] = []
        self.lost: list[Sent] = []
        """What the mirror had counted and has lost."""
        self.unsure = False
        """A cut can be unknown: what was cut is not here, or two cuts came between two passes."""
        self.cut_since_pass = False
        self.steps: list[str] = []
        self.source = self.cluster()
        self.mirror = self.cluster()
        self.mirror.logs.source = MirrorSource(self.id_at_source())
        self.send()
        self.copy()
        self.count()

    def cluster(self) -> Cluster:
        logs = MemoryLogs()
        logs.topic_id = UUID(int=self.chance.getrandbits(128))
        return Cluster(logs, self.follower(logs), {}, set())

    def follower(self, logs: MemoryLogs) -> Follower:
        ranges = KlammRangeAudit(
            identity("broker", GROUP), self.topic, window_ms=WINDOW_MS, clock_ms=lambda: self.now_ms
        )
        return Follower(ranges, logs, lambda name: name == FLIGHTS.topic)

    def id_at_source(self) -> UUID:
        found = self.source.logs.topic_id
        assert found is not None
        return found

    @property
    def is_replaced(self) -> bool:
        mirrored = self.mirror.logs.source
        return mirrored is None or mirrored.topic_id != self.source.logs.topic_id

    @property
    def is_diverged(self) -> bool:
        """True while the mirror has records that the source has lost, and is not cut yet."""
        mirrored = self.mirror.logs.source
        there = self.source.rows.get(mirrored.topic_id if mirrored is not None else None, {})
        return any(there.get(at) != row for at, row in self.mirror.here.items())

    # -- steps

    def send(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            producer = self.chance.choice(("p", "p", "q", ""))
            window = self.chance.randrange(WINDOWS)
            windows = [min(window + self.chance.randint(0, 1), WINDOWS - 1) for _ in range(self.chance.randint(1, 4))]
            self.append([(producer, each, len(self.sent) + n) for n, each in enumerate(windows)])
            self.sent += list(self.source.here.values())[-len(windows) :]

    def append(self, records: list[Sent]) -> None:
        logs = self.source.logs
        for n, record in enumerate(records):
            self.source.here[logs.ends[FLIGHTS] + n] = record
        logs.append([window * WINDOW_MS for _, window, _ in records], producer=records[0][0])

    def send_again(self) -> None:
        """A producer sends again what the source has lost: it was not acknowledged then, and is now."""
        gone = [each for each in dict.fromkeys(self.sent) if each not in self.source.everything() and each[0]]
        for record in gone[: self.chance.randint(1, 4)]:
            self.append([record])

    def copy(self) -> None:
        """The mirror's log becomes the source's, or a part of it."""
        if self.is_replaced:
            return
        source, mirror = self.source.logs, self.mirror.logs
        theirs = {BatchHeader.parse(each).base_offset: each for each in source.batches[FLIGHTS]}
        ours = mirror.batches[FLIGHTS]
        begin = source.starts[FLIGHTS]
        agree = takewhile(lambda each: self.agrees(BatchHeader.parse(each), theirs, each, begin), ours)
        common = max((BatchHeader.parse(each).next_offset for each in agree), default=0)
        if common < mirror.ends[FLIGHTS] and ours:
            self.cut_mirror(common)
        self.now_ms += 1
        if begin > mirror.ends[FLIGHTS] and mirror.source is not None:
            if mirror.ends[FLIGHTS]:
                gap = (mirror.ends[FLIGHTS], begin)
                mirror.source = MirrorSource(mirror.source.topic_id, (*mirror.source.gaps, gap))
            else:
                self.count_mirror()  # what was cut at the very beginning is not found behind another log start (R25)
                mirror.starts[FLIGHTS] = mirror.ends[FLIGHTS] = begin
        behind = [each for base, each in sorted(theirs.items()) if base >= mirror.ends[FLIGHTS]]
        for batch in behind[: self.chance.randint(1, 6)]:
            header = BatchHeader.parse(batch)
            mirror.batches[FLIGHTS].append(batch)
            mirror.ends[FLIGHTS] = header.next_offset
            mirror.leader_epoch = max(mirror.leader_epoch, header.leader_epoch)
            for at in range(header.base_offset, header.next_offset):
                self.mirror.here[at] = self.source.here[at]

    def agrees(self, header: BatchHeader, theirs: dict[int, bytearray], ours: bytearray, begin: int) -> bool:
        return header.next_offset <= begin or theirs.get(header.base_offset) == ours

    def cut_mirror(self, offset: int) -> None:
        self.lost += [row for row in self.mirror.cut(offset) if row in self.mirror.counted]
        if self.cut_since_pass or self.chance.random() < 0.05:
            self.mirror.logs.aside, self.unsure = [], True
        self.cut_since_pass = True

    def elect_unclean(self) -> None:
        """The source's leader loses its last batches, and another one leads. The mirror finds it when it copies, before
        anything is added."""
        self.count_source()
        end = self.source.logs.ends[FLIGHTS]
        self.send()
        if self.chance.random() < 0.8:  # the broker tier has counted in a range of its own what will be lost
            self.count_source()
            self.copy()
            self.copy()
            if self.chance.random() < 0.7:
                self.count_mirror()
        else:
            batches = self.source.logs.batches[FLIGHTS]
            end = BatchHeader.parse(batches[-self.chance.randint(1, min(5, len(batches)))]).base_offset
        self.source.cut(end)
        self.source.logs.leader_epoch += 1
        self.source.tier = self.follower(self.source.logs)

    def delete_first(self) -> None:
        """What was counted; R16 has a limit where a new leader's first records are deleted before its first pass."""
        self.count_source()
        batches = self.source.logs.batches[FLIGHTS]
        if batches and not self.is_diverged:
            self.source.logs.delete_before(BatchHeader.parse(self.chance.choice(batches)).next_offset)

    def create_again(self) -> None:
        while self.is_diverged and not self.is_replaced:
            self.copy()
        self.count()
        self.source.logs.create_again()
        self.source.logs.topic_id = UUID(int=self.chance.getrandbits(128))
        self.send()

    def take_new(self) -> None:
        if self.is_replaced:
            self.count()
            self.mirror.logs.create_again()
            self.mirror.logs.source = MirrorSource(self.id_at_source())

    def restart_mirror(self) -> None:
        """Its tier cannot publish, or not commit, or crashes in between; another leader epoch begins."""
        self.now_ms += 1
        trouble = self.chance.randrange(3)
        self.mirror.logs.offsets.fail = trouble == 1
        self.topic.fail = trouble == 2
        with suppress(KlammError):
            self.mirror.tier.advance()
        self.mirror.logs.offsets.fail = self.topic.fail = 0
        if not self.cut_since_pass:
            self.note_counted(self.mirror)
        if self.chance.random() < 0.7:
            self.mirror.logs.leader_epoch += 1
            self.mirror.tier = self.follower(self.mirror.logs)

    def count_mirror(self) -> None:
        self.count_all(self.mirror)
        self.cut_since_pass = False

    def count_source(self) -> None:
        self.count_all(self.source)

    def count_all(self, cluster: Cluster) -> None:
        quiet = 0  # a pass in which a commit is refused does nothing else
        while quiet < 2:
            self.now_ms += 1
            quiet = 0 if cluster.tier.advance() or cluster.tier.behind else quiet + 1
        self.note_counted(cluster)

    def note_counted(self, cluster: Cluster) -> None:
        begin, offset = cluster.logs.starts[FLIGHTS], self.position(cluster)
        cluster.counted |= {row for at, row in cluster.here.items() if begin <= at < offset}

    def position(self, cluster: Cluster) -> int:
        """Returns the offset that the tier has committed."""
        stored = cluster.logs.offsets.offsets.get(FLIGHTS)
        return stored.offset if stored is not None and stored.topic_id == cluster.logs.topic_id else 0

    def count(self) -> None:
        self.count_source()
        self.count_mirror()

    def step(self) -> None:
        choices = [
            (self.send, 6), (self.copy, 6), (self.count_mirror, 4), (self.count_source, 4), (self.elect_unclean, 2),
            (self.send_again, 1), (self.delete_first, 1), (self.create_again, 1), (self.take_new, 2),
            (self.restart_mirror, 2),
        ]  # fmt: skip
        [step] = self.chance.choices([step for step, _ in choices], [weight for _, weight in choices])
        self.steps.append(step.__name__)
        step()

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            if self.chance.random() < 0.2:
                audit = self.report()
                if not self.is_diverged:
                    self.judge(audit, settled=False)
        if self.chance.random() < 0.5:
            self.take_new()
        self.send()
        while not self.is_replaced and (self.is_diverged or self.mirror.logs.ends != self.source.logs.ends):
            self.copy()
        audit = self.report()
        self.judge(audit, settled=True)
        self.states.update((MIRROR, str(window.cells[TierKey(MIRROR)].state)) for window in audit.windows)

    # -- truth

    def report(self) -> TopicAudit:
        self.count()
        self.checks += 1
        [audit] = compare(at_source((*self.topic.events, *self.told()), {})[0], 10**12)
        return audit

    def told(self) -> Iterator[AuditEvent]:
        for producer in ("p", "q"):
            counts = Counter(window for who, window, _ in set(self.sent) if who == producer)
            yield event("producer", producer, 0, 1, dict(counts), stored_ms=0)

    def judge(self, audit: TopicAudit, *, settled: bool) -> None:
        """Compares the mirror's states with the truth; at the end (`settled`) nothing can be late."""
        there, here = self.source.everything(), self.mirror.everything()
        for window in audit.windows:
            number, cell = window.start_ms // WINDOW_MS, window.cells[TierKey(MIRROR)]
            at = f"mirror: {'at the end' if settled else f'after {len(self.steps)} steps'}, window {number}"
            of = {each for each in self.sent if each[1] == number}
            lacking = of - here
            proved = lacking & (there & self.source.counted | set(self.lost))
            stored = window.cells[BROKER_TIER].state
            touched = any(problem.touches(window.start_ms) for problem in audit.problems)
            doubted = self.unsure or touched or (stored is not State.COMPLETE and bool(audit.problems))  # R16
            if cell.state is State.MISSING and cell.short > len(lacking):
                self.wrong.append(f"{at}: {cell.short} missing, it lacks {lacking}")
            elif cell.state is State.DUPLICATED:
                self.wrong.append(f"{at}: duplicated")
            elif cell.state in (State.COMPLETE, State.NOT_COMPARED) and proved:
                self.wrong.append(f"{at}: {cell.state}, it lacks {proved}")
            elif cell.state is State.UNKNOWN and not doubted and settled:
                self.wrong.append(f"{at}: unknown")
            elif cell.state is State.LATE and settled:
                self.wrong.append(f"{at}: late")


def run(seed: int, number: int) -> MirrorHistory:
    """Runs one history."""
    history = MirrorHistory(f"mirror {seed} {number}")
    history.run()
    return history
