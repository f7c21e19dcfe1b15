"""Compares a report with the truth. Every difference is one line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from klamm.core.interfaces.audit import NO_WINDOW
from klamm.plugins.audit.comparison.compare import TopicAudit, compare, settlement_counts
from klamm.plugins.audit.comparison.tiers import Kind, State, TierKey
from klamm.plugins.audit.event import SETTLEMENT, AuditEvent, EventWindow
from klamm.plugins.audit.gate import Gate, obstacle

from .actors import FOREIGN, Group, Lake, Offset
from .known import Known, Span
from .world import LATENESS_MS, TOPIC, WINDOW_MS

PRODUCERS = TierKey("producer")


@dataclass(frozen=True)
class Wanted:
    """What is true of a tier in one window. `short`, `over`: records too few, and too many. `late`: records that it may
    still count; `untold`: those that it has, and may not have told yet. `held`: whether anything is demanded."""

    short: int = 0
    over: int = 0
    late: int = 0
    untold: int = 0
    held: bool = True

    @property
    def evened(self) -> bool:
        """Records are compared by number: one that is counted twice is taken for one that is not counted yet."""
        return 0 < self.late == self.over and not self.short

    @property
    def good(self) -> bool:
        return not (self.short or self.over or self.late)


def report_of(known: Known, expect: Iterable[TierKey]) -> TopicAudit:
    world = known.world
    events, retained_ms = world.audit.events, world.audit.retained_ms
    [audit] = compare(events, world.now_ms, tuple(expect), (TOPIC,), LATENESS_MS, world.ends(), retained_ms)
    return audit


class Judge:
    """Judges one report. `final`: everything that can settle has settled."""

    def __init__(self, known: Known, expect: Iterable[TierKey], *, final: bool) -> None:
        self.known = known
        self.expect = frozenset(expect)
        self.final = final
        self.audit = report_of(known, self.expect)
        self.broker = next(tier for tier in self.audit.tiers if tier.tier == "broker")
        self.stored, self.told, self.acknowledged = known.stored(), known.told(), known.acknowledged()
        self.wrong: list[str] = []
        self.left_out_ms = -math.inf if self.audit.left_out_ms is None else self.audit.left_out_ms
        self.wanted: dict[TierKey, dict[int, Wanted]] = {self.broker: self._broker()}
        self.excused: dict[TierKey, set[int]] = {}
        self.partial: dict[TierKey, set[int]] = {}
        self.read_on: dict[TierKey, set[int]] = {}
        """Windows of records behind a cut that a group did not find, because it was below."""
        self.told_short: dict[TierKey, set[int]] = {}
        """Windows in which a lake lacks records by the loads that it told; a later one may have as many too many."""
        self.two_lakes: set[TierKey] = set()
        """Sinks with two live lakes, whose counts are unknown (R6)."""
        self.read_again: set[TierKey] = set()
        """Groups that were set back: what they then skip replaces what they had received (R8)."""
        self.recounting: set[TierKey] = set()
        """Groups of which a count was lost with a member; the next event shows it."""
        for group in known.groups:
            if not group.ended and group.began:
                self._group(group)
        for sink in {lake.sink for lake in known.lakes}:
            if live := known.live_lakes(sink):
                self._lake(live[-1], alone=len(live) == 1 and not known.is_forgotten(sink))
        if final:
            self._excuse()

    def judge(self) -> list[str]:
        windows = {window.start_ms: window for window in self.audit.windows}
        for tier, wanted in self.wanted.items():
            if tier not in self.audit.tiers:
                if tier in self.expect or tier == self.broker:
                    self.wrong.append(f"{tier} is not in the report")
                continue
            for start, want in wanted.items():
                window = windows.get(start)
                if start < self.left_out_ms:  # NO_WINDOW, too: it belongs to no instant
                    if window is not None:
                        self.wrong.append(f"window {start} has events that were deleted, and is in the report")
                    continue
                if window is None:
                    if want.short and self.final and start in self.known.named:
                        self.wrong.append(f"window {start} is not in the report")
                    continue
                self._cell(tier, start, str(window.cells[tier].state), want)
        self._watermark()
        if self.final:
            if not any(event.tier == "broker" for event in self.known.world.audit.lost):
                self.wrong += [f"at the end: {p.text}" for p in self.audit.problems if p.kind == Kind.BEHIND]
            self._gate()
            self._settle()
        return self.wrong

    def states(self) -> Counter[tuple[str, str]]:
        """Counts the report's cells by tier and state."""
        return Counter(
            (tier.tier, str(cell.state)) for window in self.audit.windows for tier, cell in window.cells.items()
        )

    def rows(self) -> Iterator[str]:
        """Yields the report as lines."""
        yield f"  report: watermark {self.audit.watermark_ms}"
        for window in self.audit.windows:
            cells = (f"{tier} {cell.state} {cell.records}" for tier, cell in window.cells.items())
            yield f"    {window.start_ms}: {'; '.join(cells)}"
        for problem in self.audit.problems:
            yield f"    {problem.tier} {problem.kind}: {problem.text}"

    def mark(self) -> str:
        """Returns how far the watermark is."""
        starts = [window.start_ms for window in self.audit.windows if window.start_ms != NO_WINDOW]
        if self.audit.watermark_ms is None:
            return "none" if starts else "no window"
        return "at the end" if self.audit.watermark_ms == starts[-1] + WINDOW_MS else "before the end"

    # -- what is true

    def _broker(self) -> dict[int, Wanted]:
        wanted, never = {}, self.known.never_counted()
        for start in self.stored.keys() | self.acknowledged.keys() | self.told.keys():
            stored, acknowledged = Counter(self.stored.get(start)), Counter(self.acknowledged.get(start))
            counted = stored - Counter(never.get(start))
            del stored[FOREIGN], counted[FOREIGN]
            told = Counter(self.told.get(start))
            late = 0 if self.final else (acknowledged - told).total()
            wanted[start] = Wanted((acknowledged - stored).total(), (counted - acknowledged).total(), late)
        return wanted

    def _group(self, group: Group) -> None:
        tier = TierKey("consumer", group.name)
        wanted = {}
        for start, offsets in self.known.demanded(group).items():
            lacks = [at for at in offsets if at not in group.received or self._never_told(group, at)]
            ends = [
                max(group.furthest.get(at[:2], 0), 0 if self.final else group.passed.get(at[:2], 0)) for at in lacks
            ]
            passed = sum(at[2] < end for at, end in zip(lacks, ends, strict=True))
            untold = sum(at[2] >= group.published.get(at[:2], 0) for at in offsets)
            wanted[start] = Wanted(passed, 0, len(lacks) - passed, untold)
        for start in self.stored.keys() - wanted.keys():
            wanted[start] = Wanted(held=False)
        self.wanted[tier] = wanted
        if group.untold:
            self.recounting.add(tier)
        if group.set_back:
            self.read_again.add(tier)
        begins = [*group.began.items(), *self.known.told_begin(*tier).items()]
        self.partial[tier] = self.known.enclosing((*key, at, at + 1) for key, at in begins)
        self.read_on[tier] = self.known.enclosing(_spans(group.read_on))
        if self.final:
            spans = [*_spans(group.set_back | group.jumped | group.untold), *self.known.causes.cut, *self._lost(tier)]
            spans = [self._with_ranges(span, tier) for span in spans]  # R8: nothing shows that these were committed
            self.excused[tier] = self.known.enclosing(spans, *tier) | self.known.perhaps_begun(group.name)
            if spans and any(event.tier == "broker" for event in self.known.world.audit.lost):
                self.excused[tier] |= self.stored.keys()  # the broker tier has not told where these offsets are
            if any(event.ends and (event.tier, event.owner) == tier for event in self.known.world.audit.lost):
                self.excused[tier] |= self.stored.keys()  # R5: the group that had this name is compared on

    def _with_ranges(self, span: Span, tier: TierKey) -> Span:
        """Returns the offsets with those of the group's ranges that reach to them."""
        topic_id, number, begin, end = span
        ranges = self.known.ranges(topic_id, number, {tier})
        near = [event for event in ranges if event.from_offset < end and event.to_offset >= begin]
        return (
            topic_id,
            number,
            min([begin, *(event.from_offset for event in near)]),
            max([end, *(event.to_offset for event in near)]),
        )

    def _never_told(self, group: Group, at: Offset) -> bool:
        """Returns True for a record that was received and not committed when its topic was deleted."""
        return at[0] != self.known.world.topic_id and at[2] >= group.told.get(at[:2], 0)

    def _lake(self, lake: Lake, *, alone: bool) -> None:
        tier = TierKey("hadoop", lake.sink)
        wanted = {}
        told = lake.history[lake.told].ends
        for start, offsets in self.known.demanded_of(lake).items():
            mine = [at for at in offsets if at[0] == lake.topic_id and at[2] < lake.now.ends.get(at[1], 0)]
            more: Counter[int] = Counter()  # records are compared by number, in each partition
            of_told: Counter[int] = Counter()
            for at in mine:
                more[at[1]] += lake.now.loaded[at] - 1
                of_told[at[1]] += (lake.now.loaded[at] - 1) * (at[2] < told.get(at[1], 0))
            if -of_told:
                self.told_short.setdefault(tier, set()).add(start)
            untold = sum(at[2] >= told.get(at[1], 0) for at in mine)
            wanted[start] = Wanted((-more).total(), (+more).total(), len(offsets) - len(mine), untold)
        self.wanted[tier] = wanted
        begins = self.known.told_begin(*tier, lake.id)
        self.partial[tier] = self.known.enclosing((*key, at, at + 1) for key, at in begins.items())
        if not alone:
            self.two_lakes.add(tier)
        if self.final:
            self.excused[tier] = self.known.enclosing([*_spans(lake.now.skipped), *self._lost(tier)], *tier)
            self.excused[tier] |= {start for start, want in wanted.items() if want.untold}

    def _lost(self, tier: TierKey) -> list[Span]:
        """Returns the offsets of the events that the audit topic has lost."""
        lost = [event for event in self.known.world.audit.lost if (event.tier, event.owner) == tier]
        return [
            (UUID(event.topic_id), event.partition, event.from_offset, event.to_offset)
            for event in lost
            if event.partition is not None
        ]

    def _excuse(self) -> None:
        producers = self.known.doubted_of_producers()
        broker = self.known.doubted_at_broker()
        if not {"broker", "producer"} <= {event.tier for event in self.known.world.audit.events}:  # R2: one is absent
            producers |= self.stored.keys() | self.told.keys()
            broker |= producers
        if broker:  # R16: where the broker lacks records too, they may be among those that it could not count
            broker |= {start for start, want in self.wanted[self.broker].items() if want.short}
        if self.known.world.ended:  # R16: or they were in the topic that was deleted
            broker |= {start for start, want in self.wanted[self.broker].items() if want.short}
        for excused in self.excused.values():
            excused |= broker
        self.excused[self.broker] = broker | producers
        self.excused[PRODUCERS] = producers

    # -- the report

    def _cell(self, tier: TierKey, start: int, state: str, want: Wanted) -> None:
        right = True
        if tier in self.two_lakes:
            right = state == State.UNKNOWN
        elif state == State.COMPLETE:
            right = want.good
            if not self.final:  # records that were sent later than allowed are not awaited
                right = right or start in self.known.too_late or want.evened
                right = right or (tier == self.broker and bool(want.late))
        elif state == State.MISSING:
            lateness = start in self.known.too_late and (not self.final or start in self.known.uncounted_in())
            cut = not self.final and bool(self.known.causes.cut)  # a group that has not found yet that the log was cut
            right = want.short > 0 or (self.final and want.late > 0) or lateness or cut
            right = right or (tier in self.read_again and start in self.excused.get(tier, ()))
            right = right or start in self.read_on.get(tier, ())
            right = right or (not self.final and start in self.told_short.get(tier, ()))
        elif state == State.DUPLICATED:
            right = want.over > 0 or bool(self.known.causes.cut)  # what it received is no more in the log
            right = right or (tier == self.broker and start in self.known.repeated_in())
        elif state == "late":
            right = want.late + want.untold + want.short > 0 or bool(self.known.world.audit.lost)
            right = right or start in self.excused.get(tier, ())  # its next range shows the gap
            if not self.final or self.known.world.ended:  # it began inside a range of which it has not read the rest
                right = right or start in self.partial.get(tier, ())
            if not self.final:
                right = right or tier in self.recounting or bool(self.known.causes.cut)
        elif state == "not compared":
            right = not want.held or start in self.partial.get(tier, ())
            right = right or (not self.final and start in self.known.too_late)
        elif self.final:
            right = state == State.UNKNOWN and start in self.excused.get(tier, ())
            right = right or (tier != self.broker and self._lacking(start))
            right = right or (want.over > 0 and self.left_out_ms > -math.inf)  # R22: perhaps told by a deleted event
        if not right:
            when = "at the end" if self.final else "meanwhile"
            self.wrong.append(f"{when}: {tier} is {state} in {start}: {want}; {self._why(tier, start)}")

    def _lacking(self, start: int) -> bool:
        """R16: the broker lacks records of the window, or may lack them, and its tier has a problem somewhere."""
        found = self.wanted[self.broker].get(start)
        lacks = (found is not None and found.short > 0) or start in self.excused[PRODUCERS]
        return lacks and any(p.tier == self.broker for p in self.audit.problems)

    def _why(self, tier: TierKey, start: int) -> str:
        found = [f"{p.tier} {p.kind}: {p.text}" for p in self.audit.problems if p.touches(start)]
        return "; ".join(found[:3]) or "no problem"

    def _watermark(self) -> None:
        mark = self.audit.watermark_ms
        tiers = {self.broker} | {tier for tier in self.wanted if tier in self.expect or tier.tier == "hadoop"}
        starts = sorted(self.stored.keys() | self.told.keys())
        starts = [start for start in starts if start != NO_WINDOW and start >= self.left_out_ms]
        bad = starts if self.two_lakes else []
        bad = bad or [s for s in starts if any(not self._good(self.wanted[tier].get(s)) for tier in tiers)]
        if not self.final:
            bad = [s for s in bad if s not in self.known.too_late]
            bad = [
                s
                for s in bad
                if any(not self._good(w := self.wanted[t].get(s)) and not (w and w.evened) for t in tiers)
            ]
        if mark is not None and bad and mark > bad[0]:
            self.wrong.append(
                f"the watermark {mark} is after {bad[0]}, which is not complete: {self._bad(bad[0], tiers)}"
            )
        if self.final:
            doubtful = [s for s in starts if s in bad or any(s in self.excused.get(tier, ()) for tier in tiers)]
            doubtful += [s for s in starts if s in self.excused[PRODUCERS]]
            sure = [s + WINDOW_MS for s in starts if not doubtful or s < min(doubtful)]
            if sure and (mark is None or mark < sure[-1]):
                self.wrong.append(f"the watermark {mark} stands before {sure[-1]}")

    def _gate(self) -> None:
        """R23: the gate agrees with the watermark, also for a single window."""
        starts = [window.start_ms for window in self.audit.windows if window.start_ms != NO_WINDOW]
        if not starts:
            return
        until = starts[-1] + WINDOW_MS
        closed = obstacle(self.audit, Gate(TOPIC, until))
        if (closed is None) != (self.audit.watermark_ms == until):
            mark = self.audit.watermark_ms
            self.wrong.append(f"the gate before {until} is {closed or 'open'}; the watermark is {mark}")

    def _settle(self) -> None:
        """R19: when somebody vouches for the unknown counts, only what is proved holds the watermark."""
        counts = settlement_counts(self.audit)
        if not counts:
            return
        world = self.known.world
        held = {(tier, start): numbers for (tier, start), numbers in counts.items()}
        windows = tuple(EventWindow(start, n, 0, of, source=tier) for (tier, start), (n, of) in held.items())
        event = AuditEvent(
            tier=SETTLEMENT, owner="ops", host="host", application="tests", topic=TOPIC, partition=None, from_offset=0,
            to_offset=1, window_ms=self.audit.window_ms, windows=windows, time_ms=world.now_ms, note="seen",
        )  # fmt: skip
        kept = world.audit.events
        world.audit.events = [*kept, event]
        settled = report_of(self.known, self.expect)
        world.audit.events = kept
        starts = [window.start_ms for window in settled.windows if window.start_ms != NO_WINDOW]
        proved = [
            window.start_ms
            for window in settled.windows
            for tier, cell in window.cells.items()
            if tier in settled.expected
            and window.start_ms != NO_WINDOW
            and str(cell.state) in ("missing", "duplicated", "late")
        ]
        kinds = {str(problem.kind) for problem in settled.problems}
        wanted = max((s + WINDOW_MS for s in starts if not proved or s < min(proved)), default=None)
        mark = settled.watermark_ms
        if self.two_lakes and starts and obstacle(settled, Gate(TOPIC, starts[-1] + WINDOW_MS)) is None:
            self.wrong.append("the gate is open though two lakes are live")
        if mark != wanted and not kinds & {"behind", "two lakes"}:
            self.wrong.append(f"the watermark is {mark} and not {wanted} where every unknown count is settled")

    def _good(self, want: Wanted | None) -> bool:
        return want is None or want.good

    def _bad(self, start: int, tiers: Iterable[TierKey]) -> str:
        return "; ".join(f"{t} {w}" for t in tiers if (w := self.wanted[t].get(start)) is not None and not w.good)


def _spans(offsets: Iterable[Offset]) -> Iterator[Span]:
    """Joins offsets to spans."""
    span: Span | None = None
    for topic_id, number, offset in sorted(offsets):
        if span is not None and span[:2] == (topic_id, number) and span[3] == offset:
            span = (*span[:3], offset + 1)
            continue
        if span is not None:
            yield span
        span = topic_id, number, offset, offset + 1
    if span is not None:
        yield span
