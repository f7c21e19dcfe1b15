"""fsync fails in a real broker: strace makes the system call return EIO, then detaches from the broker."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from harness import Result, Run
from klamm.core.log.log_directory import CLEAN_SHUTDOWN
from klammtest.broker import RunningBroker, running_broker
from produced import send, values_in

FAILING, OTHER = "failing", "other"
SIZE = 200
FLUSHED = {"partitions": 1, "config": {"flush.messages": "1", "segment.bytes": "100000000"}}
ATTACH_S = 30.0
_INJECTED = re.compile(r"(?:fsync|fdatasync)\(.*EIO.*\(INJECTED\)")


class FsyncSyscall:
    name = "fsync-eio-syscall"
    injects = "EIO as the answer of one fsync or fdatasync of a partition's segment in a running broker, by strace"
    asserts = (
        "the record gets KAFKA_STORAGE_ERROR, the partition goes offline and stays so when fsync works again, the "
        "other goes on; a stop leaves no mark of an orderly one; after a restart all that was acknowledged is there"
    )
    plants = "refused records are treated as acknowledged"
    tools = ("strace=strace",)

    def run(self, run: Run) -> Result:
        total = Result(wanted=1 if run.quick else 20)
        values = count()
        acknowledged: dict[str, list[int]] = {FAILING: [], OTHER: []}
        with running_broker(run.folder / "broker", topics={FAILING: FLUSHED, OTHER: FLUSHED}) as broker:
            for i, chance in run.injections(1, 20):
                _round(i, chance, broker, values, acknowledged, total, plant=run.plant)
        total.acknowledged = sum(map(len, acknowledged.values()))
        return total


def _round(
    i: int, chance: random.Random, broker: RunningBroker, values: Iterator[int],
    acknowledged: dict[str, list[int]], total: Result, *, plant: bool,
) -> None:  # fmt: skip
    def sent(topic: str, number: int) -> list[str]:
        """Sends `count` records and returns their errors."""
        became = send(broker.bootstrap, topic, [next(values) for _ in range(number)], size=SIZE, timeout_ms=20_000)
        acknowledged[topic] += [value for value, error in became.items() if not error]
        if plant and topic == FAILING:
            acknowledged[topic] += [value for value, error in became.items() if error]
        return [error for error in became.values() if error]

    if sent(FAILING, 5) or sent(OTHER, 5):
        total.wrong(i, "records were refused before a fault was injected")
    segment = max((broker.log_dir / f"{FAILING}-0").glob("*.log"))
    with failing_fsync(broker.pid, segment, chance.randint(1, 5), total, i):
        refused = sent(FAILING, 8)
    if set(refused) != {"KAFKA_STORAGE_ERROR"}:
        total.wrong(i, f"an fsync failed, and the records were answered with {set(refused)}")
    if "KAFKA_STORAGE_ERROR" not in sent(FAILING, 2):
        total.wrong(i, "the partition whose fsync failed takes records again")
    if sent(OTHER, 5):
        total.wrong(i, "the other partition refuses records")
    broker.stop()
    if (broker.log_dir / CLEAN_SHUTDOWN).exists():
        total.wrong(i, "a mark of an orderly stop was left")
    if "Traceback" in broker.log():
        total.wrong(i, "a traceback in the broker's log")
    broker.start()
    for topic, those in acknowledged.items():
        missing = set(those) - set(values_in(broker.bootstrap, topic))
        for value in sorted(missing):
            total.lose(i, f"{topic}: {value} was acknowledged and is missing")


@contextmanager
def failing_fsync(pid: int, path: Path, nth: int, total: Result, at: int) -> Iterator[None]:
    """Makes the `nth` fsync of this file, counted from now, fail; no other fails."""
    said = path.parents[2] / "strace.out"
    command = [
        "strace", "-f", "-p", str(pid), "-P", str(path), "-o", str(said),
        "-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:error=EIO:when={nth}",
    ]  # fmt: skip
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _wait_attached(pid, tracer)
        yield
    finally:
        tracer.terminate()
        _, errors = tracer.communicate(timeout=ATTACH_S)
    text = said.read_text() if said.exists() else ""
    said.unlink(missing_ok=True)
    if _INJECTED.search(text):
        total.injected += 1
    else:
        total.wrong(at, f"strace injected nothing: {errors.strip()[-300:]} {text.strip()[-300:]}")


def _wait_attached(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Waits until all threads of the broker are traced."""
    deadline = time.monotonic() + ATTACH_S
    while time.monotonic() < deadline and tracer.poll() is None:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        if all(f"\nTracerPid:\t{tracer.pid}\n" in (task / "status").read_text() for task in tasks):
            return
        time.sleep(0.02)


CAMPAIGNS = [FsyncSyscall()]
