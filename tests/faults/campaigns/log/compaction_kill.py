"""Kills the process at a step of log compaction: writing, syncing, swapping, removing, or storing the cleaner's
offset.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from harness import Result, Run, heard
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import KlammError
from klamm.core.log.cleanup.cleaner import Cleaner, CleanerConfig
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.logs import START_MS, ManualClock, read_all
from logs.killing import EACH, Kill, kill_everywhere, points_of_the_log, rehearse
from logs.lives import Say, fork
from logs.template import CLUSTER, CODECS, closing

TP = TopicPartition("keyed", 0)
TOPIC_ID = UUID(int=31)
SCRIPTS, STEPS, KEYS = 4, 120, 25
RECOVER = "compaction.recover"
"""The fault point passed when a log is opened that was killed during a swap."""
CONFIG = TopicConfig.model_validate(
    {"cleanup_policy": "compact", "segment_bytes": 1_500, "min_cleanable_dirty_ratio": 0.1,
     "delete_retention_ms": 5_000, "max_message_bytes": 1_000, "file_delete_delay_ms": 0},
    by_name=True,
)  # fmt: skip
CLEANER = CleanerConfig(dedupe_buffer_size=4_096)


class CompactionKill:
    name = "compaction-kill"
    injects = "SIGKILL at a random pass of each fault point of the log and of compaction, while a topic is compacted"
    asserts = (
        "the last value of each key is there at its offset (a last tombstone may be gone), every other record that is "
        "there is one that was sent, at its offset; the log end stands; the log compacts on and keeps all of that"
    )
    plants = "the last batch is cut off before the log is opened again"
    tools = ()

    def run(self, run: Run) -> Result:
        def live(folder: Path, script: int) -> dict[str, int]:
            account = Account()
            fork(Work(folder, run.chance(f"script {script}")), "", account.hear)
            return account.passed

        def kill_one(kill: Kill, total: Result) -> None:
            account = Account()
            work = Work(kill.folder, run.chance(f"script {kill.script}"))
            total.injected += fork(work, kill.rules, account.hear)
            total.acknowledged += len(account.acknowledged)
            if kill.point.startswith("compaction"):  # the recovery after the first kill is killed too
                again = fork(lambda _: _recover(kill.folder), f"{RECOVER}@{kill.nth % 3 + 1}=kill", _ignore)
                total.count("killed-recovering", again)
            with heard():
                if kill.plant:
                    _cut(kill.folder)
                _judge(str(kill), account, kill.folder, total)

        wanted = {point for point in points_of_the_log() if point.startswith("compaction.") and point != RECOVER}
        total = kill_everywhere(run, rehearse(run, SCRIPTS, live), kill_one, wanted)
        if run.only is None and total.figures.get("killed-recovering", 0) < (1 if run.quick else EACH):
            total.wrong("all", f"killed {total.figures.get('killed-recovering', 0)} times at {RECOVER} only")
        return total


@dataclass
class Account:
    """`sent` and `acknowledged`: by number of the record and by offset, each (key, value or None)."""

    sent: set[tuple[str, str | None]] = field(default_factory=set)
    acknowledged: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)

    def hear(self, line: bytes) -> None:
        kind, said = json.loads(line)
        if kind == "send":
            self.sent |= {(key, value) for key, value in said}
        elif kind == "ack":
            self.acknowledged |= {offset: (key, value) for offset, key, value in said}
        else:
            self.passed = said


class Work:
    """Appends by key, sometimes compacts; stops and starts once in between."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.clock = ManualClock()
        self.number = 0

    def __call__(self, say: Say) -> None:
        for _ in range(2):
            manager = _open(self.folder, self.clock)
            log = manager.create(TP, TOPIC_ID, CONFIG)
            cleaner = Cleaner(manager, CODECS, CLEANER, self.clock)
            for _ in range(STEPS):
                self.clock.advance(self.chance.randint(0, 300))
                if self.chance.random() < 0.92:
                    self._append(log, say)
                else:
                    manager.run_maintenance(self.clock())
                    cleaner.run_once()
            manager.close(clean=self.chance.random() < 0.5)

    def _append(self, log: PartitionLog, say: Say) -> None:
        rows: list[tuple[str, str | None]] = []
        for _ in range(self.chance.randint(1, 5)):
            self.number += 1
            value = None if self.chance.random() < 0.1 else f"{self.number} {'x' * self.chance.randint(0, 60)}"
            rows.append((f"k{self.chance.randrange(KEYS)}", value))
        say(["send", rows])
        name = self.chance.choice(["", "gzip", "zstd"])
        batch = encode_batch(
            [(self.clock(), key.encode(), None if value is None else value.encode(), ()) for key, value in rows],
            codec=CODECS.by_name(name) if name else None,
        )
        at = log.append_as_leader(bytearray(batch), 0).base_offset
        log.advance_high_watermark(log.log_end_offset)
        say(["ack", [(at + i, key, value) for i, (key, value) in enumerate(rows)]])


def _open(folder: Path, clock: ManualClock) -> LogManager:
    return LogManager(folder, broker_id=0, cluster_id=CLUSTER, codecs=CODECS, config_for=lambda _: CONFIG, clock=clock)


def _recover(folder: Path) -> None:
    _open(folder, ManualClock(START_MS + 200_000)).close(clean=False)


def _ignore(_: bytes) -> None:
    """Ignores the output of a recovery: the first life has already reported it."""


def _judge(at: str, account: Account, folder: Path, total: Result) -> None:
    clock = ManualClock(START_MS + 200_000)
    try:
        manager = _open(folder, clock)
    except KlammError as error:
        total.lose(at, f"the log does not open: {error}", len(account.acknowledged))
        return
    with closing(manager):
        log = manager.logs().get(TP)
        if log is None:
            if account.acknowledged:
                total.lose(at, "the log is gone", len(account.acknowledged))
            return
        log.advance_high_watermark(log.log_end_offset)
        _compare(at, account, log, total)
        Cleaner(manager, CODECS, CLEANER, clock).run_once()
        _compare(f"{at}, compacted once more", account, log, total)


def _compare(at: str, account: Account, log: PartitionLog, total: Result) -> None:
    try:
        stored = {
            r.offset: ((r.key or b"").decode(), None if r.value is None else r.value.decode()) for r in read_all(log)
        }
    except (KlammError, AssertionError) as error:
        total.wrong(at, f"cannot be read: {error}")
        return
    last = {row[0]: (offset, row) for offset, row in sorted(account.acknowledged.items())}
    latest_stored = {row[0]: offset for offset, row in sorted(stored.items())}
    for key, (offset, row) in last.items():
        newer = latest_stored.get(key, -1) > offset  # sent and stored, but not acknowledged before the kill
        if stored.get(offset) != row and not newer and row[1] is not None:
            total.lose(at, f"the last value of {key}, acknowledged at {offset}, is missing")
        if row[1] is None and not newer and key in latest_stored and latest_stored[key] != offset:
            total.wrong(at, f"{key} was deleted at {offset} but exists at offset {latest_stored[key]}")
    for offset, row in stored.items():
        if account.acknowledged.get(offset, row) != row or row not in account.sent:
            total.corrupt(at, f"offset {offset} holds {row}, acknowledged was {account.acknowledged.get(offset)}")
    if account.acknowledged and log.log_end_offset <= max(account.acknowledged):
        total.lose(at, f"the log ends at {log.log_end_offset}, {max(account.acknowledged)} was acknowledged")


def _cut(folder: Path) -> None:
    for segment in sorted((folder / str(TP)).glob("*.log"), reverse=True):
        found = [pos for pos, _ in iter_headers(segment.read_bytes())]
        if found:
            with segment.open("r+b") as file:
                file.truncate(found[0])
            return


CAMPAIGNS = [CompactionKill()]
