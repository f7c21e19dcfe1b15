"""Notifies the service manager that started this process, by the protocol of systemd's `sd_notify(3)`.

Does nothing without one (`NOTIFY_SOCKET` is not set). It does not wait for a manager that does not answer: the
broker serves its clients all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Environment variables of the protocol. A child process that is not the service must not have them."""


def notify(*assignments: str) -> None:
    """Sends assignments such as `READY=1`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux' abstract name space
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.connect(address)
            connection.send("\n".join(assignments).encode())
    except OSError as error:
        log.warning("the service manager (NOTIFY_SOCKET) was not notified of %s: %s", assignments[0], error)


def notify_ready(status: str) -> None:
    """Ends the start, or a reload. `status`: one line for `systemctl status`."""
    notify("READY=1", f"STATUS={status}")


def notify_reloading() -> None:
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog_interval_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Returns how often `WATCHDOG=1` is to be sent: half of the unit's `WatchdogSec`. None if it has none."""
    micros, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not micros.isdecimal() or int(micros) == 0 or process not in ("", str(os.getpid())):
        return None
    return int(micros) / 2_000_000


async def watchdog_pings() -> None:
    """Sends `WATCHDOG=1` until cancelled. The service manager restarts a broker whose event loop no longer runs."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
