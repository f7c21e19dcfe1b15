"""The templates of the pages and of the report, which are the same: with their filters, and without a server.

Every template has `page`: its `layout` (`base.html` for a page of its own, `section.html` for a part of a report), the
`level` of its headings below the first, a `prefix` for its element ids, and `href(path, **query)`, which returns the
address of a page.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from klamm.core.escaping import escaped
from klamm.core.http_service import page_style

from ..windows import Span, iso, utc
from .views import Json

MAX_ROWS: Final = 500
"""The most rows of a table or a chart on a page, the newest ones; the REST endpoint returns all."""


def render(name: str, values: Json) -> str:
    """Renders a template in `pages` to text."""
    return environment().get_template(name).render(values)


@cache
def environment() -> Environment:
    """Returns the environment, which is also used for templates of other packages, such as the demo's report."""
    made = Environment(
        loader=FunctionLoader(file_text), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    made.filters |= {"number": number, "instant": instant, "window": window, "part": part}
    made.globals |= {"spans": list(Span), "max_rows": MAX_ROWS}
    return made


@cache
def file_text(name: str) -> str:
    """Returns the text of a file in `pages`; the style is that of all pages."""
    if name == "page.css":
        return page_style()
    return resources.files(__package__).joinpath("pages", name).read_text()


def _shown(value: Any) -> Any:
    """Returns a text as one visible line; `Markup` as it is."""
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: int | None) -> str:
    """Returns `1,234`, or `unknown` for None."""
    return "unknown" if value is None else f"{value:,}"


def instant(timestamp_ms: int | None) -> str:
    """Returns a text such as `2026-11-22 10:00:00 UTC`."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "unknown"
    return utc(timestamp_ms).strftime("%Y-%m-%d %H:%M:%S UTC")


def window(start_ms: int | None) -> str:
    """Returns the start of a window of record time; records without a timestamp have a separate window."""
    if start_ms is None:
        return "none"
    return "no timestamp" if start_ms < 0 else iso(start_ms)


def part(text: Any) -> str:
    """Quotes one segment of a path. A lone surrogate is quoted in a special form, which no server decodes."""
    return quote(str(text), safe="", errors="surrogatepass")
