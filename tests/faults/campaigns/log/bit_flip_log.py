"""Flips one bit of a segment, in the bytes that the CRC covers or in the header fields that it does not cover."""

from __future__ import annotations

import random
from pathlib import Path

from harness import Result, Run, heard
from klamm.core.errors import KlammError
from klamm.core.log.manager import LogManager
from klamm.core.records.header import CRC_FROM, BatchHeader, crc_of, iter_headers, set_crc
from logs.flips import Damage, Flip, damage_each, verdict
from logs.template import Template, closing, consume, open_manager, partition_of

UNCOVERED = CRC_FROM
"""Number of bytes of a batch up to and including its CRC."""
LEADER_EPOCH = range(12, 16)
"""The bytes of a batch with its leader epoch."""


class BitFlipLog:
    name = "bit-flip-log"
    injects = (
        "one bit of a segment, a third of them in the header fields outside the CRC; under a running log or before it "
        "is opened, after an orderly stop or a kill"
    )
    asserts = (
        "the broker or the consumer's CRC check detects it; what a consumer accepts is, byte for byte, what was written"
    )
    plants = "the CRC of the flipped batch is corrected, so that only comparing bytes finds it"
    tools = ()

    def run(self, run: Run) -> Result:
        return damage_each(run, 4, _inject, clean=lambda n: n % 2 == 0)


def _inject(damage: Damage, total: Result) -> None:
    i, chance, template, folder = damage.number, damage.chance, damage.template, damage.folder
    flip, batch = _choose(chance, template, covered=damage.plant)
    live = chance.random() < 0.4
    total.acknowledged += template.records

    def inject() -> None:
        flip.apply(folder)
        if damage.plant:
            _make_crc_right(folder / flip.path, batch)

    with heard() as said:
        if not live:
            inject()
        try:
            manager = open_manager(folder)
        except KlammError as error:
            said.append(str(error))
            total.count("refused-to-open")
            verdict(i, flip, True, total)
            return
        with closing(manager):
            if live:
                inject()
            _check(i, flip, manager, template, said, total)


def _choose(chance: random.Random, template: Template, *, covered: bool) -> tuple[Flip, int]:
    """Chooses a bit of a segment; returns it and the position of its batch. Not one of the leader epoch of a log's last
    batch, which shows by nothing after a kill (docs/log.md)."""
    while True:
        path = chance.choice(template.files(".log"))
        starts = [(pos, header.size) for pos, header in iter_headers((template.folder / path).read_bytes())]
        begin, size = chance.choice(starts)
        low, high = (0, UNCOVERED) if chance.random() < 0.34 and not covered else (UNCOVERED, size)
        at = begin + chance.randrange(low, high)
        last = max(each for each in template.files(".log") if each.parent == path.parent)
        if (path, begin) != (last, starts[-1][0]) or at - begin not in LEADER_EPOCH:
            return Flip(path, at, chance.randrange(8)), begin


def _make_crc_right(path: Path, batch: int) -> None:
    data = bytearray(path.read_bytes())
    set_crc(data, batch, crc_of(data, batch, BatchHeader.parse(data, batch).size))
    path.write_bytes(data)


def _check(i: int, flip: Flip, manager: LogManager, template: Template, said: list[str], total: Result) -> None:
    noticed: list[str] = []
    for tp, written in template.content.items():
        served = consume(manager.logs()[tp], written)
        ours = tp == partition_of(flip.path)
        noticed += served.detected
        for what in served.corrupt:
            total.corrupt(i, f"{flip}: {what}")
        missing = [w for w in written if w.base not in served.seen]
        if missing and not ours:
            total.lose(i, f"{flip}: {tp} is not the damaged partition, but lacks {missing[0].base}", len(missing))
        elif missing and not (said or served.detected):
            total.lose(i, f"{flip}: {missing[0].base} is not served, and no error was reported", len(missing))
        total.count("batches-withheld", len(missing))
    by_consumer = bool(noticed) and all(what.startswith("consumer") for what in noticed) and not said
    total.count("by-consumer", by_consumer)
    total.count("by-broker", bool(said or noticed) and not by_consumer)
    verdict(i, flip, bool(said or noticed), total)


CAMPAIGNS = [BitFlipLog()]
