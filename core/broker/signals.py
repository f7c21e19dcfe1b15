"""The signals of a broker's process.

Rules: the first SIGTERM or SIGINT requests a clean stop; a second one ends the process at once, with one line and
status 128 + its number, whatever its threads are doing: acknowledged records are in the log, and the next start
checks it. SIGHUP requests that the configuration is read again; several during one reading count as one, and once a
stop is requested it is ignored.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

__all__ = ["Signals"]

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Made on the running event loop, in the main thread. `stopped` becomes the signal that requests the stop; `hangup`
    is set by SIGHUP.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[signal.Signals] = self._loop.create_future()
        self.hangup = asyncio.Event()
        # Not by the event loop: closed at the end of a clean stop, it would restore the default action, which kills.
        signal.signal(signal.SIGHUP, self._hang_up)
        signal.siginterrupt(signal.SIGHUP, False)  # as the event loop does: no C code sees EINTR
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._stop, number)

    def stop_at_end_of(self, descriptor: int) -> None:
        """Requests a clean stop when the other end of this pipe is closed, as by the death of the process that holds
        it.
        """

        def readable() -> None:
            if not os.read(descriptor, 1024):
                self._loop.remove_reader(descriptor)
                if not self.stopped.done():
                    self._stop(signal.SIGTERM)

        self._loop.add_reader(descriptor, readable)

    def _hang_up(self, *_: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.hangup.set)

    def _stop(self, number: signal.Signals) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for each in _STOPPING:
            self._loop.remove_signal_handler(each)
            signal.signal(each, _at_once)  # no longer handled by the event loop, which may be what does not end
        self.stopped.set_result(number)


def _at_once(number: int, _: FrameType | None) -> None:
    name = signal.Signals(number).name
    line = f"klamm: {name} while stopping: ended at once, the next start checks the logs\n"
    os.write(sys.stderr.fileno(), line.encode())
    os._exit(128 + number)
