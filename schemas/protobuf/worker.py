"""The process that runs protoc: a program of its own, started by `compiler`, which imports nothing of Klamm.

It reads requests from its input, 4 bytes of length and JSON: {"files": {name: text}, "main": name}. The answer to each
is one byte, `+` before a serialized FileDescriptorSet or `-` before protoc's messages, 4 bytes of length and the rest.
It ends when its input does. protoc writes its messages to file descriptor 2 and may crash on a hostile text:
that is why it is no part of the broker's process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from grpc_tools import _protoc_compiler

MEMORY = 2 * 1024**3
"""Bytes of address space."""
MAX_OUTPUT = 64 * 1024**2
"""Bytes of a file that protoc writes."""


def main(folder: Path, known: list[str]) -> None:
    """`folder` is for files of requests and removed at the end; `known` are the folders of the well-known imports."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    messages = os.open(folder / "messages", os.O_RDWR | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (nothing, 1), (messages, 2)):
        os.dup2(descriptor, target)
    _limit()
    work = folder / "request"
    while header := requests.read(4):
        request = json.loads(requests.read(int.from_bytes(header, "big")))
        os.ftruncate(messages, 0)
        os.lseek(messages, 0, os.SEEK_SET)
        shutil.rmtree(work, ignore_errors=True)
        good = _compile(work, request["files"], request["main"], known)
        payload = (work / "output").read_bytes() if good else (folder / "messages").read_bytes()[:65536]
        answers.write((b"+" if good else b"-") + len(payload).to_bytes(4, "big") + payload)
        answers.flush()
    shutil.rmtree(folder, ignore_errors=True)  # the broker was killed: nobody else removes it


def _compile(work: Path, files: dict[str, str], name: str, known: list[str]) -> bool:
    for path, text in files.items():
        file = work / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    os.chdir(work / "files")  # messages have the names of the files without a folder
    arguments = ["protoc", *(f"-I{path}" for path in known), "-I.", "--include_imports"]
    arguments += [f"--descriptor_set_out={work / 'output'}", name]
    return int(_protoc_compiler.run_main([argument.encode() for argument in arguments])) == 0


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    for what, size in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, MAX_OUTPUT), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (size, size))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
