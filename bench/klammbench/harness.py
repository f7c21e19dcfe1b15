"""Parts that every benchmark program uses: a lock, an orderly end on signals, and a description of the machine."""

from __future__ import annotations

import datetime
import fcntl
import importlib.metadata
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from klamm.core.java import find_java
from klammbench.paths import ROOT, VAR

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "pyarrow")


class BusyError(RuntimeError):
    """Another benchmark runs on this checkout."""


@contextmanager
def alone() -> Iterator[None]:
    """Holds the lock of this checkout. Raises `BusyError` if another benchmark holds it."""
    VAR.mkdir(parents=True, exist_ok=True)
    with (VAR / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another benchmark runs on this checkout: two would spoil each other's figures") from None
        yield


def end_on_signals() -> None:
    """Turns signals into an exception, so that started processes are ended."""
    for number in _SIGNALS:  # a background shell ignores the first one
        signal.signal(number, _end)


def ignore_signals() -> None:
    """Ignores signals while processes are being ended: a second signal would leave some running."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def about(*, quick: bool) -> dict[str, object]:
    now = datetime.datetime.now(datetime.UTC)
    return {"date": f"{now:%Y-%m-%d %H:%M} UTC", "commit": _commit(), "machine": machine(), "quick": quick}


def machine() -> str:
    """Returns one line: cores, processor, memory, kernel, Python, Java and the client libraries."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    software = f"Linux {platform.release()}, Python {platform.python_version()}, {java[0] if java else 'no Java'}, "
    software += ", ".join(f"{name} {version}" for name in _CLIENTS if (version := _version(name)))
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {software}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + (" with uncommitted changes" if changed else "")


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as `signal` calls it
    raise SystemExit(f"ended by {signal.Signals(number).name}")
