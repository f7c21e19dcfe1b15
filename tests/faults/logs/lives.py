"""A process that appends, rolls, flushes, applies retention, truncates and deletes, and is killed meanwhile.

It is forked from a warmed-up parent, which takes milliseconds. It writes what it is about to do, and what was
acknowledged, into a pipe, one JSON line each, so that nothing is lost with the process. The parent opens the log and
judges it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from uuid import UUID

from harness import heard
from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.faults import ScriptedFaults
from klamm.core.log.manager import LogManager
from klamm.core.records.header import BatchHeader, rewrite_base
from klamm.core.records.partition import TopicPartition
from klammtest.logs import START_MS, ManualClock
from logs.template import CLUSTER, CODECS, Sequences, make_batch

RETENTION_MS = 60_000
STEPS = 70
PARTITIONS = [TopicPartition("held", 0), TopicPartition("free", 0), TopicPartition("free", 1)]
TOPIC_IDS = {"held": UUID(int=21), "free": UUID(int=22)}
Say = Callable[[list[object]], None]


def config_for(topic: str) -> TopicConfig:
    """Returns a topic's configuration: small segments, retention of a minute. `held`: consumers see only flushed
    records."""
    return TopicConfig.model_validate(
        {"segment_bytes": 2_500, "index_interval_bytes": 300, "retention_ms": RETENTION_MS, "max_message_bytes": 2_000,
         "file_delete_delay_ms": 3_000, **({"flush_messages": 15} if topic == "held" else {})},
        by_name=True,
    )  # fmt: skip


def mark(data: bytes | bytearray) -> str:
    """Returns a hash of a batch, without its offset and epoch."""
    return blake2b(data[16:], digest_size=12).hexdigest()


class Life:
    """Opens, works and stops three times; whether a stop is clean is random."""

    def __init__(self, folder: Path, chance: random.Random, say: Say) -> None:
        self.folder, self.chance, self.say = folder, chance, say
        self.clock = ManualClock()
        self.sequences = {tp: Sequences() for tp in PARTITIONS}
        self.epoch = 0
        self.sent = 0

    def live(self) -> None:
        for _ in range(3):
            manager = LogManager(
                self.folder, broker_id=0, cluster_id=CLUSTER, codecs=CODECS, config_for=config_for, clock=self.clock
            )
            for tp in PARTITIONS:
                manager.create(tp, TOPIC_IDS[tp.topic], config_for(tp.topic))
            for _ in range(STEPS):
                self._step(manager)
            manager.close(clean=self.chance.random() < 0.6)

    def _step(self, manager: LogManager) -> None:
        tp = self.chance.choice(PARTITIONS)
        what = self.chance.random()
        self.clock.advance(self.chance.randint(0, 1_500))
        if what < 0.80:
            self._append(manager, tp)
        elif what < 0.88:
            self.say(["time", self.clock()])
            manager.run_maintenance(self.clock())
            manager.apply_retention(self.clock())
        elif what < 0.93:
            manager.logs()[tp].flush()
        elif what < 0.96:
            self.epoch += 1
            for log in manager.logs().values():
                log.begin_leader_epoch(self.epoch)
        elif what < 0.98:
            self._truncate(manager, tp)
        else:
            self.say(["delete", str(tp)])
            self.sequences[tp] = Sequences()
            manager.remove(tp)
            manager.create(tp, TOPIC_IDS[tp.topic], config_for(tp.topic))

    def _append(self, manager: LogManager, tp: TopicPartition) -> None:
        log = manager.logs()[tp]
        self.sent += 1
        sequences = self.sequences[tp] if tp.partition == 0 else None
        batch, stamps = make_batch(self.chance, CODECS, sequences, f"{tp}/{self.sent}", self.clock(), 6)
        self.say(["send", str(tp), mark(batch)])
        result = log.append_as_leader(batch, self.epoch)
        log.advance_high_watermark(log.log_end_offset)
        self.say(["ack", str(tp), result.base_offset, result.last_offset, mark(batch), max(stamps), batch.hex()])

    def _truncate(self, manager: LogManager, tp: TopicPartition) -> None:
        log = manager.logs()[tp]
        at = self.chance.randint(max(log.log_start_offset, log.log_end_offset - 20), log.log_end_offset)
        if at < log.log_end_offset:
            self.say(["truncate", str(tp), at])
            self.sequences[tp] = Sequences(first_id=10 * self.sent)  # producers of truncated batches start again
            log.truncate_to(at)


@dataclass
class Kept:
    """An acknowledged batch that must be in the log. `batch` holds the stored bytes."""

    last: int
    mark: str
    newest_ms: int
    batch: bytes


@dataclass
class Account:
    """The account that the killed process wrote into the pipe."""

    sent: dict[str, set[str]] = field(default_factory=lambda: {str(tp): set() for tp in PARTITIONS})
    kept: dict[str, dict[int, Kept]] = field(default_factory=lambda: {str(tp): {} for tp in PARTITIONS})
    acknowledged: int = 0
    now_ms: int = START_MS
    judged_ms: int = START_MS
    passed: dict[str, int] = field(default_factory=dict)

    def hear(self, line: bytes) -> None:
        kind, *said = json.loads(line)
        match kind:
            case "send":
                self.sent[said[0]].add(said[1])
            case "ack":
                tp, base, last, sign, newest, data = said
                self.kept[tp][base] = Kept(last, sign, newest, bytes.fromhex(data))
                self.acknowledged += last - base + 1
                self.now_ms = max(self.now_ms, newest)
            case "time":
                self.judged_ms = said[0]
            case "truncate":
                self.kept[said[0]] = {b: k for b, k in self.kept[said[0]].items() if k.last < said[1]}
            case "delete":
                self.kept[said[0]] = {}
            case "passed":
                self.passed = said[0]

    def must_be_there(self, tp: str) -> dict[int, Kept]:
        """Returns the kept batches, without those that retention may have deleted."""
        return {b: k for b, k in self.kept[tp].items() if self.judged_ms - k.newest_ms <= RETENTION_MS}


def fork_life(folder: Path, chance: random.Random, rules: str) -> tuple[Account, bool]:
    """Runs one life with these fault rules; returns its account, and True if it was killed."""
    account = Account()
    killed = fork(lambda say: Life(folder, chance, say).live(), rules, account.hear)
    return account, killed


def fork(work: Callable[[Say], None], rules: str, hear: Callable[[bytes], None]) -> bool:
    """Runs `work` in a forked process with these fault rules and returns True if it was killed.

    `hear` gets each line that the process writes, and at its end `["passed", {point: number of passes}]`. Raises
    `RuntimeError` if it ended in another way.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _be_the_child(work, rules, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        for line in pipe:
            if line.endswith(b"\n"):
                hear(line)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status:
        raise RuntimeError(f"the forked process ended with {os.waitstatus_to_exitcode(status)}")
    return killed


def _be_the_child(work: Callable[[Say], None], rules: str, pipe: int) -> None:
    status = 1
    try:
        hook = ScriptedFaults(rules)
        faults.install(hook)
        with heard():
            work(lambda what: _write(pipe, what))
        _write(pipe, ["passed", hook.passed])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _write(pipe: int, what: list[object]) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


def as_stored(kept: Kept, base: int) -> bytearray:
    """Returns the batch as its producer sends it again."""
    batch = bytearray(kept.batch)
    rewrite_base(batch, 0, 0, -1)
    assert BatchHeader.parse(kept.batch).base_offset == base
    return batch
