"""Runs a program and adds up what it and all its descendants cost: seconds, CPU seconds, memory.

    python -m klammbench.load.measure RESULT TIMEOUT COMMAND...

It is a process of its own because it becomes the subreaper of orphans: Spark's JVM outlives the driver for a moment,
and Linux reports the CPU time of an ended process only to the process that waits for it. So the total includes
processes that ended between two samples. Memory and the share of each role are sampled. When it ends, no descendant is
left running.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from klammbench.paths import PYTHON, ROOT
from klammbench.process import cpu_seconds, pss_bytes, tree

ROLES = ("driver", "jvm", "workers")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_SAMPLE_S = 0.2
_ORPHANS_S = 20.0


@dataclass(slots=True)
class Cost:
    """`seconds` until the program itself ended; `cpu_s` of it and its descendants until all had ended. The peaks are
    the memory of a role at one time (PSS); `peak` is that of all of them together.
    """

    status: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    peak: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds by role, sampled: what a process used after its last sample is missing."""


def measure(command: Sequence[str], result: Path, log: Path, timeout_s: float, environment: Mapping[str, str]) -> Cost:
    """Runs the command and returns its cost. Raises `RuntimeError` with the program's last line if it fails or takes
    too long.
    """
    runner = [str(PYTHON), "-m", "klammbench.load.measure", str(result), str(timeout_s), *command]
    given = {**os.environ, "PYTHONPATH": str(ROOT / "bench"), **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(
            runner, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=given, start_new_session=True
        )
        try:
            process.wait(timeout_s + 2 * _ORPHANS_S)
        finally:
            if process.poll() is None:  # this process was told to end
                process.terminate()
                process.wait(2 * _ORPHANS_S)
    cost = Cost(**json.loads(result.read_text())) if result.exists() else Cost(status=-1)
    if cost.status:
        raise RuntimeError(_last_line(log) or f"it ended with status {cost.status} and printed nothing")
    return cost


def _last_line(log: Path) -> str:
    """Returns the line of the program's output that most likely names the reason."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("klamm: ") or "Error" in line or "Exception" in line]
    return (named or lines or [""])[-1]


class _Sampler:
    def __init__(self, root: int, cost: Cost) -> None:
        self._root = root
        self._cost = cost
        self._cpu: dict[str, dict[int, float]] = {role: {} for role in ROLES}

    def sample(self) -> None:
        now = dict.fromkeys(ROLES, 0)
        for pid in tree(os.getpid()):
            role = self._role(pid)
            if role is None:
                continue
            now[role] += pss_bytes([pid])
            if spent := cpu_seconds([pid]):
                self._cpu[role][pid] = spent
        cost = self._cost
        cost.peak = max(cost.peak, sum(now.values()))
        for role, size in now.items():
            cost.peaks[role] = max(cost.peaks.get(role, 0), size)
        cost.cpu = {role: sum(spent.values()) for role, spent in self._cpu.items()}

    def _role(self, pid: int) -> str | None:
        """Returns the role of a process; None for this process itself."""
        if pid == os.getpid():
            return None
        if pid == self._root:
            return "driver"
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return None
        return "jvm" if name == "java" else "workers"


def _run(command: Sequence[str], timeout_s: float) -> Cost:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cost = Cost()
    begin = time.monotonic()
    process = subprocess.Popen(command)
    sampler = _Sampler(process.pid, cost)
    try:
        while process.poll() is None:
            if time.monotonic() - begin > timeout_s:
                print(f"it took more than {timeout_s:g} s", flush=True)
                process.kill()
            sampler.sample()
            try:
                process.wait(_SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue
        cost.seconds = time.monotonic() - begin
    finally:
        if process.poll() is None:
            process.terminate()
        _await_orphans(sampler)
    cost.status = process.returncode
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost.cpu_s = spent.ru_utime + spent.ru_stime
    return cost


def _await_orphans(sampler: _Sampler) -> None:
    """Waits until every descendant has ended; kills those that do not end in time."""
    deadline = time.monotonic() + _ORPHANS_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        sampler.sample()
        if time.monotonic() > deadline:
            for left in tree(os.getpid()):
                if left != os.getpid():
                    os.kill(left, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    found = _run(sys.argv[3:], float(sys.argv[2]))
    Path(sys.argv[1]).write_text(json.dumps(asdict(found)))
