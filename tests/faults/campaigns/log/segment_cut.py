"""Cuts a segment at a random byte, as a crash or an incomplete copy leaves it."""

from __future__ import annotations

import os
import random
from pathlib import Path

from harness import Result, Run, heard
from klamm.core.errors import KlammError
from klamm.core.log.segment.naming import parse_segment_file
from logs.flips import Damage, damage_each
from logs.template import Content, Template, Written, check_appends, closing, consume, open_manager, partition_of


class SegmentCut:
    name = "segment-cut"
    injects = "one segment, mostly the last, cut at a random byte; the log stopped in order or killed before"
    asserts = "every batch before the cut is served whole, nothing else is; the log takes and serves new batches"
    plants = "more is cut off than the campaign assumes"
    tools = ()

    def run(self, run: Run) -> Result:
        return damage_each(run, 4, _inject, clean=lambda n: n % 2 == 0)


def _inject(damage: Damage, total: Result) -> None:
    i, template = damage.number, damage.template
    path = _choose(template, damage.chance)
    tp = partition_of(path)
    size = damage.chance.randrange((template.folder / path).stat().st_size)
    os.truncate(damage.folder / path, 0 if damage.plant else size)
    total.injected += 1
    with heard() as said:
        expected = {**template.content, tp: _before(template.content[tp], path, size)}
        _check(i, damage.folder, expected, template, total)
    total.count("noticed", bool(said))


def _check(i: int, folder: Path, expected: Content, template: Template, total: Result) -> None:
    try:
        manager = open_manager(folder)
    except KlammError as error:
        total.wrong(i, f"the log does not open: {error}")
        return
    with closing(manager):
        for tp, written in expected.items():
            total.acknowledged += sum(w.records for w in written)
            log = manager.logs()[tp]
            served = consume(log, template.content[tp])
            for what in served.corrupt:
                total.corrupt(i, f"{tp}: {what}")
            for w in written:
                if w.base not in served.seen:
                    total.lose(i, f"{tp}: offsets {w.base}-{w.last} are not served", w.records)
            check_appends(i, log, total)


def _choose(template: Template, chance: random.Random) -> Path:
    segments = template.files(".log")
    tp = chance.choice(list(template.content))
    ours = [p for p in segments if partition_of(p) == tp]
    return ours[-1] if chance.random() < 0.7 else chance.choice(ours)


def _before(written: list[Written], path: Path, size: int) -> list[Written]:
    """Returns the batches that are complete before byte `size` of the segment at `path`."""
    parsed = parse_segment_file(path.name)
    assert parsed is not None
    kept, position = [], 0
    for w in written:
        if w.base >= parsed[0]:
            position += len(w.data)
            if position > size:
                break
        kept.append(w)
    return kept


CAMPAIGNS = [SegmentCut()]
