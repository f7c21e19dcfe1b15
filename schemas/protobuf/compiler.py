"""Compiles `.proto` texts with protoc in a worker process, which is started at the first text and again after a crash.

Thread-safe: one text at a time.
"""

from __future__ import annotations

import atexit
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from klamm.core.errors import SchemaError

from ..worker_process import WorkerProcess
from .known import known_files

MAX_SECONDS: Final = 10.0
"""For one text; protoc needs milliseconds."""
_MESSAGE: Final = re.compile(r"(?P<file>[^\n]*?):(?P<line>\d+):(?P<column>\d+): (?P<what>[^\n]*)")
_NOTHING_FOUND: Final = re.compile(r'Import "(.*)" was not found or had errors\.')


class ProtocWorker:
    """`command` starts the worker process, without its arguments."""

    def __init__(self, command: tuple[str, ...] | None = None, seconds: float = MAX_SECONDS) -> None:
        worker = Path(__file__).with_name("worker.py")
        self._command = command or (sys.executable, "-P", str(worker))
        self.worker = WorkerProcess(self._start, seconds)

    def compile(self, name: str, text: str, references: Mapping[str, str]) -> bytes:
        """Returns the serialized FileDescriptorSet: imports, then the file. Raises `SchemaError` in one line."""
        request = json.dumps({"files": {**references, name: text}, "main": name}).encode()
        try:
            answer = self.worker.ask(request)
        except TimeoutError as error:
            raise SchemaError(f"not a Protobuf schema: protoc {error}") from error
        if not answer:
            raise SchemaError("not a Protobuf schema: protoc crashed on this text")
        if answer[:1] != b"+":
            raise SchemaError(f"not a Protobuf schema: {_first(answer[1:].decode('utf-8', 'replace'), name)}")
        return answer[1:]

    def close(self) -> None:
        """Ends the process; the next text starts another one."""
        self.worker.close()

    def _start(self) -> tuple[Sequence[str], Path]:
        folder = Path(tempfile.mkdtemp(prefix="klamm-protoc-"))
        for name, text in known_files().items():
            file = folder / "known" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return (*self._command, str(folder), str(folder / "known")), folder


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
