"""Moves the wall clock of a running process that was started with libfaketime; its monotonic clock is not affected.

A Python process needs `tests/support/spawned` on its path: `sitecustomize` there makes `time.sleep` work."""

from __future__ import annotations

from pathlib import Path

TOOLS = ("faketime=faketime",)


def faketime_environment(clock: Path) -> dict[str, str]:
    """Returns the environment of the process; `clock` is the file that `set_clock` writes."""
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
    if library is None:
        raise RuntimeError("libfaketime is not there; it is in the Debian package libfaketime, which faketime brings")
    return {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1",
    }  # fmt: skip


def set_clock(clock: Path, jump: str) -> None:
    """Sets the clock: `+1d`, `-1d`, `+0`. It takes effect at once: the process reads the file whenever it asks for the
    time."""
    other = clock.with_suffix(".new")
    other.write_text(f"{jump}\n")
    other.replace(clock)
