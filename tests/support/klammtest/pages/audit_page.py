"""The audit's pages on hand-made events, and headless Chromium to look at them.

`python -m klammtest.pages.audit_page docs` makes the pictures of docs/audit.md.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from klamm.plugins.audit.comparison.compare import compare
from klamm.plugins.audit.comparison.tiers import LogEnd, Place
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.query import Answer
from klamm.plugins.audit.web.document import audit_document
from klamm.plugins.audit.web.views import Filters
from klamm.plugins.audit.windows import Span, parse_instant
from klammtest.audits import WINDOW_MS, event

NOW: Final = 10**9
BROWSER: Final = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER: Final = "no chromium here; scripts/setup.sh chromium=chromium installs Debian's"


class HandMade:
    """A `klamm.plugins.audit.web.source.Source` of hand-made events; raises `error` if it is set."""

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
        self.closed = False
        self.logs = {topic: {Place("", 0): LogEnd(0, end)} for topic, end in log_ends.items()}

    def answer(self) -> Answer:
        if self.error is not None:
            raise self.error
        audits = compare(self.events, self.now_ms, topics=self.logs)
        return Answer(tuple(audits), self.unreadable, frozenset(), tuple(self.events), self.logs, self.now_ms)

    def close(self) -> None:
        self.closed = True


GROUP = "a/b <i>"


def pipeline(lake: dict[int, int] | None = None) -> list[AuditEvent]:
    """Two producers of two applications, 30 records in three windows; one of the second window is missing from the
    lake."""
    return [
        event("producer", "p1", 0, 1, {0: 4, 1: 6, 2: 5}, host="web-1", application="shop"),
        event("producer", "p2", 0, 1, {0: 6, 1: 4, 2: 5}, host="web-2", application="<b>till</b>"),
        event("broker", "b", 0, 30, {}, sources={"p1": {0: 4, 1: 6, 2: 5}, "p2": {0: 6, 1: 4, 2: 5}}),
        event("consumer", GROUP, 0, 30, {0: 10, 1: 10, 2: 10}),
        event("hadoop", "lake", 0, 20, {0: 10, 1: 9, 2: 1} if lake is None else lake),
        event("hadoop", "lake", 20, 30, {2: 9}, load=2),
    ]


def hand_made(events: list[AuditEvent] | None = None, log_end: int = 35, unreadable: tuple[str, ...] = ()) -> HandMade:
    return HandMade(pipeline() if events is None else events, {"flights": log_end}, unreadable)


class Page(HTMLParser):
    """The elements of a page that a screen reader needs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.tags if each == tag]


@contextmanager
def served(source: HandMade) -> Iterator[str]:
    """Serves the pages on a free port; yields their address without the last `/`."""
    from klamm.plugins.audit.web.service import AuditPages

    pages = AuditPages(source, "127.0.0.1", 0, "port")
    pages.start()
    try:
        yield pages.url.rstrip("/")
    finally:
        pages.stop()


def check_document(text: str) -> None:
    """Checks that a report is one self-contained file, that each link leads to an element, and that it supports
    keyboards and screen readers.
    """
    page = Page(text)
    named = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(value and value.startswith(("#", "data:")) for value in named), "it loads nothing"
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    assert "@import" not in text
    assert page.all("html") == [{"lang": "en"}]
    assert not page.all("script")
    assert len(page.all("h1")) == len(page.all("main")) == 1
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert all(level - before <= 1 for before, level in itertools.pairwise(levels)), "no level of headings is left out"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = [link["href"] or "" for link in page.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    labelled = [attributes.get("aria-labelledby") for _, attributes in page.tags]
    assert all(name in ids for names in labelled if names for name in names.split())
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert all("style" not in attributes for _, attributes in page.tags), "the content security policy forbids it"
    regions = [each for each in page.all("div") if each.get("role") == "region"]
    assert all(region.get("tabindex") == "0" for region in regions), "what scrolls is reached by keyboard"
    labels = [region["aria-label"] for region in regions]
    assert len(set(labels)) == len(labels)
    charts = [each for each in page.all("svg") if each.get("role") == "img"]
    assert all("aria-labelledby" in chart for chart in charts)
    assert len(charts) <= len(page.all("table")), "each has its numbers in a table"


def chromium(url: str, *options: str, folder: Path) -> str:
    """Returns what headless Chromium prints; it resolves no name but this machine's. `folder` is for its profile."""
    assert BROWSER is not None, NO_BROWSER
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}/profile", *options, url,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


_STARTS: Final = 5
"""Starts of Chromium until a page has the focus at its load event. Without it nothing matches `:focus`; headless, it
may come later (in a crowd of eight in one start of 96)."""
_LOOK: Final = """
<script>
window.addEventListener("load", () => {
  const all = [...document.querySelectorAll("a[href], summary, [tabindex='0']")];
  const kept = all.filter((each) => { each.focus(); return document.activeElement === each; });
  const scrolling = [...document.querySelectorAll("div")].filter((each) => each.scrollWidth > each.clientWidth + 1);
  const skip = document.querySelector(".skip");
  skip.focus();
  document.title = JSON.stringify({
    unreachable: all.filter((each) => !kept.includes(each) && each.checkVisibility()).map((each) => each.outerHTML),
    trapped: scrolling.filter((each) => each.tabIndex < 0).map((each) => each.outerHTML),
    skip: skip.getBoundingClientRect().left,
    outline: getComputedStyle(skip).outlineStyle,
    focused: document.hasFocus(),
    requests: performance.getEntriesByType("resource").map((each) => each.name),
    gaps: [...document.querySelectorAll("figure > svg .gap")].map((each) => getComputedStyle(each).stroke),
    words: [...document.querySelectorAll(".state.missing")].map((each) => each.checkVisibility() && each.innerText),
  });
});
</script>
"""


def look(text: str, folder: Path) -> dict[str, Any]:
    """Runs a script in the report in headless Chromium; returns what a keyboard cannot reach, what the page requested,
    and how missing records are shown.
    """
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", text).replace("</body>", f"{_LOOK}</body>")
    (folder / "looked-at.html").write_text(copy)
    for _ in range(_STARTS):
        shown = chromium(f"file://{folder}/looked-at.html", "--dump-dom", "--window-size=700,900", folder=folder)
        [title] = re.findall("<title>(.*?)</title>", shown)[:1]
        found: dict[str, Any] = json.loads(html.unescape(title))
        if found.pop("focused"):
            return found
    raise AssertionError(f"Chromium did not give the page the focus before its load event in {_STARTS} starts")


def day_of_flights() -> HandMade:
    """Returns a day of two topics: in one the lake has lost records, a producer was killed and the lake lags."""
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


def year_of_flights() -> HandMade:
    """Returns a year of one topic, of which the lake lacks a record on one day and many on another."""
    first = parse_instant("2013-01-01") // WINDOW_MS
    days = {first + 144 * n: 780 + 37 * (n * 7 % 5) - 120 * (n % 7 == 4) for n in range(365)}
    lake = {**days, first + 144 * 100: days[first + 144 * 100] - 1, first + 144 * 200: 410}
    now, records = parse_instant("2014-01-01"), sum(days.values())
    told = {"stored_ms": now - 2_000, "time_ms": now - 2_000}
    events = [
        event("producer", "departures-5f1c", 0, 1, days, **told),
        event("broker", "b", 0, records, {}, sources={"departures-5f1c": days}, **told),
        event("consumer", "billing", 0, records, days, **told),
        event("hadoop", "lake", 0, records, lake, **told),
    ]
    return HandMade(events, {"flights": records}, now_ms=now)


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
            picture(folder, name, f"{url}{path}", size, *options, profile=Path(profile))
        year = Path(profile, "year.html")
        year.write_text(audit_document(year_of_flights().answer(), Filters(Span.DAY)))
        picture(folder, "audit-year", f"file://{year}", "1150,1080", profile=Path(profile))


def picture(folder: Path, name: str, url: str, size: str, *options: str, profile: Path) -> None:
    shot = folder.resolve() / f"{name}.png"
    chromium(url, f"--window-size={size}", f"--screenshot={shot}", *options, folder=profile)
    print(f"{shot} {shot.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
