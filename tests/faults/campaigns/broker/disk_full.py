"""A real broker runs on a small file system that is filled and freed again and again."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

from harness import Result, Run
from klammtest.broker import RunningBroker, running_broker
from klammtest.waiting import within
from mounts import small_disk
from produced import send, values_in

TOPIC = "small"
DISK_MB = 32


class DiskFull:
    name = "disk-full"
    injects = "a tmpfs of 32 MB under a real broker filled by a file and by records, then freed; the broker runs on"
    asserts = (
        "a refused record gets KAFKA_STORAGE_ERROR, the log names the cause, no traceback; while it is full all that "
        "was acknowledged is read; once freed, records are taken again without a restart; all is there after one"
    )
    plants = "refused records are treated as acknowledged"
    tools = ()

    def run(self, run: Run) -> Result:
        rounds = 1 if run.quick else 10
        total = Result(wanted=rounds)
        disk = run.folder / "disk"
        disk.mkdir()
        values = count()
        acknowledged: list[int] = []
        topics = {TOPIC: {"partitions": 1, "config": {"segment.bytes": 1_000_000}}}
        with (
            small_disk(disk, DISK_MB),
            running_broker(run.folder / "broker", topics=topics, broker={"log.dirs": str(disk / "data")}) as broker,
        ):
            for i, chance in run.injections(rounds, rounds):
                self._round(i, chance, broker, disk, values, acknowledged, total, plant=run.plant)
            broker.restart()
            _compare("end", acknowledged, values_in(broker.bootstrap, TOPIC), total)
            total.acknowledged = len(acknowledged)
            if "Traceback" in broker.log():
                total.wrong("end", "a traceback in the broker's log")
        return total

    def _round(
        self, i: int, chance: random.Random, broker: RunningBroker, disk: Path, values: count[int],
        acknowledged: list[int], total: Result, *, plant: bool,
    ) -> None:  # fmt: skip
        ballast = disk / "ballast"
        refused: list[str] = []
        _fill(ballast, leave=chance.randrange(0, 60_000))
        for _ in range(40):
            for value, error in _send(broker, values, chance.randrange(2_000, 9_000)):
                if error and not plant:
                    refused.append(error)
                else:
                    acknowledged.append(value)
            if refused:
                break
        total.injected += bool(refused)
        total.count("refused", len(refused))
        if set(refused) - {"KAFKA_STORAGE_ERROR"}:
            total.wrong(i, f"records were refused with {set(refused)}")
        # The broker answers before it logs the cause: in a cluster, others learn of the disk first.
        if not within(lambda: "No space left on device" in broker.log()):
            total.wrong(i, "the broker's log does not say that the disk is full")
        _compare(i, acknowledged, values_in(broker.bootstrap, TOPIC), total)
        ballast.unlink()
        late = _send(broker, values, 100)
        acknowledged += [value for value, error in late if not error]
        if any(error for _, error in late):
            total.wrong(i, f"once the disk was freed, records are refused: {[e for _, e in late if e][:1]}")


def _send(broker: RunningBroker, values: count[int], size: int) -> list[tuple[int, str]]:
    return list(send(broker.bootstrap, TOPIC, [next(values) for _ in range(10)], size=size, timeout_ms=20_000).items())


def _fill(path: Path, leave: int) -> None:
    """Writes until the disk is full, then frees `leave` bytes, so that it is full in the middle of the next records."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 65_536):
                pass
        except OSError:
            pass
        size = file.tell()
        file.truncate(max(size - leave, 0))


def _compare(at: object, acknowledged: list[int], stored: list[int], total: Result) -> None:
    there = set(stored)
    for value in acknowledged:
        if value not in there:
            total.lose(at, f"{value} was acknowledged and is missing")
    if len(there) != len(stored):
        total.count("duplicated", len(stored) - len(there))


CAMPAIGNS = [DiskFull()]
