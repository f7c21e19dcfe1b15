"""Kills the process repeatedly at each write, fsync, rename, unlink and truncation of the log."""

from __future__ import annotations

from pathlib import Path

from harness import Result, Run, heard
from klamm.core.errors import KlammError
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.records.header import BatchHeader, crc_matches, iter_headers
from klammtest.logs import ManualClock
from logs.killing import Kill, kill_everywhere, points_of_the_log, rehearse
from logs.lives import PARTITIONS, Account, as_stored, config_for, fork_life, mark
from logs.template import CLUSTER, CODECS, closing

SCRIPTS = 6


class KillAtFaultPoint:
    name = "kill-at-fault-point"
    injects = (
        "SIGKILL at a random pass of each fault point of the log, in a process that appends, rolls, flushes, retains, "
        "truncates, deletes, stops and starts"
    )
    asserts = (
        "every acknowledged batch that was not to go is there, at its offset, byte for byte; nothing is there that was "
        "not sent; a retry of the last batch is a duplicate"
    )
    plants = "the last acknowledged batch is cut off before the log is opened again"
    tools = ()

    def run(self, run: Run) -> Result:
        def live(folder: Path, script: int) -> dict[str, int]:
            return fork_life(folder, run.chance(f"script {script}"), "")[0].passed

        def kill_one(kill: Kill, total: Result) -> None:
            account, killed = fork_life(kill.folder, run.chance(f"script {kill.script}"), kill.rules)
            total.injected += killed
            total.acknowledged += account.acknowledged
            _judge(str(kill), account, kill.folder, total, plant=kill.plant)

        wanted = {point for point in points_of_the_log() if not point.startswith("compaction.")}
        return kill_everywhere(run, rehearse(run, SCRIPTS, live), kill_one, wanted)


def _judge(at: str, account: Account, folder: Path, total: Result, *, plant: bool) -> None:
    with heard() as said:
        if plant:
            _cut_last(account, folder)
        try:
            manager = LogManager(
                folder, broker_id=0, cluster_id=CLUSTER, codecs=CODECS, config_for=config_for,
                clock=ManualClock(account.now_ms),
            )  # fmt: skip
        except KlammError as error:
            total.lose(at, f"the log does not open: {error}", account.acknowledged)
            return
        with closing(manager):
            for tp in PARTITIONS:
                log = manager.logs().get(tp)
                if log is not None:
                    _judge_log(at, account, log, total)
                elif account.must_be_there(str(tp)):
                    total.lose(at, f"{tp} is gone ({said[-1:]})", len(account.must_be_there(str(tp))))


def _judge_log(at: str, account: Account, log: PartitionLog, total: Result) -> None:
    tp = str(log.tp)
    stored: dict[int, str] = {}
    position = log.log_start_offset
    while position < log.log_end_offset:
        try:
            data = log.read(position, 10_000, isolation=ReadIsolation.LOG_END).data
        except KlammError as error:
            total.wrong(at, f"{tp}: cannot continue reading at {position}: {error}")
            return
        for pos, header in iter_headers(data):
            sign = mark(data[pos : pos + header.size])
            if not crc_matches(data, pos, header) or sign not in account.sent[tp]:
                total.corrupt(at, f"{tp}: the batch at {header.base_offset} was never sent")
            stored[header.base_offset] = sign
            position = max(position, header.next_offset)
        if not data:
            total.wrong(at, f"{tp}: nothing is read at {position}, the log ends at {log.log_end_offset}")
            return
    doubled = len(stored) - len(set(stored.values()))
    if doubled:
        total.wrong(at, f"{tp}: {doubled} batches are stored twice")
    for base, kept in account.must_be_there(tp).items():
        if stored.get(base) != kept.mark:
            total.lose(at, f"{tp}: the batch acknowledged at {base} is missing", kept.last - base + 1)
    _retry_and_go_on(at, account, log, total)


def _retry_and_go_on(at: str, account: Account, log: PartitionLog, total: Result) -> None:
    kept = account.must_be_there(str(log.tp))
    if not kept:
        return
    base = max(kept)
    batch = as_stored(kept[base], base)
    idempotent = BatchHeader.parse(batch).producer_id >= 0
    try:
        again = log.append_as_leader(batch, log.leader_epoch)
    except KlammError as error:
        total.wrong(at, f"{log.tp}: a retry is refused: {error}")
        return
    if again.duplicate != idempotent or (idempotent and again.base_offset != base):
        total.wrong(at, f"{log.tp}: a retry of the batch at {base} was stored again, at {again.base_offset}")


def _cut_last(account: Account, folder: Path) -> None:
    for tp in map(str, PARTITIONS):
        kept = account.must_be_there(tp)
        for segment in sorted((folder / tp).glob("*.log"), reverse=True):
            for pos, header in iter_headers(segment.read_bytes()):
                if kept and header.base_offset == max(kept):
                    with segment.open("r+b") as file:
                        file.truncate(pos)


CAMPAIGNS = [KillAtFaultPoint()]
