"""The audit as one HTML file: the same pages as those of the server, one after the other, with links between them.

It refers to nothing outside itself, and its content security policy forbids a browser to load anything.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from jinja2 import Template
from markupsafe import Markup

from klamm.plugin import ConfigError

from ..event import PRODUCER
from ..query import Answer
from . import views
from .chart import draw
from .templates import MAX_ROWS, environment, file_text, part, render
from .views import Filters, Json

_LEVEL: Final = 3
"""The level of the headings within a section, whose own heading has level 2."""


@dataclass(frozen=True)
class DocumentSection:
    """A part of the document. `name` is its entry in the contents; its `html` has the element `anchor`."""

    anchor: str
    name: str
    html: Markup


def audit_sections(answer: Answer, filters: Filters) -> list[DocumentSection]:
    """Returns the sections: all topics; then each topic, its producers, and each of its tiers."""
    pages = list(_pages(answer, filters))
    hrefs: dict[str, str] = {}
    for number, page in enumerate(pages):
        hrefs[page.path] = f"#audit-{number}"
        for place, each in enumerate(page.values.get("chosen", ()), 1):
            host, application = part(each["host"]), part(each["application"])
            hrefs[f"{page.path}/{host}/{application}"] = f"#audit-{number}-application-{place}"
    return [
        section(f"audit-{number}", page.name, page.template, page.values, hrefs) for number, page in enumerate(pages)
    ]


def section(
    anchor: str, name: str, template: str | Template, values: Json, hrefs: Mapping[str, str] | None = None
) -> DocumentSection:
    """Renders a template as a part of the document; `hrefs`: the addresses of the pages, by path."""
    known = hrefs or {}

    def href(path: str, **query: str) -> str:
        words = (path, *(part(query[name]) for name in ("host", "application") if name in query))
        return known.get("/".join(words), "#main")

    page = {"layout": "section.html", "level": _LEVEL, "prefix": f"{anchor}-", "anchor": anchor, "href": href}
    made = environment().get_template(template) if isinstance(template, str) else template
    return DocumentSection(anchor, name, Markup(made.render({**values, "page": page})))


def document(title: str, sections: Sequence[DocumentSection], read_ms: int, style: str = "") -> str:
    """Returns the whole file; `read_ms`: when its data was read; `style`: the style of additional sections."""
    style = f"\n{file_text('page.css')}{style}"
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    values: Json = {
        "title": title,
        "sections": sections,
        "read_ms": read_ms,
        "style": style,
        "style_hash": f"sha256-{digest}",
    }
    return render("report.html", values)


def audit_document(answer: Answer, filters: Filters) -> str:
    """Returns the document that `klamm audit --html` writes."""
    names = ", ".join(audit.topic for audit in answer.audits)
    title = f"Audit of {names}" if 0 < len(names) <= 80 else "Audit"
    return document(title, audit_sections(answer, filters), answer.now_ms)


def write_document(path: Path, text: str) -> None:
    """Writes the file as a whole or not at all. Raises `ConfigError` if it cannot be written."""
    half = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        half.write_text(text)
        os.replace(half, path)  # noqa: PTH105 - the same
    except OSError as error:
        half.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


@dataclass(frozen=True)
class _Page:
    """One of the server's pages: its path, its name in the contents, its template and the data for it."""

    path: str
    name: str
    template: str
    values: Json


def _pages(answer: Answer, filters: Filters) -> Iterator[_Page]:
    yield _Page("/", "All topics", "overview.html", views.overview(answer))
    for audit in answer.audits:
        name, base = audit.topic, f"/topics/{part(audit.topic)}"
        said, shown, rows = views.topic(answer, name, filters)
        yield _Page(base, f"Topic {name}", "topic.html", {**said, "chart": draw(shown, rows[-MAX_ROWS:])})
        for tier in audit.tiers:
            if tier.tier == PRODUCER:
                said, chosen = views.all_producers(answer, name, filters)
                values = {**said, "chosen": chosen[:MAX_ROWS]}
                yield _Page(f"{base}/producers", f"Producers of {name}", "producers.html", values)
            else:
                values = views.tier(answer, name, str(tier), filters)
                yield _Page(f"{base}/tiers/{part(tier)}", f"{tier} on {name}", "tier.html", values)
