"""A child process that answers requests whose work has no bound: it is ended when one takes too long."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


class WorkerProcess:
    """The process is started at the first request, and again after it has ended. It reads 4 bytes of length and a
    request, and answers with one byte, 4 bytes of length and the rest.

    `start` returns its command and a folder of its own, which is removed after it, or None. Thread-safe: one request at
    a time.
    """

    def __init__(self, start: Callable[[], tuple[Sequence[str], Path | None]], seconds: float) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None
        self._start = start
        self._seconds = seconds
        self._lock = threading.Lock()
        self._owner = 0

    def ask(self, request: bytes) -> bytes:
        """Returns the first byte and the rest; nothing if the process has crashed. Raises `TimeoutError`."""
        with self._lock:
            return self._ask(request) or self._ask(request)  # the first process may have been ended from outside

    def close(self) -> None:
        """Ends the process; the next request starts another one."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> bytes:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(self._seconds, end)
        watch.start()
        try:
            process.stdin.write(len(request).to_bytes(4, "big") + request)
            process.stdin.flush()
            header = process.stdout.read(5)
            payload = process.stdout.read(int.from_bytes(header[1:], "big"))
        except OSError:
            header = payload = b""
        finally:
            watch.cancel()
        if len(header) < 5 or len(payload) < int.from_bytes(header[1:], "big"):
            self._end()
            if late.is_set():
                raise TimeoutError(f"did not finish within {self._seconds:g} s")
            return b""
        return header[:1] + payload

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # the process of the parent, after a fork
            self.process = self.folder = None
        if self.process is None or self.process.poll() is not None:
            self._end()
            self._owner = os.getpid()
            command, self.folder = self._start()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a signal from the terminal is for the parent
            )
        return self.process

    def _end(self) -> None:
        process, self.process = self.process, None
        folder, self.folder = self.folder, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:  # of the request that it did not read
                    continue
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
