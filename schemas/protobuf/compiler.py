"""Compiles `.proto` texts with protoc in a worker process, which is started at the first text and again after a crash.

Thread-safe: one text at a time.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from klamm.core.errors import SchemaError

from .known import known_files

MAX_SECONDS: Final = 10.0
"""For one text; protoc needs milliseconds."""
_MESSAGE: Final = re.compile(r"(?P<file>[^\n]*?):(?P<line>\d+):(?P<column>\d+): (?P<what>[^\n]*)")
_NOTHING_FOUND: Final = re.compile(r'Import "(.*)" was not found or had errors\.')


class ProtocWorker:
    """`command` starts the worker process but for its arguments."""

    def __init__(self, command: tuple[str, ...] | None = None, seconds: float = MAX_SECONDS) -> None:
        worker = Path(__file__).with_name("worker.py")
        self._command = command or (sys.executable, "-P", str(worker))
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._folder: Path | None = None

    def compile(self, name: str, text: str, references: Mapping[str, str]) -> bytes:
        """Returns the serialized FileDescriptorSet: imports, then the file. Raises `SchemaError` in one line."""
        request = json.dumps({"files": {**references, name: text}, "main": name}).encode()
        with self._lock:
            answer = self._ask(request) or self._ask(request)  # the first process may have been ended from outside
        if not answer:
            raise SchemaError("not a Protobuf schema: protoc crashed on this text")
        if answer[:1] != b"+":
            raise SchemaError(f"not a Protobuf schema: {_first(answer[1:].decode('utf-8', 'replace'), name)}")
        return answer[1:]

    def close(self) -> None:
        """Ends the process; the next text starts another one."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> bytes:
        """Returns the answer, nothing if the process crashed."""
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
                raise SchemaError(f"not a Protobuf schema: protoc did not finish within {self._seconds:g} s")
            return b""
        return header[:1] + payload

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # the process of the parent, after a fork
            self._process = self._folder = None
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._owner = os.getpid()
            self._folder = Path(tempfile.mkdtemp(prefix="klamm-protoc-"))
            for name, text in known_files().items():
                file = self._folder / "known" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            command = (*self._command, str(self._folder), str(self._folder / "known"))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a signal from the terminal is for the broker
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
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


def _first(messages: str, name: str) -> str:
    """Returns the first error of protoc's messages."""
    for found in _MESSAGE.finditer(messages):
        if found["what"].startswith("warning"):
            continue
        where = "" if found["file"] == name else f"reference {found['file'][:100]}, "
        what = found["what"][:300]
        if missing := _NOTHING_FOUND.match(what):
            what = f"import {missing[1]!r} is neither well known nor among the references"
        return f"{where}line {found['line']}, column {found['column']}: {what}"
    lines = [line for line in messages.splitlines() if line.strip() and not line.startswith(("WARNING", "W0000"))]
    return lines[0][:300] if lines else "protoc refuses it without a reason"


WORKER: Final = ProtocWorker()
atexit.register(WORKER.close)
