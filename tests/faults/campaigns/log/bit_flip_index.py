"""Flips one bit of an offset index or time index."""

from __future__ import annotations

import random

from harness import Result, Run, heard
from klamm.core.errors import KlammError
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import ReadIsolation
from logs.flips import Damage, choose, damage_each, verdict
from logs.template import Template, closing, consume, fetch_once, open_manager, truth_by_time

LOOKUPS = 12


class BitFlipIndex:
    name = "bit-flip-index"
    injects = "one bit of an offset or time index, before the log is opened, after an orderly stop or a kill"
    asserts = (
        "it is detected or the index is rebuilt; reads at any offset and lookups of any time agree with the batches"
    )
    plants = "the results of lookups by time are compared with the truth of another time"
    tools = ()

    def run(self, run: Run) -> Result:
        return damage_each(run, 3, _inject, clean=lambda n: n % 3 > 0)


def _inject(damage: Damage, total: Result) -> None:
    i, chance, template, folder = damage.number, damage.chance, damage.template, damage.folder
    flip = choose(template.folder, template.files(".index", ".timeindex"), chance)
    flip.apply(folder)
    total.acknowledged += template.records
    with heard() as said:
        try:
            manager = open_manager(folder)
        except KlammError as error:
            total.lose(i, f"{flip}: the log does not open: {error}", template.records)
            return
        with closing(manager):
            _look_up(i, chance, manager, template, total, 1 if damage.plant else 0)
            for tp, written in template.content.items():
                served = consume(manager.logs()[tp], written)
                for what in served.corrupt:
                    total.corrupt(i, f"{flip}: {what}")
                missing = [w.base for w in written if w.base not in served.seen]
                if missing:
                    total.lose(i, f"{flip}: {tp} does not serve {missing[:3]}: {served.detected[:1]}", len(missing))
    healed = (folder / flip.path).read_bytes() == (template.folder / flip.path).read_bytes()
    total.count("said", bool(said))
    total.count("made-anew", healed)
    verdict(i, flip, bool(said) or healed, total)


def _look_up(i: int, chance: random.Random, manager: LogManager, template: Template, total: Result, shift: int) -> None:
    """Looks up random offsets and times, before the log is read from its start."""
    for tp, written in template.content.items():
        log = manager.logs()[tp]
        for _ in range(LOOKUPS):
            w = chance.choice(written)
            at = chance.randint(w.base, w.last)
            served = fetch_once(log, at, written)
            if served.corrupt or w.base not in served.seen:
                total.corrupt(i, f"{tp}: a read at {at} returned {served.corrupt or served.detected}")
            stamp = chance.choice(w.stamps) + chance.randint(-3, 3)
            try:
                found = log.offset_for_timestamp(stamp, isolation=ReadIsolation.LOG_END)
            except KlammError as error:
                total.wrong(i, f"{tp}: the lookup of time {stamp} fails: {error}")
                continue
            truth = truth_by_time(written, stamp)
            got = (found.timestamp_ms, found.offset + shift) if found else None
            if got != truth:
                total.corrupt(i, f"{tp}: time {stamp} is looked up as {got}, the records say {truth}")


CAMPAIGNS = [BitFlipIndex()]
