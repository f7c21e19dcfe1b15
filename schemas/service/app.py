"""The registry over HTTP, as an ASGI application: routes, media types, sizes, and the form of errors.

A subject is one segment of the path and may have any character, so the raw path is split before it is decoded. A read
is answered on the event loop, from memory. A read that finds nothing, a write and a comparison run on a thread: they
read the topic to its end first, so that what one registry has answered is found in another.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from klamm.core.errors import KlammError

from ..refusals import RefusedError
from ..store.subjects import DEFAULT_CONTEXT, context_of, is_valid, qualified, split
from .api import Answer, RegistryApi
from .query import Query
from .topic import SchemaTopic
from .web import RegistryPages

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)
_V1: Final = "application/vnd.schemaregistry.v1+json"
_PRODUCED: Final = (_V1, "application/vnd.schemaregistry+json", "application/json")
_CONSUMED: Final = (*_PRODUCED, "application/octet-stream")
_HEALTH: Final = frozenset({"_health", "health", "ready", "master_available"})


BODY_S: Final = 30.0
"""How long a request's body may take to arrive."""


class HttpError(RefusedError):
    """An answer whose code is no registry's, but HTTP's. `closes`: the connection, since the body was not read."""

    def __init__(self, status: int, message: str, *, closes: bool = False) -> None:
        super().__init__(status, message)
        self.closes = closes


@dataclass(frozen=True)
class Route:
    """`parts`: the segments of the path; `{}` is any. `call` gets the arguments, the query, and the body if it has one.
    `quick`: it may be answered from memory."""

    method: str
    parts: tuple[str, ...]
    call: Callable[..., Answer]
    quick: bool = False
    writes: bool = False
    body: bool = False
    text: bool = False
    """The answer is the text of a schema, as it is."""


def _routes(api: RegistryApi, identity: Mapping[str, Callable[[], Answer]]) -> list[Route]:
    def get(path: str, call: Callable[..., Answer], *, text: bool = False) -> Route:
        return Route("GET", _parts(path), call, quick=True, text=text)

    def post(path: str, call: Callable[..., Answer]) -> Route:
        return Route("POST", _parts(path), call, writes=call in (api.register, api.change_tags), body=True)

    def put(path: str, call: Callable[..., Answer]) -> Route:
        return Route("PUT", _parts(path), call, writes=True, body=True)

    def delete(path: str, call: Callable[..., Answer]) -> Route:
        return Route("DELETE", _parts(path), call, writes=True)

    def of_all(call: Callable[..., Answer]) -> Callable[..., Answer]:
        return partial(call, None)

    return [
        get("/", lambda query: {}),  # noqa: ARG005
        get("/schemas", api.schemas),
        get("/schemas/types", lambda query: api.schema_types()),  # noqa: ARG005
        get("/schemas/ids/{}", api.by_id),
        get("/schemas/ids/{}/schema", api.text_by_id, text=True),
        get("/schemas/ids/{}/subjects", api.subjects_of_id),
        get("/schemas/ids/{}/versions", api.versions_of_id),
        get("/schemas/guids/{}", api.by_guid),
        get("/schemas/guids/{}/ids", api.ids_of_guid),
        get("/subjects", api.subjects),
        post("/subjects/{}", api.look_up),
        delete("/subjects/{}", api.delete_subject),
        get("/subjects/{}/metadata", api.with_metadata),
        get("/subjects/{}/versions", api.versions),
        post("/subjects/{}/versions", api.register),
        get("/subjects/{}/versions/{}", api.version),
        delete("/subjects/{}/versions/{}", api.delete_version),
        get("/subjects/{}/versions/{}/schema", api.version_text, text=True),
        post("/subjects/{}/versions/{}/tags", api.change_tags),
        get("/subjects/{}/versions/{}/referencedby", api.referenced_by),
        post("/compatibility/subjects/{}/versions/{}", api.compare_with_version),
        post("/compatibility/subjects/{}/versions", api.compare_with_all),
        get("/config", of_all(api.config)),
        put("/config", of_all(api.set_config)),
        delete("/config", of_all(api.delete_config)),
        get("/config/{}", api.config),
        put("/config/{}", api.set_config),
        delete("/config/{}", api.delete_config),
        get("/mode", of_all(api.mode)),
        put("/mode", of_all(api.set_mode)),
        delete("/mode", of_all(api.delete_mode)),
        get("/mode/{}", api.mode),
        put("/mode/{}", api.set_mode),
        delete("/mode/{}", api.delete_mode),
        get("/contexts", api.contexts),
        delete("/contexts/{}", api.delete_context),
        *(get(path, lambda query, found=found: found()) for path, found in identity.items()),  # noqa: ARG005
    ]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


class RegistryApp:
    """`identity`: the answers about the registry itself, by path."""

    def __init__(
        self,
        api: RegistryApi,
        topic: SchemaTopic,
        *,
        max_body_bytes: int,
        identity: Mapping[str, Callable[[], Answer]],
        body_s: float = BODY_S,
    ) -> None:
        self._topic = topic
        self._pages = RegistryPages(api, topic)
        self._body_s = body_s
        self._max_body_bytes = max_body_bytes
        self._routes: dict[int, list[Route]] = {}
        for route in _routes(api, identity):
            self._routes.setdefault(len(route.parts), []).append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        media = _V1
        try:
            parts = _segments(scope)
            if len(parts) == 1 and parts[0] in _HEALTH:
                response = self._health(parts[0])
            elif parts[:1] == ["ui"]:
                response = await run_sync(self._shown, request.method, parts[1:], Query(scope["query_string"]))
            else:
                media = _accepted(request) if parts else _V1
                response = await self._answer(request, parts, media)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the registry stops, and the request has had its time
            response = _error(50002, "The registry stops before the outcome is known.", media)
        except RefusedError as error:
            response = _error(error.error_code, str(error), media)
            if isinstance(error, HttpError) and error.closes:
                response.headers["connection"] = "close"
        except KlammError as error:
            response = _error(50001, f"Error in the backend data store: {error}", media)
        except Exception as error:
            _log.exception("a request failed: %s", request.method)
            response = _error(500, f"Internal Server Error: {type(error).__name__}", media)
        await response(scope, receive, send)

    async def _answer(self, request: Request, parts: list[str], media: str) -> Response:
        context = DEFAULT_CONTEXT
        if len(parts) > 2 and parts[0] == "contexts":
            context, parts = parts[1].strip(":"), _within(parts[1].strip(":"), parts[2:])
        route, arguments = self._route(request.method, parts)
        query = Query(request.scope["query_string"], context)
        arguments.append(query)
        if route.body:
            arguments.append(await self._body(request))
        if route.quick and self._topic.is_loaded and not query.text("format"):  # another form is parsed first
            try:
                return _response(route.call(*arguments), route, media)
            except RefusedError as error:
                if not 40400 <= error.error_code < 40500:
                    raise
        answer = await run_sync(self._slow, route, arguments)
        return _response(answer, route, media)

    def _shown(self, method: str, parts: list[str], query: Query) -> Response:
        self._load()
        return self._pages.answer(method, parts, query)

    def _slow(self, route: Route, arguments: list[Any]) -> Answer:
        problem = None
        if not route.writes or not self._topic.is_loaded:  # a write reads the topic to its end itself
            problem = self._load()
        try:
            return route.call(*arguments)
        except RefusedError as error:
            if problem is None or not 40400 <= error.error_code < 40500:
                raise
            raise HttpError(
                503, f"the topic of schemas cannot be read now, and was without it: {error} ({problem})"
            ) from error

    def _load(self) -> str | None:
        """Returns why the topic cannot be read now, if what was read before may be answered."""
        try:
            self._topic.catch_up()
        except KlammError as error:
            if not self._topic.is_loaded:
                raise HttpError(503, f"the topic of schemas cannot be read yet: {error}") from error
            _log.warning("an answer is from memory: %s", error)
            return str(error)
        return None

    def _route(self, method: str, parts: list[str]) -> tuple[Route, list[Any]]:
        wrong_method = False
        for route in self._routes.get(len(parts), ()):
            if all(wanted in ("{}", given) for wanted, given in zip(route.parts, parts, strict=True)):
                if route.method == method or (method == "HEAD" and route.method == "GET"):
                    named = zip(route.parts, parts, strict=True)
                    return route, [given for wanted, given in named if wanted == "{}"]
                wrong_method = True
        if wrong_method:
            raise HttpError(405, "HTTP 405 Method Not Allowed")
        raise HttpError(404, "HTTP 404 Not Found")

    async def _body(self, request: Request) -> Mapping[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind not in _CONSUMED:
            raise HttpError(415, "HTTP 415 Unsupported Media Type")
        try:
            data = await asyncio.wait_for(self._received(request), self._body_s)
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {self._body_s:g} s", closes=True) from None
        if not data:
            raise HttpError(422, "the body is empty; a JSON object is needed")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise HttpError(400, f"the body is no JSON: {why}") from None
        if not isinstance(found, dict):
            raise HttpError(422, "the body is no JSON object")
        if b"\\u" in data and not _is_utf8(found):
            raise HttpError(400, "the body has half of a surrogate pair, which no UTF-8 text can have")
        return found

    async def _received(self, request: Request) -> bytes:
        too_long = HttpError(413, f"the body is longer than {self._max_body_bytes} bytes", closes=True)
        length = request.headers.get("content-length", "")
        if length.isdigit() and (len(length) > 18 or int(length) > self._max_body_bytes):
            raise too_long
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > self._max_body_bytes:
                raise too_long
        return bytes(data)

    def _health(self, name: str) -> Response:
        problem = self._topic.problem()
        if name == "master_available":
            found: Answer = {"master_available": problem is None}
        else:
            found = {"status": "ok"} if problem is None else {"status": "unavailable", "problem": problem}
        return _json(found, "application/json", 200 if problem is None else 503)


def _segments(scope: Scope) -> list[str]:
    """Returns the parts of the path, each decoded once; one that is no UTF-8 is not found."""
    raw = scope.get("raw_path") or scope["path"].encode()
    try:
        return [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/") if part]
    except UnicodeDecodeError:
        raise HttpError(404, "HTTP 404 Not Found") from None


def _within(context: str, parts: list[str]) -> list[str]:
    """Returns the path with the context put before the subject that it names."""
    if not context.startswith(".") or ":" in context or not is_valid(qualified(context, ""), for_config=True):
        raise HttpError(404, f"HTTP 404 Not Found: {context!r:.100} is no context, which begins with a point")
    at = 2 if parts[0] == "compatibility" else 1
    if parts[0] in ("subjects", "compatibility", "config", "mode") and len(parts) > at:
        return [*parts[:at], _in_context(context, parts[at]), *parts[at + 1 :]]
    if parts[0] in ("config", "mode") and len(parts) == 1:
        return [parts[0], qualified(context, "")] if context != DEFAULT_CONTEXT else parts
    return parts


def _in_context(context: str, subject: str) -> str:
    return qualified(context, split(subject)[1]) if context_of(subject) == DEFAULT_CONTEXT else subject


def _accepted(request: Request) -> str:
    """Returns the media type of the answer: the one of ours that `Accept` prefers, the first of several."""
    given = request.headers.get("accept", "")
    wanted = [_quality(part) for part in given.split(",") if part.strip()]
    if not wanted:
        return _V1
    refused = {name for name, quality in wanted if quality <= 0}
    taken = sorted((one for one in wanted if one[1] > 0), key=lambda one: -one[1])
    for name, _ in taken:
        if name in _PRODUCED:
            return name
    for produced in _PRODUCED:
        if produced not in refused and any(name in ("*/*", "application/*", "*") for name, _ in taken):
            return produced
    raise HttpError(406, "HTTP 406 Not Acceptable")


def _quality(part: str) -> tuple[str, float]:
    """Returns the media type and its `q`, 1 where there is none that is a number."""
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    given = next((one.partition("=")[2].strip() for one in parameters if one.partition("=")[0].strip() == "q"), "")
    try:
        return name, float(given or 1)
    except ValueError:
        return name, 1.0


def _is_utf8(found: Answer) -> bool:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _response(answer: Answer, route: Route, media: str) -> Response:
    if answer is None:
        return Response(status_code=204)
    if route.text:
        return Response(answer, media_type=media)
    return _json(answer, media)


def _json(answer: Answer, media: str, status: int = 200) -> Response:
    return Response(json.dumps(answer, separators=(",", ":"), ensure_ascii=False), status, media_type=media)


def _error(code: int, message: str, media: str) -> Response:
    return _json({"error_code": code, "message": message}, media, int(str(code)[:3]))
