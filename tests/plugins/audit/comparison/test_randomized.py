"""Random pipelines against the truth: no planted loss is ever called complete, and undisturbed runs always are.

The truth is a log of records (producer, window, whether it was acknowledged, whether it is stored). Every tier's events
are made from it as the tiers make them; then losses, duplicates, killed producers, wrong clocks, clients that do not
audit, refused events of former owners and topics that are created again are planted.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.tiers import State, TierKey
from klamm.plugins.audit.event import FOREIGN, AuditEvent
from klammtest.audits import WINDOW_MS, event, readers_of

BROKER, READERS, LAKE, PRODUCERS = (
    TierKey("broker", "b"),
    TierKey("consumer", "readers"),
    TierKey("hadoop", "lake"),
    TierKey("producer"),
)
INTERVAL_MS = 10_000
LATENESS_MS = 600_000
START_MS = 100 * WINDOW_MS


@dataclass
class Record:
    producer: str
    window: int


@dataclass
class Truth:
    """The events of one topic id. `told` and `untold`: what each producer had acknowledged, in its events or only after
    the last of them.
    """

    random: random.Random
    now_ms: int
    topic_id: str = "one"
    log: list[Record] = field(default_factory=list)
    told: dict[str, list[Counter[int]]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Windows of which an acknowledged record is not stored."""

    def produce(self, producers: int, windows: range) -> None:
        for number in range(producers):
            owner = f"p{number}"
            batches = [Counter(self.random.choices(windows, k=self.random.randrange(1, 8))) for _ in range(4)]
            self.told[owner] = batches
            self.log += [Record(owner, window) for batch in batches for window in batch.elements()]
        self.random.shuffle(self.log)

    def foreign(self, window: int, count: int) -> None:
        for _ in range(count):
            self.log.insert(self.random.randrange(len(self.log) + 1), Record(FOREIGN, window))

    def lose(self, count: int) -> None:
        """The broker loses records that it has acknowledged."""
        audited = [record for record in self.log if record.producer != FOREIGN]
        for record in self.random.sample(audited, count):
            self.log.remove(record)
            self.lost.add(record.window)

    # -- events

    def producers(self, *, killed: str = "", quiet: bool = False, clock_ms: int = 0) -> list[AuditEvent]:
        events = []
        for owner, batches in self.told.items():
            dies = owner == killed
            for number, batch in enumerate(batches):
                last = number == len(batches) - 1
                events.append(self._producer(owner, number, batch, final=last and not dies, clock_ms=clock_ms))
            if dies and quiet:
                events.append(self._producer(owner, len(batches), Counter(), final=False, quiet=True))
        return events

    def _producer(
        self, owner: str, number: int, batch: Counter[int], *, final: bool, quiet: bool = False, clock_ms: int = 0
    ) -> AuditEvent:
        told = {"final": final, "quiet": quiet, "interval_ms": INTERVAL_MS}
        stored_ms = START_MS + number * INTERVAL_MS
        return event(
            "producer",
            owner,
            number,
            number + 1,
            dict(batch),
            time_ms=stored_ms + clock_ms,
            stored_ms=stored_ms,
            **told,
        )

    def broker(self) -> list[AuditEvent]:
        return [self._range(BROKER, begin, end) for begin, end in self._cuts(self.log)]

    def reader(self, tier: TierKey, skipped: set[int] | None = None) -> list[AuditEvent]:
        """`skipped`: offsets that it was never given."""
        begun = [event(*tier, 0, 0, {}, topic_id=self.topic_id, epoch=1)]
        return begun + [self._range(tier, begin, end, skipped or set()) for begin, end in self._cuts(self.log)]

    def _range(self, tier: TierKey, begin: int, end: int, skipped: set[int] | None = None) -> AuditEvent:
        held = [record for at, record in enumerate(self.log[begin:end], begin) if at not in (skipped or ())]
        sources: dict[str, dict[int, int]] = {}
        for record in held:
            counts = sources.setdefault(record.producer if tier == BROKER else FOREIGN, {})
            counts[record.window] = counts.get(record.window, 0) + 1
        return event(*tier, begin, end, {}, sources=sources, topic_id=self.topic_id, epoch=1)

    def _cuts(self, log: list[Record]) -> list[tuple[int, int]]:
        cuts = sorted({0, len(log), *(self.random.randrange(len(log) + 1) for _ in range(3))})
        return list(pairwise(cuts))

    def everything(self) -> list[AuditEvent]:
        return [*self.producers(), *self.broker(), *self.reader(READERS), *self.reader(LAKE)]


def truth(seed: int, topic_id: str = "one") -> Truth:
    chance = random.Random(seed)
    made = Truth(chance, START_MS + 10**9, topic_id)
    made.produce(chance.randrange(1, 5), range(100, 100 + chance.randrange(2, 7)))
    return made


def compared(events: list[AuditEvent], of: Truth, now_ms: int | None = None) -> TopicAudit:
    at_ms = of.now_ms if now_ms is None else now_ms
    [audit] = compare(events, at_ms, readers_of(events), lateness_ms=LATENESS_MS)
    return audit


def complete_windows(audit: TopicAudit, tier: TierKey | None = None) -> set[int]:
    return {
        window.start_ms // WINDOW_MS
        for window in audit.windows
        if (window.complete if tier is None else window.cells[tier].state is State.COMPLETE)
    }


SEEDS = pytest.mark.parametrize("seed", range(60))


@SEEDS
def test_an_undisturbed_run_is_complete(seed: int) -> None:
    run = truth(seed)
    audit = compared(run.everything(), run)
    assert audit.complete, audit.problems
    assert audit.lowest() == 1.0
    assert audit.watermark_ms == (max(record.window for record in run.log) + 1) * WINDOW_MS


@SEEDS
def test_clocks_of_producers_and_clients_that_do_not_audit_change_nothing(seed: int) -> None:
    run = truth(seed)
    for window in range(100, 104):
        run.foreign(window, run.random.randrange(5))
    shift = run.random.choice([-(10**8), 3_600_000, 10**10])
    events = [*run.producers(clock_ms=shift), *run.broker(), *run.reader(READERS), *run.reader(LAKE)]
    audit = compared(events, run)
    assert audit.complete, audit.problems
    stored = sum(record.producer == FOREIGN for record in run.log)
    assert sum(window.cells[BROKER].foreign for window in audit.windows) == stored


@SEEDS
def test_a_loss_is_never_complete_whoever_else_writes_into_its_window(seed: int) -> None:
    run = truth(seed)
    run.lose(run.random.randrange(1, 4))
    for window in run.lost:
        run.foreign(window, run.random.randrange(5))
    events = [*run.producers(), *run.broker(), *run.reader(READERS)]
    audit = compared(events, run)
    assert not audit.complete
    assert not complete_windows(audit) & run.lost
    assert all(w.cells[BROKER].state is State.MISSING for w in audit.windows if w.start_ms // WINDOW_MS in run.lost)
    assert (audit.watermark_ms or 0) <= min(run.lost) * WINDOW_MS


@SEEDS
def test_a_reader_that_was_not_given_a_record_is_never_complete_there(seed: int) -> None:
    run = truth(seed)
    skipped = set(run.random.sample(range(len(run.log)), min(3, len(run.log))))
    doubled = run.random.randrange(len(run.log))
    events = [*run.producers(), *run.broker(), *run.reader(READERS, skipped), *run.reader(LAKE)]
    extra = run.log[doubled]
    events.append(event("consumer", "readers", len(run.log), len(run.log) + 1, {extra.window: 1}, topic_id="one"))
    audit = compared(events, run)
    wrong = {run.log[at].window for at in skipped}
    assert not complete_windows(audit, READERS) & (wrong - {extra.window})
    assert not audit.complete


@SEEDS
def test_a_killed_producer_hides_no_loss_and_spoils_no_other_day(seed: int) -> None:
    """Killed in the middle: what it had acknowledged after its last event is told nowhere, and partly lost."""
    run = truth(seed)
    day = 10**6  # windows of long before: nobody's any more
    run.told["early"] = [Counter({day: 3})]
    run.log += [Record("early", day)] * 3
    killed = run.random.choice(sorted(run.told.keys() - {"early"}))
    may = [window for batch in run.told[killed] for window in batch] + [99, 100, 101]  # of its time, or counted lately
    untold = run.random.choices(may, k=4)
    kept = untold[: run.random.randrange(4)]
    run.log += [Record(killed, window) for window in kept]
    lost = {window for window in untold if untold.count(window) > kept.count(window)}
    events = [*run.producers(killed=killed), *run.broker(), *run.reader(READERS), *run.reader(LAKE)]
    audit = compared(events, run)
    assert not complete_windows(audit) & lost
    assert not audit.complete
    assert day in complete_windows(audit), audit.problems


@SEEDS
def test_a_producer_killed_while_it_was_quiet_is_proved(seed: int) -> None:
    run = truth(seed)
    killed = run.random.choice(sorted(run.told))
    told = run.producers(killed=killed, quiet=True)
    assert compared([*told, *run.broker(), *run.reader(READERS)], run).complete
    run.lose(1)
    assert not complete_windows(compared([*told, *run.broker()], run)) & run.lost


@SEEDS
def test_an_event_of_a_former_owner_replaces_nothing(seed: int) -> None:
    """It was stopped after it had counted more; its successor began at the same offset, or after its last commit."""
    run = truth(seed)
    readers = run.reader(READERS)
    chosen = run.random.choice(readers[1:])
    end = run.random.randrange(chosen.from_offset + 1, len(run.log) + 1)
    late = event("consumer", "readers", chosen.from_offset, end, {100: 1}, topic_id="one", epoch=0)
    events = [*run.producers(), *run.broker(), *readers, late]
    assert compared(events, run).complete


@SEEDS
def test_a_topic_created_again_does_not_hide_what_the_former_one_lost(seed: int) -> None:
    former, new = truth(seed), truth(seed + 1000, "two")
    for owner in list(new.told):
        new.told[f"again-{owner}"] = new.told.pop(owner)
    for record in new.log:
        record.producer = f"again-{record.producer}"
    whole = [*former.everything(), *new.everything()]
    audit = compared(whole, former)
    assert audit.complete, audit.problems
    assert audit.topic_ids == ("one", "two")
    skipped = {former.random.randrange(len(former.log))}
    spoiled = [*former.producers(), *former.broker(), *former.reader(READERS, skipped), *new.everything()]
    audit = compared(spoiled, former)
    [at] = skipped
    assert former.log[at].window not in complete_windows(audit, READERS)


@SEEDS
def test_no_event_may_be_missing(seed: int) -> None:
    """One event less: what it counted is not complete where it makes a difference."""
    run = truth(seed)
    events = run.everything()
    gone = run.random.choice([each for each in events if each.windows])
    audit = compared([each for each in events if each is not gone], run)
    windows = {window.start_ms // WINDOW_MS for window in gone.windows}
    assert not complete_windows(audit) & windows


@SEEDS
def test_the_watermark_never_passes_the_clock_nor_a_window_of_a_live_producer(seed: int) -> None:
    run = truth(seed)
    live = run.random.choice(sorted(run.told))
    told = run.producers(killed=live)
    now_ms = max(each.stored_ms for each in told) + run.random.randrange(3 * INTERVAL_MS)
    run.foreign(100 + run.random.randrange(10**4), 1)
    run.told["p0"][0][10**5] += 1  # a record of the future
    run.log.append(Record("p0", 10**5))
    told = run.producers(killed=live)
    audit = compared([*told, *run.broker()], run, now_ms)
    mark = audit.watermark_ms or 0
    assert live in audit.live_producers
    assert mark <= now_ms - LATENESS_MS
    assert mark <= min(window for batch in run.told[live] for window in batch) * WINDOW_MS
