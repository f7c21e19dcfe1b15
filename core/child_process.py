"""Programs that Klamm starts as child processes: servers for development and tests."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from .errors import KlammError

__all__ = ["HOST", "ChildProcess", "check_port", "is_free"]

HOST: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_log = logging.getLogger(__name__)


def check_port(port: int, hint: str, error_type: type[KlammError] = KlammError) -> None:
    """Raises `error_type` if no process can listen on the port of 127.0.0.1; `hint` says what to do."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise error_type(f"cannot listen on {HOST}:{port}: {error.strerror}; {hint}") from error


def is_free(port: int) -> bool:
    """Returns True if no socket is bound to the port of 127.0.0.1, not even one that waits for its last packets."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class ChildProcess:
    """One process whose output goes to a file. States: running → `stop` or `kill` → ended.

    It has a session of its own, so a Ctrl-C in the terminal reaches only the parent, which stops it.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, *, ends_with_parent: bool = False) -> None:
        """Starts the process. `ends_with_parent`: it is killed when the thread that starts it ends in any way (on
        Linux), so start it from the main thread.
        """
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                preexec_fn=_dying_with_parent() if ends_with_parent else None,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits until the process ends by itself; returns its exit status. Raises `subprocess.TimeoutExpired` after
        `timeout_s`.
        """
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the process with SIGTERM, and with SIGKILL if it has not ended in time."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.warning("%s (pid %d) did not stop within %g s; killing it", self.name, self.pid, timeout_s)
        self.kill()

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        self._process.kill()
        self._process.wait()

    def leave_running(self) -> None:
        """Gives up control of the process, which continues after this one has ended. No other method may be called
        afterwards."""
        self._process.returncode = 0  # otherwise `Popen` warns that nothing has waited for it

    def pause(self) -> None:
        """Stops the process with SIGSTOP until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def _dying_with_parent() -> Callable[[], None] | None:
    """Returns the function, which uses prctl(2), that a child calls before it executes another program; None except
    on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl took effect
            os._exit(1)

    return ask
