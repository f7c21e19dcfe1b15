"""Brokers forked from a process that has imported Klamm: most of the processor time of a broker's start is its imports.

`python -m klammtest.forking FD` is that process, the fork server. For each broker it forks a keeper, which forks the
broker, sends its process id, waits for its end and sends its status. A broker is a process of its own, as if it had
been started by the console script, but for its imports.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

_PRELOADED: Final = (
    "klamm.__main__",
    "klamm.core.cli.main",
    "klamm.core.cli.broker.commands",
    "klamm.core.broker.server",
    "klamm.core.broker.signals",
    "klamm.plugins.coordination.embedded.coordination",
    "uvloop",
)
_NUMBER: Final = struct.Struct("=i")
_MOST_BYTES: Final = 65_536


class ForkedProcess:
    """A forked process, with what a `subprocess.Popen` has that a `RunningBroker` uses."""

    def __init__(self, answers: int) -> None:
        """`answers`: the pipe of its keeper; read and closed here."""
        self._answers = answers
        self._read = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._next()

    def poll(self) -> int | None:
        """Returns the exit status, negative after a signal; None while the process runs."""
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, how: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        with self._read:
            if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
                self.returncode = self._next()
                os.close(self._answers)
            return self.returncode

    def _next(self) -> int:
        answer = os.read(self._answers, _NUMBER.size)
        if not answer:
            raise RuntimeError("the keeper of a forked process has ended")
        return int(_NUMBER.unpack(answer)[0])


class ForkServer:
    """Forks `klamm` commands in one environment; ends with this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())], env=self.environment,
                pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL,
            )  # fmt: skip
        atexit.register(self.close)

    def start(self, command: Sequence[str], folder: Path, out: int) -> ForkedProcess:
        """Forks a process that runs a `klamm` command in `folder`; `out` is its stdout and stderr."""
        answers, theirs = os.pipe()
        request = json.dumps({"command": list(command), "folder": str(folder)}).encode()
        try:
            socket.send_fds(self._requests, [request], [out, theirs])
        finally:
            os.close(theirs)
        return ForkedProcess(answers)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


_servers: list[ForkServer] = []
_starting = threading.Lock()


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """Returns this process's fork server, which has the environment of the first call."""
    with _starting:
        if not _servers:
            _servers.append(ForkServer(environment))
        return _servers[0]


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks until the other end is closed. Returns the command in a forked process, None in the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which end their brokers
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no keeper is waited for
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        if not request:
            return None
        if os.fork() == 0:
            out, answers = descriptors
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            broker = os.fork()
            if broker == 0:
                os.close(answers)
                return _become(json.loads(request), out)
            _keep(broker, out, answers)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(broker: int, out: int, answers: int) -> None:
    """Sends the process id of the broker and, at its end, its status; does not return."""
    os.dup2(out, 2)  # a broker that is left behind keeps no pipe of the tests open
    os.close(out)
    os.write(answers, _NUMBER.pack(broker))
    _, status = os.waitpid(broker, 0)
    os.write(answers, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(request: Mapping[str, object], out: int) -> list[str]:
    os.chdir(str(request["folder"]))
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = request["command"]
    assert isinstance(command, list)
    return command


if __name__ == "__main__":
    for module in _PRELOADED:
        import_module(module)
    gc.freeze()  # a collection in a forked process would copy all pages
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        sys.argv = found
        from klamm.__main__ import main

        main()
