"""The compiled module, built with AddressSanitizer and UndefinedBehaviorSanitizer, against its Python twin and against
noise.

`build` compiles it into a folder of its own. `run` starts a process that loads libasan first (the interpreter itself is
not built for it) and in which `main` compares and mutates. A sanitizer's finding ends that process.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.machinery
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from array import array
from pathlib import Path
from typing import Any

from klamm.core.errors import CorruptRecordError
from klamm.core.records import native as chosen
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import HEADER_SIZE, BatchHeader
from klammtest.native.batches import Twins, produce_request, some_bytes, some_records, spoiled

SOURCES = Path(chosen.__file__).resolve().parent / "native"
FLAGS = ("-std=c11", "-O1", "-g", "-fPIC", "-shared", "-fno-omit-frame-pointer", "-DPy_LIMITED_API=0x030B0000",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all")  # fmt: skip
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",  # the interpreter leaks when it exits
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99",
    "PYTHONMALLOC": "malloc",  # one allocation per object, so that a read past its end is noticed
}


def compiler() -> str | None:
    """Returns gcc, which has its own libasan; None if there is none."""
    return shutil.which("gcc")


def build(folder: Path) -> Path:
    """Builds the module in `folder`; `CalledProcessError` with the compiler's output."""
    made = folder / "_native.abi3.so"
    include = sysconfig.get_path("include")
    command = [compiler() or "gcc", *FLAGS, f"-I{include}", "-o", str(made), *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return made


def run(module: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `main` in its own process, whose standard output ends with one line of counts."""
    runtime = [
        subprocess.run(
            [compiler() or "gcc", f"-print-file-name={name}.so"], check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **OPTIONS, "LD_PRELOAD": " ".join(runtime), "PYTHONPATH": paths, "KLAMM_FALLBACK": "1"}
    command = [sys.executable, "-m", "klammtest.native.sanitized", "--module", str(module), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def load(module: Path) -> Any:
    """Loads the module under its usual name, instead of the installed one."""
    name = "klamm.core.records._native"
    loader = importlib.machinery.ExtensionFileLoader(name, str(module))
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader, origin=str(module)))  # type: ignore[arg-type]
    loader.exec_module(made)
    return made


def exact(argument: Any) -> Any:
    """Returns the same bytes in an allocation of exactly their size (`bytes` end with an extra zero, Arrow pads
    to 64).
    """
    if isinstance(argument, tuple | list):
        return type(argument)(exact(item) for item in argument)
    try:
        view = memoryview(argument).cast("B")
    except TypeError:
        return argument
    held = array("B", b"\0") * len(view)
    memoryview(held)[:] = view
    return held


def noise(native: Any, rng: random.Random) -> None:
    """Passes whole batches with changed bytes, the header included, and false arguments. Any of Klamm's own errors is
    correct; the sanitizers judge the rest.
    """
    whole = encode_batch(some_records(rng), base_offset=rng.choice((0, 7, 2**62)))
    header, data = BatchHeader.parse(whole), spoiled(rng, whole)

    def number(*usual: int) -> int:
        return rng.choice((*usual, *usual, -1, 0, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)))

    said = (number(header.record_count), number(header.base_offset), number(header.last_offset_delta), number(5), False)
    whole_said = (header.record_count, rng.choice((-1, 7)), header.last_offset_delta, 5, False)
    area = exact(data[HEADER_SIZE:])
    column = (rng.choice((None, rng.randbytes(2))), rng.randbytes(4 * rng.randrange(9)), some_bytes(rng) or b"",
              rng.randrange(-1, 5), rng.choice((4, 8, 8, 2)))  # fmt: skip
    rows = (rng.randrange(-1, 4), number(3), rng.randrange(3000))
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("lists", (area, *said)),
        ("validate", (area, *said)),
        ("window_counts", (area, *said, number(0), number(2**40), number(1, 600_000))),
        ("window_counts", (area, *whole_said, -(2**63), rng.choice((-(2**63), 2**63 - 1)), 600_000)),
        ("tally", (exact(rng.randbytes(8 * rng.randrange(5))), exact(rng.randbytes(8 * rng.randrange(5))), number(1))),
        ("int64s", ([number(2**62) for _ in range(rng.randrange(5))],)),
        ("sizes", ([None, some_bytes(rng)][: rng.randrange(3)], [some_bytes(rng), None])),
        ("columns", ([(area, rng.randrange(-1, 3), number(len(area)), *said)], number(0), number(2**40))),
        ("chain", (exact(data), rng.randrange(3), number(len(data)), number(0), True, rng.random() < 0.5)),
        ("pieces", (exact(data), rng.choice((0, 100, 4096)))),
        ("encode_columns", exact((rng.choice((None, column)), column, None, 7, b"12345", b"\0", *rows))),
        ("partitions", (exact(column), rng.randrange(9), number(3))),
        ("crc32c", (area, rng.randrange(2**32))),
        ("read_fast_produce_request", (exact(spoiled(rng, produce_request(rng, rng.choice((whole, data))))),)),
        (
            "write_fast_produce_response",
            (
                number(9, 13),
                rng.choice(("x" * rng.choice((0, 1, 126, 127, 255, 256)), rng.randbytes(rng.choice((0, 16, 17, 300))))),
                *(number(3) for _ in range(6)),
            ),
        ),
    ]
    for name, arguments in calls:
        try:
            getattr(native, name)(*arguments)
        except (CorruptRecordError, ValueError, OverflowError):
            continue
        except Exception as error:
            raise AssertionError(f"{name}{arguments!r}: {error!r}") from error


def main() -> int:
    """Prints one line of counts; returns 1 if the twins differ, 99 if a sanitizer found something."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", type=Path, help="a built module; by default it is built and run")
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", action="store_true", help="read past a buffer: must fail")
    given = parser.parse_args()
    if given.module is None:
        return _build_and_run(sys.argv[1:])
    native = load(given.module)
    if given.plant:
        held = exact(b"12345678")
        ctypes.string_at(held.buffer_info()[0], 9)
    twins = Twins(native, hold=exact)
    for seed in range(given.seed, given.seed + given.batches):
        rng = random.Random(seed)
        try:
            twins.batch(seed)
            for _ in range(10):
                noise(native, rng)
        except BaseException:
            print(f"seed {seed}", file=sys.stderr)
            raise
    counts = f"injected {given.batches} mutated {10 * given.batches} compared {twins.compared} different 0"
    print(f"campaign sanitize {counts}")
    return 0


def _build_and_run(arguments: list[str]) -> int:
    if compiler() is None:
        print("sanitize: there is no gcc; without a compiler klamm is installed without its compiled module")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        done = run(build(Path(folder)), *arguments)
    print(done.stdout, end="")
    print(done.stderr[-6000:], end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
