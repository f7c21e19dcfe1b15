"""The pages and the REST endpoint as an ASGI application.

Each page has a counterpart below `/api` with the same content as JSON. A page works without JavaScript and refers to
nothing outside this server. An error is one line on a page: 400 for a wrong filter, 404 for an unknown name, 503 if the
cluster cannot be reached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.core.http_service import PAGE_HEADERS
from klamm.plugin import ConfigError, KlammError

from . import views
from .chart import draw
from .source import Source
from .templates import MAX_ROWS, file_text, instant, render
from .views import Filters, Json, NotFoundError

_FILTERS: Final = ("by", "since", "until", "tier", "host", "application")

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Request], tuple[str, Json, Json]]
"""The name of a template, the data for it and for JSON, and the data for the template only. Runs in a thread."""


def make_app(source: Source) -> Starlette:
    """Returns the application; `source` provides the answers."""
    site = _Site(source)
    shown: dict[str, View] = {
        "/topics/{topic}": site.topic,
        "/topics/{topic}/producers": site.producers,
        "/topics/{topic}/tiers/{tier:path}": site.tier,
    }
    pages = {"/": site.overview, **shown}
    apis = {"/api/topics": site.overview, **{f"/api{path}": view for path, view in shown.items()}}
    return Starlette(
        routes=[
            *(Route(path, _page(view)) for path, view in pages.items()),
            *(Route(path, _api(view)) for path, view in apis.items()),
            Route("/page.css", _asset("page.css", "text/css")),
            Route("/live.js", _asset("live.js", "text/javascript")),
        ],
        exception_handlers={KlammError: _failed, HTTPException: _refused, 500: _broken},
    )


class _Site:
    """The views of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def overview(self, request: Request) -> tuple[str, Json, Json]:  # noqa: ARG002 - as every view is called
        return "overview.html", views.overview(self._source.answer()), {}

    def topic(self, request: Request) -> tuple[str, Json, Json]:
        filters = Filters.parse(request.query_params)
        said, audit, rows = views.topic(self._source.answer(), request.path_params["topic"], filters)
        return "topic.html", said, {"chart": draw(audit, rows[-MAX_ROWS:])}

    def producers(self, request: Request) -> tuple[str, Json, Json]:
        query = request.query_params
        filters = Filters.parse(query)
        name = request.path_params["topic"]
        said = views.producers(self._source.answer(), name, filters, query.get("host"), query.get("application"))
        return "producers.html", said, {"chosen": [said]}

    def tier(self, request: Request) -> tuple[str, Json, Json]:
        filters = Filters.parse(request.query_params)
        path = request.path_params
        return "tier.html", views.tier(self._source.answer(), path["topic"], path["tier"], filters), {}


# -- answers


def _page(view: View) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        name, said, more = await run_in_threadpool(view, request)
        text = await run_in_threadpool(_render, request, name, {**said, **more})
        return _answer(request, text, "text/html", instant(said["read_ms"]))

    return endpoint


def _api(view: View) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        _, said, _ = await run_in_threadpool(view, request)
        text = _json(said)
        return _answer(request, text, "application/json", f'"read_ms":{said["read_ms"]}')

    return endpoint


def _json(said: Json) -> str:
    """Returns JSON in ASCII, which holds every text, lone surrogates too."""
    return json.dumps(said, allow_nan=False, separators=(",", ":"))


def _asset(name: str, media_type: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _answer(request, file_text(name), media_type)

    return endpoint


def _answer(request: Request, text: str, media_type: str, read_at: str = "") -> Response:
    """Returns the response with an entity tag that does not change with the time of reading alone; 304 if the client
    has it.
    """
    digest = hashlib.sha256((text.replace(read_at, "") if read_at else text).encode()).hexdigest()
    tag = f'W/"{digest[:32]}"'
    headers = {**PAGE_HEADERS, "ETag": tag}
    known = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=media_type, headers=headers)


async def _failed(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NotFoundError) else 400 if isinstance(error, ConfigError) else 503
    return await _error(request, status, " ".join(str(error).split()))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"there is no page {request.url.path}" if error.status_code == 404 else error.detail
    return await _error(request, error.status_code, said)


async def _broken(request: Request, error: Exception) -> Response:
    return await _error(request, 500, f"the server failed: {type(error).__name__}; its log says more")


async def _error(request: Request, status: int, text: str) -> Response:
    if request.url.path.startswith("/api/"):
        return Response(_json({"error": text}), status, PAGE_HEADERS, "application/json")
    page = _render(request, "error.html", {"status": status, "error": text})
    return Response(page, status, PAGE_HEADERS, "text/html")


# -- templates


def _render(request: Request, name: str, said: Json) -> str:
    query = {key: request.query_params[key] for key in _FILTERS if request.query_params.get(key)}
    live = request.query_params.get("live", "")
    kept = {**query, "live": live} if live in ("on", "off") else query
    page: Json = {
        "layout": "base.html",
        "level": 2,
        "prefix": "",
        "query": query,
        "live": live,
        "here": request.url.path,
        "href": lambda path, **more: _href(path, {**{k: v for k, v in kept.items() if k in _KEPT}, **more}),
        "this": lambda **more: _href(quote(request.url.path), {**query, **more}),
        "api": _href(_twin(request.url.path), query),
    }
    return render(name, {**said, "page": page})


_KEPT: Final = ("since", "until", "live")
"""Filters that are kept in a link to another page."""


def _twin(path: str) -> str:
    return "/api/topics" if path == "/" else quote(f"/api{path}")


def _href(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path
