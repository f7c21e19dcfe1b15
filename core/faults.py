"""Fault points: named places where a test makes a write, an fsync, a rename or an unlink fail, or the process die.

They do nothing unless a hook is installed, by `install` or by the environment variable `KLAMM_FAULTS`, read at import:
`point[@n]=action` separated by commas, where the n-th pass (1 unless given) of the point does the action: `kill`
(SIGKILL to the own process), `stop` (SIGSTOP) or the name of an errno (`ENOSPC`, `EIO`). `point@n+` does it from the
n-th pass on.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from .errors import ConfigError

__all__ = ["VARIABLE", "FaultHook", "FaultRule", "ScriptedFaults", "fault_point", "install"]

FaultHook = Callable[[str], None]
VARIABLE: Final = "KLAMM_FAULTS"
_RULE: Final = re.compile(r"(?P<point>[a-z_.]+)(@(?P<nth>[0-9]{1,9})(?P<on>\+)?)?=(?P<action>[A-Za-z0-9]+)")

hook: FaultHook | None = None
"""The installed hook, set by `install` only. Code that runs for every batch tests it before it calls `fault_point`."""


def fault_point(name: str) -> None:
    """Calls the installed hook, which may do nothing, raise, or never return."""
    if hook is not None:
        hook(name)


def install(new: FaultHook | None) -> None:
    """Make `new` the process's one hook; None for none."""
    global hook
    hook = new


@dataclass(frozen=True, slots=True)
class FaultRule:
    point: str
    nth: int
    onwards: bool
    action: str

    def fires(self, count: int) -> bool:
        return count == self.nth or (self.onwards and count > self.nth)

    def act(self) -> None:
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        number = getattr(errno, self.action)
        raise OSError(number, f"fault injected at {self.point}: {os.strerror(number)}")


class ScriptedFaults:
    """A hook that follows rules and counts how often each point was passed. Thread-safe."""

    def __init__(self, rules: str) -> None:
        self._lock = Lock()
        self._rules = [_parse(rule.strip()) for rule in rules.split(",") if rule.strip()]
        self.passed: dict[str, int] = {}

    def __call__(self, name: str) -> None:
        with self._lock:
            count = self.passed[name] = self.passed.get(name, 0) + 1
        for rule in self._rules:
            if rule.point == name and rule.fires(count):
                rule.act()


def _parse(text: str) -> FaultRule:
    match = _RULE.fullmatch(text)
    if match is None or not (match["action"] in ("kill", "stop") or hasattr(errno, match["action"])):
        raise ConfigError(f"{VARIABLE}: {text!r} should be point[@n[+]]=kill, =stop or =ERRNO, as in files.fsync@3=EIO")
    return FaultRule(match["point"], int(match["nth"] or 1), match["on"] is not None, match["action"])


if os.environ.get(VARIABLE):
    install(ScriptedFaults(os.environ[VARIABLE]))
