"""The registry's pages, below `/ui`: subjects, versions, and how two versions differ. They read only, work without
JavaScript, refer to nothing outside this server, and have the style of the audit's pages.
"""

from __future__ import annotations

import difflib
import json
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup
from starlette.responses import Response

from klamm.core.errors import SchemaError
from klamm.core.escaping import escaped
from klamm.core.http_service import PAGE_HEADERS, page_style

from .. import refusals
from ..names import PROTOBUF
from ..refusals import RefusedError
from ..store.schema import SchemaText
from ..store.schema_store import SchemaStore, SchemaVersion, Which
from ..store.subjects import ALL_CONTEXTS
from .api import RegistryApi, version_number
from .query import Query
from .topic import SchemaTopic

MAX_ROWS: Final = 200
"""Rows of a table; the REST API has all."""
MAX_LINES: Final = 5_000
"""Lines of a schema's text, or of a difference."""


class RegistryPages:
    """Thread-safe."""

    def __init__(self, api: RegistryApi, topic: SchemaTopic) -> None:
        self._api = api
        self._topic = topic

    def answer(self, method: str, parts: list[str], query: Query) -> Response:
        """Returns the page of a path, whose segments are `parts`; an error is a page too."""
        if method not in ("GET", "HEAD"):
            return _page("page.html", 405, title="Pages are only read")
        try:
            match parts:
                case []:
                    return self._subjects(query)
                case ["page.css"]:
                    return Response(page_style(), headers=PAGE_HEADERS, media_type="text/css")
                case ["subjects", subject]:
                    return self._subject(subject)
                case ["subjects", subject, number]:
                    return self._version(subject, number)
                case ["subjects", subject, old, new]:
                    return self._differences(subject, old, new)
        except RefusedError as error:
            status = int(str(error.error_code)[:3])
            return _page("page.html", status, title="Not found" if status == 404 else "Not possible", error=str(error))
        except SchemaError as error:
            return _page("page.html", 422, title="Not possible", error=str(error))
        return _page("page.html", 404, title="Not found", error="There is no such page.")

    def _subjects(self, query: Query) -> Response:
        prefix = query.text("prefix")
        with self._topic.store() as store:
            names = store.subjects(prefix if prefix.startswith(":") else f"{ALL_CONTEXTS}{prefix}")
            rows = Query(f"offset={query.text('offset')}".encode()).page(names)
            offset = len(names) - len(rows)
            shown = [self._row(store, name) for name in rows[:MAX_ROWS]]
            level, mode = self._api.level(store, None), store.mode_in_scope(None)
            contexts = store.contexts()
        return _page(
            "subjects.html", title="Schemas", json="/subjects", prefix=prefix, count=len(names), contexts=contexts,
            rows=shown, offset=offset, earlier=max(offset - MAX_ROWS, 0),
            later=offset + MAX_ROWS if len(rows) > MAX_ROWS else 0, level=level, mode=mode,
        )  # fmt: skip

    def _row(self, store: SchemaStore, subject: str) -> dict[str, Any]:
        latest = store.latest(subject)
        assert latest is not None
        return {
            "subject": subject, "kind": latest.schema.schema_type, "versions": len(store.versions(subject)),
            "version": latest.version, "id": latest.schema_id, "level": self._api.level(store, subject),
            "mode": store.mode_in_scope(subject),
        }  # fmt: skip

    def _subject(self, subject: str) -> Response:
        with self._topic.store() as store:
            versions = store.versions(subject, Which.ALL)
            alias = store.alias_of(subject)
            if not versions and alias == subject:
                raise refusals.subject_not_found(subject)
            level, mode = self._api.level(store, subject), store.mode_in_scope(subject)
        shown = versions[-MAX_ROWS:]
        rows = [
            {
                "version": one.version, "id": one.schema_id, "kind": one.schema.schema_type, "deleted": one.deleted,
                "time": _time(one.timestamp_ms), "before": before.version if before else None,
            }
            for before, one in zip([None, *shown], shown, strict=False)
        ]  # fmt: skip
        return _page(
            "subject.html", title=subject, subject=subject, rows=rows[::-1], more=len(versions) - len(shown),
            level=level, mode=mode, alias=alias if alias != subject else None,
            json=f"/subjects/{quote(subject, safe='')}/versions",
        )  # fmt: skip

    def _version(self, subject: str, number: str) -> Response:
        with self._topic.store() as store:
            found = self._found(store, subject, number)
            referrers = store.referenced_by(found.subject, found.version)[:MAX_ROWS]
            references = store.resolve(found.subject, found.schema.references)
        schema = found.schema
        facts = [
            ("Id", found.schema_id), ("Type", schema.schema_type), ("GUID", found.guid),
            ("Registered", _time(found.timestamp_ms)), ("State", "deleted" if found.deleted else "live"),
        ]  # fmt: skip
        rest = {
            name: part.to_json()
            for name, part in (("metadata", schema.metadata), ("ruleSet", schema.rule_set))
            if part is not None
        }
        return _page(
            "version.html", title=f"{subject}, version {found.version}", subject=subject, facts=facts,
            lines=_lines(schema)[:MAX_LINES], rest=_indented(rest) if rest else [],
            references=[(one.name, version.subject, version.version) for one, version in references],
            referrers=[(one.subject, one.version) for one in referrers],
            json=f"/subjects/{quote(subject, safe='')}/versions/{found.version}?deleted=true",
        )  # fmt: skip

    def _differences(self, subject: str, old: str, new: str) -> Response:
        with self._topic.store() as store:
            one, two = self._found(store, subject, old), self._found(store, subject, new)
        backward, forward = self._api.reads(subject, str(one.version), str(two.version))
        readers = (
            (f"Version {two.version} reads data of version {one.version}", backward),
            (f"Version {one.version} reads data of version {two.version}", forward),
        )
        changes = difflib.unified_diff(
            _lines(one.schema)[:MAX_LINES], _lines(two.schema)[:MAX_LINES], f"version {one.version}",
            f"version {two.version}", lineterm="",
        )  # fmt: skip
        marks = {"+": "ins", "-": "del"}
        lines = [("" if line[:3] in ("+++", "---") else marks.get(line[:1], ""), line) for line in changes]
        return _page(
            "differences.html", title=f"{subject}, versions {one.version} and {two.version}", subject=subject,
            readers=readers, lines=lines[:MAX_LINES],
        )  # fmt: skip

    def _found(self, store: SchemaStore, subject: str, number: str) -> SchemaVersion:
        wanted = version_number(number)
        found = store.latest(subject) if wanted < 0 else store.version(subject, wanted, Which.ALL)
        if found is not None:
            return found
        known = store.has_subject(subject, Which.ALL)
        raise refusals.version_not_found(wanted) if known else refusals.subject_not_found(subject)


def _lines(schema: SchemaText) -> list[str]:
    """Returns the text in lines: JSON is indented."""
    if schema.schema_type != PROTOBUF:
        try:
            return _indented(json.loads(schema.text))
        except (ValueError, RecursionError):  # another program has stored it
            return schema.text.split("\n")
    return schema.text.split("\n")


def _indented(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).split("\n")


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _href(subject: str, *numbers: object) -> str:
    return "/ui/subjects/" + "/".join(quote(str(part), safe="") for part in (subject, *numbers))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(lambda name: resources.files(__package__).joinpath("pages", name).read_text()),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )  # fmt: skip
    made.globals |= {"href": _href}
    return made


def _page(name: str, status: int = 200, **values: Any) -> Response:
    text = _environment().get_template(name).render(values)
    return Response(text, status, PAGE_HEADERS, "text/html")
