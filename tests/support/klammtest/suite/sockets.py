"""Names the code that opened a socket and did not close it.

Python's collector reports the socket in a later, unrelated test, which then fails. A socket of kafka-python is ignored:
its close() stops the event loop and drops a connection that is still being made (kafka-python 3.0.12).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, Final

import pytest

_FRAMES: Final = 14
_LEAKS_BY_ITSELF: Final = "/site-packages/kafka/net/"
_openers: dict[int, tuple[str, ...]] = {}


def pytest_configure(config: pytest.Config) -> None:
    _remember_openers()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Runs after pytest has set its own hook, which turns an unraisable error into a failure."""
    previous: Callable[[Any], Any] = sys.unraisablehook

    def named(unraisable: Any) -> None:
        opener = _openers.get(id(unraisable.object))
        if isinstance(unraisable.object, socket.socket) and opener:
            if any(_LEAKS_BY_ITSELF in caller for caller in opener):
                return
            message = f"a socket was not closed; opened by {' < '.join(map(_without_folder, opener))}"
            found = {name: getattr(unraisable, name) for name in ("exc_type", "exc_value", "exc_traceback", "object")}
            unraisable = SimpleNamespace(**found, err_msg=message)
        previous(unraisable)

    sys.unraisablehook = named


def _remember_openers() -> None:
    plain = socket.socket.__init__

    def opened(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        _openers[id(self)] = tuple(_callers(sys._getframe(1)))

    socket.socket.__init__ = opened  # type: ignore[method-assign]


def _callers(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if "/_pytest/" in code.co_filename:
            break
        found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return found


def _without_folder(caller: str) -> str:
    """Returns the caller with the last folder of its path alone."""
    return "/".join(caller.split("/")[-2:])
