"""The audit's pages on hand-made events, and headless Chromium to look at them.

`python -m klammtest.audit_page docs` makes the pictures of docs/audit.md.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from klamm.plugins.audit.compare import compare
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.question import Answer
from klamm.plugins.audit.tiling import LogEnd, Place
from klamm.plugins.audit.web.app import make_app
from klamm.plugins.audit.windows import parse_instant
from klammtest.audits import WINDOW_MS, event

NOW: Final = 10**9
BROWSER: Final = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER: Final = "no chromium here; scripts/setup.sh chromium=chromium installs Debian's"


class HandMade:
    """`klamm.plugins.audit.web.source.Source` of hand-made events; it raises `error` where there is one."""

    def __init__(
        self,
        events: Sequence[AuditEvent],
        log_ends: Mapping[str, int],
        unreadable: tuple[str, ...] = (),
        now_ms: int = NOW,
    ) -> None:
        self.events = events
        self.error: Exception | None = None
        self.unreadable = unreadable
        self.now_ms = now_ms
        self.logs = {topic: {Place("", 0): LogEnd(0, end)} for topic, end in log_ends.items()}

    def answer(self) -> Answer:
        if self.error is not None:
            raise self.error
        audits = compare(self.events, self.now_ms, topics=self.logs)
        return Answer(tuple(audits), self.unreadable, frozenset(), tuple(self.events), self.logs, self.now_ms)


@contextmanager
def served(source: HandMade) -> Iterator[str]:
    """The pages on a port of their own; their address without the last `/`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(make_app(source), lifespan="off", log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


def chromium(url: str, *options: str, folder: Path) -> str:
    """What headless Chromium prints; every name but this machine's is unknown to it. `folder` is for its profile."""
    assert BROWSER is not None, NO_BROWSER
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}/profile", *options, url,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def day_of_flights() -> HandMade:
    """A day of two topics: in one the lake has lost records, a producer was killed and the lake lags."""
    first = parse_instant("2013-01-01") // WINDOW_MS
    hours = [first + 6 * n for n in range(24)]
    sent = {window: 400 + 37 * (n % 9) + (300 if 6 <= n <= 20 else 0) for n, window in enumerate(hours)}
    half = {window: records // 2 for window, records in sent.items()}
    rest = {window: sent[window] - half[window] for window in hours}
    stored = sum(sent.values())
    lake = dict(list(sent.items())[:22])
    lake[hours[9]] -= 120
    lake[hours[10]] -= 45
    loaded = sum(lake.values()) + 165
    now = parse_instant("2013-01-02")
    told = {"stored_ms": now - 2_000, "time_ms": now - 2_000}
    gate = {"host": "gate-1", "application": "departures", **told}
    desk = {"host": "desk-3", "application": "bookings", **told}
    load = {"host": "spark-1", "application": "klamm-load", **told}
    bill = {"host": "bill-1", "application": "billing", **told}
    trips = {window: 90 + 10 * (n % 4) for n, window in enumerate(hours)}
    rides = sum(trips.values())
    events = [
        event("producer", "departures-5f1c", 0, 1, half, **gate),
        event("producer", "bookings-90ab", 0, 1, rest, **desk),
        event("broker", "b", 0, stored, {}, sources={"departures-5f1c": half, "bookings-90ab": rest}, **told),
        event("consumer", "billing", 0, stored, sent, **bill),
        event("hadoop", "lake", 0, loaded, lake, **load),
        event("producer", "rides-1", 0, 1, trips, topic="trips", **desk),
        event("broker", "b", 0, rides, {}, sources={"rides-1": trips}, topic="trips", **told),
        event("hadoop", "lake", 0, rides, trips, topic="trips", **load),
    ]
    return HandMade(events, {"flights": stored, "trips": rides}, now_ms=now)


DARK: Final = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
PICTURES: Final = {
    "audit-page": ("/topics/flights?live=off", "1150,1000", ()),
    "audit-page-dark": ("/topics/flights?live=off", "1150,760", DARK),
    "audit-topics": ("/?live=off", "1150,300", ()),
    "audit-producers": ("/topics/flights/producers?live=off", "1150,400", ()),
}  # fmt: skip


def main(folder: Path) -> None:
    """Writes the pictures."""
    with served(day_of_flights()) as url, tempfile.TemporaryDirectory() as profile:
        for name, (path, size, options) in PICTURES.items():
            shot = folder.resolve() / f"{name}.png"
            chromium(f"{url}{path}", f"--window-size={size}", f"--screenshot={shot}", *options, folder=Path(profile))
            print(f"{shot} {shot.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
