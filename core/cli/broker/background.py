"""`klamm broker --background`, `stop` and `status`: brokers that run without a terminal.

A broker's process is found by the lock of its log directory (`klamm.core.log.log_directory`), which contains its id and
which the kernel releases when the process ends in any way. So `stop` and `status` also find a broker that was started
in the foreground or by a service manager.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

import typer

import klamm

from ...child_process import ChildProcess
from ...config.sections.broker import BrokerConfig
from ...errors import KlammError, ProtocolError
from ...log.log_directory import holder
from ...log.segment.file_operations import storage
from ..output import say, say_json

LOG: Final = "broker.log"
"""The file in the (first) broker's log directory to which a background broker's output is appended."""
NOT_RUNNING: Final = 3
"""The exit status of `klamm broker status` if a broker does not run, as in the Linux Standard Base."""
_READY: Final = ("klamm broker ready", "klamm brokers ready")
_POLL_S: Final = 0.02
_ANSWER_S: Final = 5.0
"""How long a broker may take to answer a connection's first request."""
_STOP_S: Final = 60.0
"""How long a broker whose start was interrupted may take to stop."""


class ProcessState(Enum):
    UP = "running"
    CHANGING = "starting or stopping"
    SILENT = "not answering"
    DOWN = "not running"


def start_in_background(brokers: Sequence[BrokerConfig], arguments: Sequence[str]) -> None:
    """Runs `klamm broker` with the arguments in a session of its own; returns once all of the brokers accept
    connections. Raises `KlammError` if one runs already; if they do not start, prints the reason and exits with
    their status."""
    directory = brokers[0].log_dirs
    with storage(f"log.dirs: cannot create {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
    with _exclusive(directory / LOG) as log:
        _start(brokers, arguments, log)


@contextmanager
def _exclusive(log: Path) -> Iterator[Path]:
    """Waits for another start that appends to `log`, so that its lines cannot be mistaken for those of this one."""
    with storage(f"cannot write {log}"):
        file = log.open("ab")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield log


def _start(brokers: Sequence[BrokerConfig], arguments: Sequence[str], log: Path) -> None:
    for each in brokers:
        if (process := holder(each.log_dirs)) is not None:
            raise KlammError(
                f"broker {each.broker_id} runs already: pid {process}, data in {_near(each.log_dirs)}; "
                "`klamm broker stop` stops it"
            )
    before = log.stat().st_size
    with storage(f"cannot write {log}"):
        child = ChildProcess("broker", [sys.executable, "-P", "-m", "klamm", "broker", *arguments], log)
    try:
        while True:
            status = child.status  # before the lines are read: nothing is written after the end
            lines = _lines(log, before)
            for line in lines:
                if line.startswith(_READY):
                    say(f"{line}; pid {child.pid}, log {_near(log)}")
                    child.leave_running()
                    return
            if status is not None:
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        child.stop(_STOP_S)
        raise
    said = [line for line in lines if line.startswith("klamm: ")]
    if not said or status < 0:
        raise KlammError(f"the broker ended while it started, with status {status}; see {_near(log)}")
    for line in said:
        say(line, err=True)
    raise typer.Exit(status)


def stop_brokers(brokers: Sequence[BrokerConfig], timeout_s: float) -> None:
    """Stops the brokers cleanly, all at once. Raises `KlammError` if one has not stopped within `timeout_s`, or if none
    of them runs."""
    running = {each.broker_id: (each.log_dirs, process) for each in brokers if (process := holder(each.log_dirs))}
    if not running:
        raise KlammError(f"no broker runs on {', '.join(_near(each.log_dirs) for each in brokers)}")
    for directory, process in running.values():
        signal_broker(process, directory, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    for broker_id, (directory, process) in running.items():
        while holder(directory) == process:
            if time.monotonic() > deadline:
                raise KlammError(f"broker {broker_id} (pid {process}) has not stopped within {timeout_s:g} s")
            time.sleep(_POLL_S)
        say(f"broker {broker_id} has stopped (pid {process})")


def print_status(brokers: Sequence[BrokerConfig], as_json: bool = False) -> None:
    """Prints a line for each broker; exits with `NOT_RUNNING` if one of them does not answer requests."""
    serving = True
    for each in brokers:
        process = holder(each.log_dirs)
        state, why = (ProcessState.DOWN, "") if process is None else _state(each)
        serving = serving and state is ProcessState.UP
        addresses = list(map(str, each.advertised()))
        if as_json:
            row = {"broker": each.broker_id, "state": state.value, "addresses": addresses, "pid": process}
            say_json({**row, "log.dirs": str(each.log_dirs)})
            continue
        found = "" if process is None else f"{why or ', '.join(addresses)}; pid {process}, "
        say(f"broker {each.broker_id} {_SHOWN[state]}: {found}data in {_near(each.log_dirs)}")
    if not serving:
        raise typer.Exit(NOT_RUNNING)


_SHOWN: Final = {
    ProcessState.UP: "runs",
    ProcessState.CHANGING: "starts or stops",
    ProcessState.SILENT: "does not answer",
    ProcessState.DOWN: "does not run",
}


def signal_broker(process: int, directory: Path, number: signal.Signals) -> None:
    """Sends a signal to the broker's process; raises `KlammError` if that is not possible."""
    try:
        os.kill(process, number)
    except OSError as error:
        raise KlammError(
            f"process {process}, the broker of {directory}, cannot be signalled: {error.strerror}"
        ) from error


def _state(broker: BrokerConfig) -> tuple[ProcessState, str]:
    """Returns the state of a broker whose process lives, and why it is not UP: the first request of a connection is
    answered before any authentication."""
    from ...client.errors import ConnectionFailedError, RequestTimeoutError
    from ...client.network.blocking_connection import BlockingConnection
    from ...client.network.connection import ClientConnection
    from ...transport.address import Address

    listener = broker.bound()[0]
    if listener.port == 0:  # whatever port it found free: only its log has it
        return ProcessState.UP, ""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
    try:
        protocol = ClientConnection("klamm-cli", klamm.__version__)
        BlockingConnection(Address(host, listener.port), protocol, timeout_s=_ANSWER_S).close()
    except (RequestTimeoutError, ProtocolError) as error:
        return ProcessState.SILENT, str(error)
    except ConnectionFailedError as error:
        return ProcessState.CHANGING, str(error)
    return ProcessState.UP, ""


def _lines(log: Path, start: int) -> list[str]:
    """Returns the complete lines that were appended behind `start` bytes."""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").split("\n")[:-1]


def _near(path: Path) -> str:
    """Returns the path relative to the working directory, if it is below it."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
