"""The steps of a history, drawn from its seed.

Most histories have one to three kinds of trouble, some have none, so that what is found has one cause and most counts
can be proved. At the end everything that can settle settles: producers close, brokers and the coordination are
available, tiers catch up, and time passes until the horizon is behind the last record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from klamm.plugins.audit.comparison.tiers import TierKey
from klamm.plugins.audit.event import BROKER, TIERS, AuditEvent

from .actors import FOREIGN, INTERVAL_S, Group, Lake, Lakes, Sender
from .judge import Judge
from .known import Known
from .world import LATENESS_MS, START_MS, WINDOW_MS, Part, Row, World, window_of

PURE: Final = 0.15
TROUBLES: Final = (
    "late records", "lost records", "doubled records", "unsure records", "killed producers", "failing audit topic",
    "leaders", "cut-off leaders", "coordination", "broker crashes", "unclean leaders", "created again", "retention",
    "seeking groups", "set-back groups", "members", "lossy loads", "slow loads", "foreign producers", "wrong clocks",
    "latest groups", "suspended members", "ended groups", "lakes", "lost events", "doubled events",
    "retention of the audit",
)  # fmt: skip


def troubles_of(seed: str) -> set[str]:
    """Returns what happens in the history of this seed."""
    chance = Random(f"{seed} troubles")
    if chance.random() < PURE:
        return set()
    troubles = set(chance.sample(TROUBLES, chance.choice((1, 1, 2, 2, 3))))
    if "retention of the audit" in troubles:
        troubles.discard("wrong clocks")  # R22 takes the lateness into account, and no clock
    return troubles


class History:
    """One history. `wrong`: what a report said and is not true. `traced`: keeps its steps and events in `trace`."""

    def __init__(self, seed: str, *, encoded: bool = False, traced: bool = False) -> None:
        chance = self.chance = Random(seed)
        world = self.world = World(chance, chance.choice((1, 1, 2)), encoded=encoded)
        self.known = Known(world)
        self.troubles = troubles_of(seed)
        self.files = Lakes()
        self.wrong: list[str] = []
        self.checks = 0
        self.marks: list[tuple[int, int]] = []
        """(watermark, when it was reported)."""
        self.states: Counter[tuple[str, str]] = Counter()
        self.mark = ""
        self.trace: list[str] = []
        self._traced = traced
        self._shown = 0
        self.expect: set[TierKey] = set()
        self.cut_epochs: dict[tuple[UUID, int], int] = {}
        """The leader epochs of unclean elections that have cut off records."""
        self.names = 0
        for _ in range(chance.choice((1, 1, 2))):
            self._begin_producer()
        self._turns(all_of_them=True)
        if chance.random() < 0.7:
            self._begin_group("billing")
            self.expect.add(TierKey("consumer", "billing"))
        if chance.random() < 0.6:
            self.known.lakes.append(Lake(world, self.files, "hdfs://n/lake", "lake"))

    def has(self, trouble: str) -> bool:
        return trouble in self.troubles

    def run(self) -> None:
        chance = self.chance
        for n in range(chance.randrange(15, 40)):
            step = chance.choices(self._choices(), self._weights())[0]
            self.note(step.__name__)
            step()
            self._pass(chance.randrange(1_000, 150_000))
            self._turns()
            if n % 12 == 11:
                self._check(final=False)
        self.settle()
        self._check(final=True)

    def note(self, step: str) -> None:
        """Adds the step, and the events since the one before, to what `AT=n` prints."""
        world = self.world
        if not self._traced:
            return
        self._show_events()
        logs = " ".join(
            f"{part.number}: leader {part.leader} epoch {part.epoch} [{part.log.start}, {part.log.end})"
            for part in world.parts
        )
        self.trace.append(f"{world.now_ms - START_MS:>9} {step}; {logs}")

    def _show_events(self) -> None:
        for event in self.world.audit.events[self._shown :] if self._traced else ():
            self.trace.append(f"          {_told(event)}")
        self._shown = len(self.world.audit.events)

    def settle(self) -> None:
        self.note("settle")
        world, known = self.world, self.known
        world.away = world.audit.refuses = False
        world.audit.crash_after = world.audit.loses = None
        for broker in world.brokers:
            broker.crash_before_commit = broker.crash_after_commit = False
            broker.learn()
        for part in world.parts:
            if part.leader < 0:
                world.elect(part, world.candidate())
        for sender in known.senders:
            sender.close()
        for _ in range(2):
            self._turns(all_of_them=True)
        for group in self._reading():
            for part in world.parts:
                group.poll(part, 1000)
            group.commit()
        for group in known.groups:
            if group.stopped and not group.ended:
                group.end()
        for lake in [lake for lake in known.lakes if not lake.stopped]:
            lake.load()
            lake.send()
        live = known.live_lakes("lake")
        if len(live) > 1 and self.chance.random() < 0.5:
            for lake in live[:-1] if self.chance.random() < 0.5 else live[1:]:
                lake.retire()
        self._pass(2 * LATENESS_MS + 2 * WINDOW_MS + 4 * INTERVAL_S * 1000)

    def _check(self, *, final: bool) -> None:
        judge = Judge(self.known, self.expect, final=final)
        self.checks += 1
        self.wrong += judge.judge()
        self._check_marks(judge.audit.watermark_ms)
        if self._traced:
            self._show_events()
            self.trace += judge.rows()
        if final:
            self.states, self.mark = judge.states(), judge.mark()
            self._show_events()

    def _check_marks(self, mark_ms: int | None) -> None:
        """R21: no record arrived in a window that a watermark had passed, where senders kept to the lateness."""
        for mark, at in self.marks if not self.has("wrong clocks") else ():
            late = [w for w, ms in self.world.arrived.items() if 0 <= w < mark and ms > at]
            if late := [window for window in late if window not in self.known.too_late]:
                self.wrong.append(f"a record arrived in {min(late)} after the watermark was {mark}")
        if mark_ms is not None:
            self.marks.append((mark_ms, self.world.now_ms))

    def _pass(self, ms: int) -> None:
        """Lets time pass; producers send their events in between, a part of them."""
        self.world.now_ms += ms
        for sender in self.known.senders:
            sender.turn()

    def _turns(self, *, all_of_them: bool = False) -> None:
        for broker in self.world.brokers:
            if broker.led and (all_of_them or self.chance.random() < 0.6):
                broker.turn()

    # -- steps

    def _choices(self) -> list[Callable[[], None]]:
        return [step for step, _, trouble in STEPS_OF(self) if not trouble or trouble in self.troubles]

    def _weights(self) -> list[float]:
        return [weight for _, weight, trouble in STEPS_OF(self) if not trouble or trouble in self.troubles]

    def _part(self) -> Part:
        return self.chance.choice(self.world.parts)

    def _begin_producer(self) -> None:
        self.names += 1
        ahead = self.chance.choice((-1, 1)) * 2 * LATENESS_MS if self.has("wrong clocks") else 0
        self.known.senders.append(Sender(self.world, f"p{self.names}", self.known.too_late, ahead))

    def _begin_group(self, name: str, *, latest: bool = False, commits: bool = True) -> None:
        group = Group(self.world, name, latest=latest)
        self.known.groups.append(group)
        for part in self.world.parts:
            group.poll(part, 1)
        if commits:
            group.commit()

    def _stamps(self, ahead_ms: int = 0) -> list[int]:
        """Timestamps of a batch: mostly of now, sometimes late."""
        chance, now = self.chance, self.world.now_ms + ahead_ms
        count = chance.choice((1, 2, 3, 5))
        stamps = [now - chance.randrange(2_000) for _ in range(count)]
        if chance.random() < 0.1:  # a batch of several windows
            stamps[-1] = now - chance.randrange(LATENESS_MS // 2)
        if self.has("late records") and chance.random() < 0.4:
            late = chance.choice((LATENESS_MS // 2, LATENESS_MS - 5_000, 3 * LATENESS_MS, -1))
            stamps[0] = -1 if late < 0 else now - late
        true_ms = self.world.now_ms - LATENESS_MS
        self.known.too_late |= {window_of(stamp) for stamp in stamps if 0 <= stamp < true_ms}
        return stamps

    def send(self) -> None:
        chance = self.chance
        living = [sender for sender in self.known.senders if sender.alive]
        if not living:
            self._begin_producer()
            living = self.known.senders[-1:]
        part = self._part()
        if part.leader < 0:
            return
        sender = chance.choice(living)
        stored, acknowledged = 1, True
        if self.has("lost records") and chance.random() < 0.15:
            stored = 0
        elif self.has("doubled records") and chance.random() < 0.15:
            stored = 2
        elif self.has("unsure records") and chance.random() < 0.2:
            stored, acknowledged = chance.choice((0, 1)), False
        slow = chance.random() < 0.2
        if sender.send(part, self._stamps(sender.ahead_ms), stored=stored, acknowledged=acknowledged, slow=slow):
            sender.turn()

    def hear(self) -> None:
        for sender in self.known.senders:
            if sender.alive:
                sender.hear()

    def send_foreign(self) -> None:
        part = self._part()
        if part.leader >= 0:
            self.world.append(part, [Row(FOREIGN, window_of(stamp), stamp) for stamp in self._stamps()])

    def close_producer(self) -> None:
        self.chance.choice(self.known.senders).close()

    def kill_producer(self) -> None:
        self.chance.choice(self.known.senders).kill()

    def refuse(self) -> None:
        audit = self.world.audit
        audit.refuses = not audit.refuses
        audit.keeps = self.chance.random() < 0.3

    def move_leader(self) -> None:
        if not self.world.away:
            self.world.elect(self._part(), self.world.candidate())

    def cut_off(self) -> None:
        part = self._part()
        if part.leader >= 0:
            former = self.world.brokers[part.leader]
            former.cut_off = True
            if self.chance.random() < 0.8:
                self.world.elect(part, self.world.candidate(), told=False)

    def reconnect(self) -> None:
        """Brokers that were cut off reach the coordination; they learn later that they do not lead."""
        for broker in self.world.brokers:
            if broker.cut_off:
                broker.cut_off = False
                broker.turn()
                broker.learn()

    def lose_coordination(self) -> None:
        self.world.away = not self.world.away

    def crash_broker(self) -> None:
        chance, world = self.chance, self.world
        part = self._part()
        if part.leader < 0:
            return
        broker = world.brokers[part.leader]
        kind = chance.choice(("at once", "published", "before", "after"))
        if kind == "published":
            world.audit.crash_after = 1
        broker.crash_before_commit, broker.crash_after_commit = kind == "before", kind == "after"
        if kind != "at once":
            broker.turn()
            world.audit.crash_after = None
            broker.crash_before_commit = broker.crash_after_commit = False
        broker.start()
        if chance.random() < 0.5:
            world.elect(part, world.candidate())

    def poll(self) -> None:
        groups = self._reading()
        if groups:
            group = self.chance.choice(groups)
            group.poll(self._part(), self.chance.randrange(1, 12))
            if self.chance.random() < 0.6:
                group.commit()

    def commit(self) -> None:
        for group in self._reading():
            group.commit()

    def _reading(self) -> list[Group]:
        return [group for group in self.known.groups if not group.stopped]

    def suspend_member(self) -> None:
        for group in self._reading()[:1]:
            group.suspend()

    def wake_member(self) -> None:
        for group in self.known.groups:
            group.wake()

    def end_group(self) -> None:
        chance = self.chance
        reading = self._reading()
        if not reading:
            return
        group = chance.choice(reading)
        self.names += 1
        self.expect.discard(TierKey("consumer", group.name))
        if chance.random() < 0.3:
            self.known.groups.append(group.renamed(f"g{self.names}"))
        else:
            group.end()
            self.world.now_ms += 1  # events of one instant have no order
            if group.ended and chance.random() < 0.5:  # somebody uses its name again
                self._begin_group(group.name, latest=chance.random() < 0.5)

    def change_lake(self) -> None:
        """A lake is moved, copied, begun anew, or a load is removed by hand."""
        chance, lakes = self.chance, self.known.lakes
        if not lakes:
            return
        lake = lakes[-1]
        kind = chance.choice(("move", "copy", "anew", "remove"))
        self.names += 1
        if lake.loads and kind == "move":
            lake.move(f"hdfs://n/lake{self.names}")
        elif lake.loads and kind == "anew":
            lakes.append(lake.begin_anew())
        elif lake.loads and kind == "copy" and len(lakes) < 3:
            lakes.append(lake.copy(f"hdfs://n/lake{self.names}"))
        elif kind == "remove":
            lake.remove_last(chance.choice((1, 2)))

    def load_other(self) -> None:
        """Loads go on in a lake that was copied, or in the directory that was moved away."""
        lakes = [lake for lake in self.known.lakes if not lake.stopped]
        if lakes:
            self.chance.choice(lakes).load()

    def lose_event(self) -> None:
        tier = self.chance.choice(TIERS)
        # The broker tier's first range of a partition is not missed: it begins where the log did when it first saw it.
        self.world.audit.loses = lambda event: event.tier == tier and (tier != BROKER or event.from_offset > 0)

    def double_events(self) -> None:
        self.world.audit.doubles = not self.world.audit.doubles

    def delete_events(self) -> None:
        self.world.audit.delete_before(self.world.now_ms - self.chance.randrange(1, 4) * WINDOW_MS)

    def change_member(self) -> None:
        chance = self.chance
        groups = self._reading()
        if groups:
            group = chance.choice(groups)
            if chance.random() < 0.5:
                group.commit(refused=True)
            elif chance.random() < 0.3:
                self.world.audit.crash_after = 1
                group.commit()
                self.world.audit.crash_after = None
            group.join()

    def seek(self) -> None:
        groups = self._reading()
        if groups:
            part = self._part()
            self.chance.choice(groups).seek(part, self.chance.randrange(part.log.start, part.log.end + 1))

    def set_back(self) -> None:
        groups = self._reading()
        if groups:
            part = self._part()
            self.chance.choice(groups).set_offset(part, self.chance.randrange(part.log.start, part.log.end + 1))

    def load(self) -> None:
        if not self.known.lakes:
            return
        chance, lossy = self.chance, self.has("lossy loads")
        lake = self.known.lakes[-1]
        if lake.loads and lake.topic_id != self.world.topic_id and chance.random() < 0.5:
            self.known.lakes.append(lake := lake.begin_anew())
        spoil = chance.random() if lossy else 1.0
        lake.load(loses=spoil < 0.2, doubles=0.2 <= spoil < 0.4, crash=self.has("slow loads") and chance.random() < 0.4)

    def delete_old(self) -> None:
        part = self._part()
        if part.log.end <= part.log.start:
            return
        offset = self.chance.randrange(part.log.start, part.log.end) + 1
        stored = self.world.store.get(part.place)
        if stored is None or stored.topic_id != self.world.topic_id:
            return
        self.world.delete_before(part, offset)
        counted = stored.offset
        if part.log.start > counted:
            self.known.causes.uncounted.append((self.world.topic_id, part.number, counted, part.log.start))

    def create_again(self) -> None:
        """The topic is deleted and created again, also before its last records are counted (R16)."""
        world = self.world
        named = any(event.topic_id == str(world.topic_id) for event in world.audit.events)
        if world.life == 2 or self.chance.random() < 0.5 or not named:  # else the audit does not know that it was there
            return
        if self.chance.random() < 0.7:
            self._turns(all_of_them=True)
        if not all(map(self._cut_is_told, world.parts)):  # nobody can publish it afterwards
            return
        for part in world.parts:
            found = world.store.get(part.place)
            counted = found.offset if found is not None and found.topic_id == world.topic_id else 0
            if counted < part.log.end:
                self.known.causes.uncounted.append((world.topic_id, part.number, counted, part.log.end))
                self.known.deleted[world.topic_id, part.number] = counted
        world.create_again()

    def _cut_is_told(self, part: Part) -> bool:
        """Returns True unless the partition's leader has yet to publish that an unclean election cut its log (R11)."""
        key = self.world.topic_id, part.number
        since = self.cut_epochs.get(key, -1)
        return since < 0 or any(event.epoch >= since for event in self.known.ranges(*key))

    def elect_unclean(self) -> None:
        part = self._part()
        world = self.world
        if world.away or part.leader < 0 or part.log.end == part.log.start:
            return
        end, key = part.log.end, (world.topic_id, part.number)
        least = max([part.log.start, *(lake.now.ends.get(part.number, 0) for lake in self.known.lakes)])
        keeps = self.chance.randrange(min(least, end), end + 1)
        leader = world.candidate(part.leader)
        if leader < 0:
            return
        world.elect(part, leader, keeps=keeps)
        cut = part.log.end
        if cut < end:
            self.known.causes.cut.append((*key, cut, end))
            self.cut_epochs[key] = part.epoch
            for group in self.known.groups:
                group.cut(part, cut)

    def begin_latest(self) -> None:
        if len(self.known.groups) < 3:
            self.names += 1
            self._begin_group(f"g{self.names}", latest=True, commits=self.chance.random() < 0.6)

    def end_before_commit(self) -> None:
        """The members of groups that have never committed end between their events and their first commit."""
        for group in self._reading():
            if group.latest and not group.committed:
                group.poll(self._part(), 9)
                group.commit(refused=True)
                group.join()


def _told(event: AuditEvent) -> str:
    marks = [name for name in ("replay", "lossy", "final", "quiet") if getattr(event, name)]
    windows = " ".join(f"{w.start_ms}:{w.source}={w.records}" for w in event.windows)
    place = f"{event.topic_id[:4]}/{event.partition} [{event.from_offset}, {event.to_offset}) e{event.epoch}"
    load = f" load {event.load} of {event.lake}" if event.load is not None else ""
    return f"{event.stored_ms - START_MS:>9} {event.tier}/{event.owner} {place}{load} {' '.join(marks)} {windows}"


def STEPS_OF(history: History) -> list[tuple[Callable[[], None], float, str]]:
    h = history
    return [
        (h.send, 10, ""),
        (h.hear, 2, ""),
        (h.close_producer, 0.3, ""),
        (h.poll, 5, ""),
        (h.commit, 2, ""),
        (h.load, 2.5, ""),
        (h.send_foreign, 4, "foreign producers"),
        (h.kill_producer, 1, "killed producers"),
        (h.refuse, 2, "failing audit topic"),
        (h.kill_producer, 0.5, "failing audit topic"),
        (h.move_leader, 3, "leaders"),
        (h.cut_off, 2, "cut-off leaders"),
        (h.reconnect, 2, "cut-off leaders"),
        (h.lose_coordination, 2, "coordination"),
        (h.crash_broker, 3, "broker crashes"),
        (h.elect_unclean, 1, "unclean leaders"),
        (h.create_again, 1, "created again"),
        (h.delete_old, 2, "retention"),
        (h.seek, 2, "seeking groups"),
        (h.set_back, 1, "set-back groups"),
        (h.change_member, 3, "members"),
        (h.begin_latest, 1, "latest groups"),
        (h.end_before_commit, 1, "latest groups"),
        (h.suspend_member, 2, "suspended members"),
        (h.wake_member, 2, "suspended members"),
        (h.end_group, 1, "ended groups"),
        (h.change_lake, 1.5, "lakes"),
        (h.load_other, 1.5, "lakes"),
        (h.lose_event, 1, "lost events"),
        (h.double_events, 1, "doubled events"),
        (h.delete_events, 1, "retention of the audit"),
    ]
