"""Runs several brokers of one host from one file: a process each, so that each has a core for its event loop.

Rules: all of them start, or none runs. One that ends later is reported, and the others continue; it is started again
by `klamm broker … --only ID`. When the last one has ended, so does this process: with an error, unless that broker
was stopped cleanly. SIGTERM, Ctrl-C and SIGHUP are passed on, so that all stop cleanly, or read the file again. A
broker whose parent process has ended stops as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import join
from typing import IO, NamedTuple, TextIO

from ...config.settings import Settings
from ...errors import KlammError
from ..output import say
from .service_manager import VARIABLES, notify, notify_ready, watchdog_interval_s

_READY = "klamm broker ready"
_AT_ONCE_S = 1.0
"""Stop signals within this time count as one: a terminal and a service manager may both send one."""


class _Ready(NamedTuple):
    broker_id: int


class _Ended(NamedTuple):
    broker_id: int
    status: int


class _Signalled(NamedTuple):
    number: signal.Signals


_Events = SimpleQueue[_Ready | _Ended | _Signalled]


class _Child:
    """One broker's process. It has its own session: Ctrl-C reaches only the parent, which passes a single signal on.
    Its output lines are printed after its id, except in JSON."""

    def __init__(self, broker_id: int, command: list[str], events: _Events, prefix: str) -> None:
        self.broker_id = broker_id
        self._events = events
        self._prefix = prefix
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its lifeline: closed when this process ends
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in VARIABLES},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        errors = threading.Thread(target=self._pass_on, args=(self._process.stderr, sys.stderr), daemon=True)
        errors.start()
        threading.Thread(target=self._follow, args=(errors,), daemon=True).start()

    def send(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _follow(self, errors: threading.Thread) -> None:
        self._pass_on(self._process.stdout, sys.stdout)
        errors.join()
        self._events.put(_Ended(self.broker_id, self._process.wait()))

    def _pass_on(self, source: IO[str] | None, target: TextIO) -> None:
        assert source is not None
        for line in source:
            with suppress(OSError):  # this process's output has no reader any more
                target.write(f"{self._prefix}{line}")
                target.flush()
            if line.startswith(_READY):
                self._events.put(_Ready(self.broker_id))


def run_brokers(settings: Settings, file: Path, count: int, *, accept_missing_logs: bool) -> bool:
    """Runs the brokers until a signal stops them; returns whether that was Ctrl-C. Raises `KlammError` if one cannot
    start, or if all have ended by themselves.
    """
    events: _Events = SimpleQueue()
    _deliver_signals(events)
    command = [sys.executable, "-P", "-m", "klamm", "broker", "--config", str(file), "--brokers", str(count)]
    ids = range(settings.broker.broker_id, settings.broker.broker_id + count)
    started = [*command, "--stop-at-end-of-input", *(["--accept-missing-logs"] if accept_missing_logs else [])]
    group = _Group(command)
    for broker_id in ids:
        prefix = "" if settings.log.format == "json" else f"[{broker_id}] "
        group.children[broker_id] = _Child(broker_id, [*started, "--only", str(broker_id)], events, prefix)
    try:
        return group.run(events)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of Python would restore the default action


def _deliver_signals(events: _Events) -> None:
    """Puts SIGTERM, SIGINT and SIGHUP into the queue, by a thread. (A `put` in a Python signal handler can leave the
    `get` that it interrupts waiting, with the event in the queue: two signals at once stopped nothing.)
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)

    def deliver() -> None:
        while received := os.read(readable, 1):
            events.put(_Signalled(signal.Signals(received[0])))

    threading.Thread(target=deliver, daemon=True).start()


class _Group:
    """The brokers that run, and what has happened to the others."""

    def __init__(self, command: list[str]) -> None:
        self.children: dict[int, _Child] = {}
        self._command = command
        self._ready: set[int] = set()
        self._stopped_by: signal.Signals | None = None
        self._stopped_at = 0.0
        self._failed: KlammError | None = None

    def run(self, events: _Events) -> bool:
        count = len(self.children)
        while self.children:
            try:
                event = events.get(timeout=watchdog_interval_s())
            except Empty:
                notify("WATCHDOG=1")
                continue
            if isinstance(event, _Signalled):
                self._pass_on(event.number)
            elif isinstance(event, _Ended):
                self._ended(event, started=len(self._ready) == count)
            else:
                self._ready.add(event.broker_id)
                if len(self._ready) == count and self._stopped_by is None:
                    ids = f"ids {', '.join(map(str, sorted(self._ready)))}"
                    say(f"klamm brokers ready: {ids}")
                    notify_ready(ids)
        if self._failed is not None:
            raise self._failed
        return self._stopped_by is signal.SIGINT

    def _pass_on(self, number: signal.Signals) -> None:
        if number is not signal.SIGHUP:
            now = time.monotonic()
            if self._stopped_by is not None and now - self._stopped_at < _AT_ONCE_S:
                return  # a second SIGTERM ends a broker uncleanly
            self._stopped_by, self._stopped_at = self._stopped_by or number, now
            notify("STOPPING=1")
        self._send(signal.SIGHUP if number is signal.SIGHUP else signal.SIGTERM)

    def _send(self, number: int) -> None:
        for child in self.children.values():
            child.send(number)

    def _ended(self, event: _Ended, *, started: bool) -> None:
        del self.children[event.broker_id]
        how = _how(event.status)
        if self._stopped_by is not None:
            if event.status != 0 and self._failed is None:
                self._failed = KlammError(f"broker {event.broker_id} did not stop cleanly: it {how}")
        elif self._failed is not None and not started:
            return  # stopped because another one could not start
        elif not started:
            self._failed = KlammError(f"broker {event.broker_id} did not start: it {how}; the others are stopped")
            self._send(signal.SIGTERM)
        else:
            again = join([*self._command[4:], "--only", str(event.broker_id)])
            said = f"broker {event.broker_id} {how}"
            if self.children:
                say(f"klamm: {said}; the others continue. Start it again: klamm {again}", err=True)
            elif event.status != 0:
                self._failed = KlammError(f"{said}, as the last one")


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
