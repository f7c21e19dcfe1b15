"""The broker's clock jumps by up to a day, ahead or back, while records come in and retention runs."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from harness import Result, Run, heard
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import KlammError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.header import BatchHeader, rewrite_base
from klammtest.logs import ManualClock
from logs.template import (
    CODECS,
    IDEMPOTENT,
    PLAIN,
    TOPIC_IDS,
    Content,
    Sequences,
    Written,
    closing,
    consume,
    make_batch,
    open_manager,
)

PLANTED = 3
DAY_MS = 86_400_000
CONFIG = TopicConfig.model_validate(
    {"segment_bytes": 3_000, "retention_ms": 2 * DAY_MS, "segment_ms": DAY_MS // 4,
     "message_timestamp_after_max_ms": 2 * DAY_MS, "file_delete_delay_ms": 0},
    by_name=True,
)  # fmt: skip


class ClockJump:
    name = "clock-jump"
    injects = "the clock set a day ahead or back, at random, four times in a log's life; retention is 2 days"
    asserts = (
        "no record younger than the retention by the true time is deleted, before or after a restart; every batch is "
        "served whole; a retry is still a duplicate after a jump; a lookup by time does not fail"
    )
    plants = "the clock jumps by ten days, which retention must obey"
    tools = ()

    def run(self, run: Run) -> Result:
        total = Result(wanted=40 if run.quick else 1_000)
        i = 0
        while total.injected < total.wanted if run.only is None else i < 1:
            at = i if run.only is None else run.only
            folder = run.folder / f"i{at}"
            _life(at, run.chance(at), folder, total, 10 if run.plant and i < PLANTED else 1)
            shutil.rmtree(folder)
            i += 1
        return total


def _life(i: int, chance: random.Random, folder: Path, total: Result, days: int) -> None:
    """Appends while true time advances by minutes; the broker's clock is the true one plus `off`."""
    true, off = ManualClock(), 0
    clock = ManualClock()
    written: Content = {PLAIN: [], IDEMPOTENT: []}
    with heard():
        manager = open_manager(folder, clock, CONFIG, elapsed=true)
        sequences = Sequences()
        for step in range(60):
            true.advance(chance.randint(0, 120_000))
            if step % 15 == 14:
                off = days * DAY_MS * chance.choice([-1, 1]) if not off else chance.choice([0, -off])
                off = abs(off) if days > 1 else off
                total.injected += 1
            clock.now_ms = true() + off
            for tp in (PLAIN, IDEMPOTENT):
                log = manager.create(tp, TOPIC_IDS[tp.topic], CONFIG)
                batch, stamps = make_batch(
                    chance, CODECS, sequences if tp == IDEMPOTENT else None, f"{tp}/{step}", true()
                )
                at = log.append_as_leader(batch, 0)
                log.advance_high_watermark(log.log_end_offset)
                rewrite_base(batch, 0, at.base_offset, 0)
                written[tp].append(Written(at.base_offset, at.last_offset, bytes(batch), stamps))
            if chance.random() < 0.3:
                manager.run_maintenance(clock())
                manager.apply_retention(clock())
            if chance.random() < 0.03:
                manager.close(clean=chance.random() < 0.5)
                manager = open_manager(folder, clock, CONFIG, elapsed=true)
        manager.run_maintenance(clock())
        manager.apply_retention(clock())
        with closing(manager):
            for tp, batches in written.items():
                _check(i, manager.logs()[tp], batches, true(), total)


def _check(i: int, log: PartitionLog, written: list[Written], now_ms: int, total: Result) -> None:
    total.acknowledged += sum(w.records for w in written)
    served = consume(log, written)
    for what in served.corrupt:
        total.corrupt(i, f"{log.tp}: {what}")
    for w in written:
        if w.base not in served.seen and now_ms - max(w.stamps) <= CONFIG.retention_ms:
            total.lose(i, f"{log.tp}: {w.base} is {now_ms - max(w.stamps)} ms old and was deleted", w.records)
    try:
        log.offset_for_timestamp(written[len(written) // 2].stamps[0])
        last = written[-1]
        if BatchHeader.parse(last.data).producer_id >= 0:
            again = log.append_as_leader(bytearray(last.data), 0)
            if not again.duplicate:
                total.wrong(i, f"{log.tp}: a retry of {last.base} was stored again at {again.base_offset}")
    except KlammError as error:
        total.wrong(i, f"{log.tp}: {error}")


CAMPAIGNS = [ClockJump()]
