"""One fsync fails. The kernel may then have dropped the unwritten data, and a later success of fsync proves nothing
(the fsyncgate of 2018).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Result, Run, heard
from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import KlammError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.log_directory import CLEAN_SHUTDOWN
from klamm.core.log.manager import LogManager
from klamm.core.records.header import rewrite_base
from klamm.core.records.partition import TopicPartition
from klammtest.logs import ManualClock
from logs.template import (
    CODECS,
    IDEMPOTENT,
    PLAIN,
    TOPIC_IDS,
    Content,
    Written,
    closing,
    consume,
    make_batch,
    open_manager,
)

PLANTED = 3
HELD = TopicConfig.model_validate({"segment_bytes": 4_000, "flush_messages": 10, "retention_ms": -1}, by_name=True)


class FsyncEio:
    name = "fsync-eio"
    injects = "one failing fsync (EIO) of a partition when it is flushed; all later ones would succeed"
    asserts = (
        "the partition goes offline and stays so, its recovery point stands still, no mark of an orderly stop is "
        "left; the other partition continues; after a restart everything acknowledged is there"
    )
    plants = "the failed partition is put online again, as if the next successful fsync could be trusted"
    tools = ()

    def run(self, run: Run) -> Result:
        total = Result(wanted=20 if run.quick else 500)
        for i, chance in run.injections(20, 500):
            folder = run.folder / f"i{i}"
            _inject(i, chance, folder, total, plant=run.plant and i < PLANTED)
            shutil.rmtree(folder)
        return total


@contextmanager
def failing(rules: str) -> Iterator[ScriptedFaults]:
    hook = ScriptedFaults(rules)
    faults.install(hook)
    try:
        yield hook
    finally:
        faults.install(None)


def _inject(i: int, chance: random.Random, folder: Path, total: Result, *, plant: bool) -> None:
    clock = ManualClock()
    with heard():
        manager = open_manager(folder, clock, HELD)
        logs = {tp: manager.create(tp, TOPIC_IDS[tp.topic], HELD) for tp in (PLAIN, IDEMPOTENT)}
        stored: Content = {tp: [] for tp in logs}
        for step in range(chance.randint(1, 20)):
            _append(chance, manager, chance.choice([PLAIN, IDEMPOTENT]), stored, step, clock)
        _append(chance, manager, PLAIN, stored, 98, clock)
        if logs[PLAIN].log_end_offset == logs[PLAIN].recovery_point:
            # a single record, too little to cause an immediate flush
            _append(chance, manager, PLAIN, stored, 99, clock)
        log, flushed = logs[PLAIN], logs[PLAIN].recovery_point
        with failing("files.fsync=EIO"):
            try:
                log.flush()
                total.wrong(i, "a flush whose fsync failed reported success")
            except KlammError:
                total.injected += 1
        if plant:
            log._closed = None  # the plant: a change that no code may make
        _offline(i, chance, manager, stored, flushed, total, clock)
        manager.close()
        if (folder / CLEAN_SHUTDOWN).exists():
            total.wrong(i, "a mark of an orderly stop was left")
        _again(i, folder, stored, total)


def _append(
    chance: random.Random, manager: LogManager, tp: TopicPartition, stored: Content, step: int, clock: ManualClock
) -> None:
    batch, stamps = make_batch(chance, CODECS, None, f"{tp}/{step}", clock(), 12 if step < 99 else 1)
    at = manager.logs()[tp].append_as_leader(batch, 0)
    manager.logs()[tp].advance_high_watermark(at.last_offset + 1)
    rewrite_base(batch, 0, at.base_offset, 0)
    stored[tp].append(Written(at.base_offset, at.last_offset, bytes(batch), stamps))


def _offline(
    i: int, chance: random.Random, manager: LogManager, stored: Content, flushed: int,
    total: Result, clock: ManualClock,
) -> None:  # fmt: skip
    """Checks that the failed partition stays offline, though later fsyncs would succeed, and that the other one
    continues.
    """
    log = manager.logs()[PLAIN]
    if log.offline is None:
        total.wrong(i, "the partition is not offline after its fsync failed")
    for attempt in (log.flush, lambda: log.append_as_leader(make_batch(chance, CODECS, None, "no", clock())[0], 0)):
        try:
            attempt()
            total.wrong(i, "the partition that failed takes another flush or batch")
        except KlammError:
            pass
    manager.run_maintenance(clock() + 10_000)
    if log.recovery_point != flushed:
        total.lose(i, f"the recovery point went from {flushed} to {log.recovery_point} over a failed fsync")
    try:
        _append(chance, manager, IDEMPOTENT, stored, 100, clock)
        manager.logs()[IDEMPOTENT].flush()
    except KlammError as error:
        total.wrong(i, f"the other partition does not continue: {error}")


def _again(i: int, folder: Path, stored: Content, total: Result) -> None:
    with closing(open_manager(folder, config=HELD)) as manager:
        for tp, written in stored.items():
            if not written:
                continue
            total.acknowledged += sum(w.records for w in written)
            served = consume(manager.logs()[tp], written)
            for what in served.corrupt:
                total.corrupt(i, what)
            for w in written:
                if w.base not in served.seen:
                    total.lose(i, f"{tp}: {w.base} is missing after the restart", w.records)


CAMPAIGNS = [FsyncEio()]
