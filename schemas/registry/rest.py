"""A schema registry that is asked by REST: Klamm's, Confluent's, or another with that API.

Its answers are kept in a table, as the topic's records are (`SchemaStore`): one version of each schema that was needed,
and of those that it refers to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from ..compatibility import Compatibility
from ..names import AVRO
from ..store.records import SchemaRecord, encode
from ..store.schema import SchemaText
from ..store.schema_store import MAX_DEPTH, SchemaStore, SchemaVersion, Which
from ..store.subjects import DEFAULT_CONTEXT, beside, context_of, qualified
from .registry import SchemaRegistry, warn_of_level
from .rest_client import NotRegisteredError, RestClient

_MOST: Final = 10_000
"""Schemas that one look-up may follow references to."""
_NOWHERE: Final = "unknown subject"
"""Stands for the subject of a schema that a registry does not show."""


class RestRegistry(SchemaRegistry):
    """A key other than an id or a GUID is searched among the versions of the subject only."""

    def __init__(
        self, client: RestClient, schema_type: str = AVRO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(schema_type, clock)
        self._client = client
        self._store = SchemaStore()

    def close(self) -> None:
        self._client.close()

    def _fetch(self, key: SchemaKey, subject: str) -> SchemaStore:
        with suppress(NotRegisteredError):
            if key.schema_id is not None:
                self._fetch_id(key.schema_id, context_of(subject))
            elif key.guid is not None:
                self._fetch_guid(str(UUID(bytes=key.guid)), context_of(subject))
            elif subject:
                for number in self._numbers(subject):
                    self._fetch_version(subject, number)
        return self._store

    def _register(
        self, subject: str, given: SchemaText, compatibility: Compatibility | None, normalize: bool
    ) -> RegisteredSchema:
        if compatibility is not None:
            self._set_level(subject, compatibility)
        answer = self._client.post(given.to_json(), "subjects", subject, "versions", **_normalize(normalize))
        return self._own(subject, _number(answer, "id"))

    def _registered(self, subject: str, given: SchemaText, normalize: bool) -> RegisteredSchema:
        try:
            answer = self._client.post(given.to_json(), "subjects", subject, **_normalize(normalize))
        except NotRegisteredError as error:
            raise SchemaError(f"the schema is not registered as {subject}: {error}") from error
        return self._own(subject, _number(answer, "id"))

    def newest_first(self, subject: str) -> Iterator[SchemaVersion]:
        try:
            numbers = self._numbers(subject)
        except NotRegisteredError:
            return
        for number in reversed(numbers):
            with self._lock:
                version = self._fetch_version(subject, number)
                self._of(self._store, version.subject)
            yield version

    def latest(self, subject: str) -> RegisteredSchema:
        try:
            answer = self._client.get("subjects", subject, "versions", "latest")
        except NotRegisteredError as error:
            raise SchemaError(f"no schema is registered as {subject}: {error}") from error
        with self._lock:
            version = self._add(subject, _number(answer, "version"), _number(answer, "id"), answer)
            return self._of(self._store, subject).read(version)

    def writers(self, subject: str) -> RestWriters:
        return RestWriters(self._client, subject, self.schema_type)

    def _own(self, subject: str, schema_id: int) -> RegisteredSchema:
        with self._lock:
            self._fetch_id(schema_id, context_of(subject), known=True)
            found = self._of(self._store, subject).find(SchemaKey(schema_id=schema_id))
        assert found is not None
        return found

    def _set_level(self, subject: str, level: Compatibility) -> None:
        """Makes the level that of a subject without versions and configuration."""
        try:
            own = self._client.get("config", subject)
        except NotRegisteredError:
            own = None
        if own is not None:
            found = own.get("compatibilityLevel") if isinstance(own, Mapping) else None
            if found not in (None, level):
                warn_of_level(subject, found, level)
            return
        with suppress(NotRegisteredError):
            if self._numbers(subject):
                return
        self._client.put({"compatibility": str(level)}, "config", subject)

    def _numbers(self, subject: str) -> list[int]:
        return [_whole(number) for number in _list(self._client.get("subjects", subject, "versions"))]

    def _fetch_id(self, schema_id: int, context: str, *, known: bool = False) -> None:
        query = {} if context == DEFAULT_CONTEXT else {"subject": qualified(context, "")}
        get = self._client.get_known if known else self._client.get
        answer = get("schemas", "ids", schema_id, **query)
        subject, version = self._place(schema_id, query) or (qualified(context, _NOWHERE), schema_id)
        self._add(subject, version, schema_id, answer)

    def _place(self, schema_id: int, query: Mapping[str, str]) -> tuple[str, int] | None:
        """Returns a subject and version of an id; None if the registry shows none, as to users who may not list."""
        for more in ({}, {"deleted": "true"}):
            try:
                found = self._client.get("schemas", "ids", schema_id, "versions", **query, **more)
            except NotRegisteredError:  # a registry without this list
                return None
            for one in _rows(found):
                return str(one.get("subject")), _number(one, "version")
        return None

    def _fetch_guid(self, guid: str, context: str) -> None:
        answer = self._client.get("schemas", "guids", guid)
        rows = _rows(self._client.get("schemas", "guids", guid, "ids"))
        found = {str(one.get("context")): _number(one, "id") for one in rows}
        chosen = context if context in found else next(iter(found), None)
        if chosen is None:
            raise NotRegisteredError(f"GUID {guid} has no id")
        query = {} if chosen == DEFAULT_CONTEXT else {"subject": qualified(chosen, "")}
        subject, version = self._place(found[chosen], query) or (qualified(chosen, _NOWHERE), found[chosen])
        self._add(subject, version, found[chosen], answer)

    def _fetch_version(self, subject: str, number: int) -> SchemaVersion:
        known = self._store.version(subject, number, Which.ALL)
        if known is not None:
            return known
        answer = self._client.get("subjects", subject, "versions", number)
        schema_id = _number(answer, "id")
        return self._add(str(answer.get("subject", subject)), number, schema_id, answer)

    def _add(self, subject: str, number: int, schema_id: int, answer: Mapping[str, Any]) -> SchemaVersion:
        """Adds a schema, and all that it refers to, to the table."""
        schema = _schema_text(answer)
        waiting, seen = [(subject, reference, 1) for reference in schema.references], 0
        while waiting:
            owner, reference, depth = waiting.pop()
            seen += 1
            if depth > MAX_DEPTH or seen > _MOST:
                raise SchemaError(f"schema {schema_id}: too many references within each other")
            name = beside(owner, reference.subject)
            if self._store.version(name, reference.version, Which.ALL) is None:
                found = self._client.get("subjects", name, "versions", reference.version, deleted="true")
                other = self._put(name, reference.version, _number(found, "id"), _schema_text(found))
                waiting += [(name, more, depth + 1) for more in other.schema.references]
        return self._put(subject, number, schema_id, schema)

    def _put(self, subject: str, number: int, schema_id: int, schema: SchemaText) -> SchemaVersion:
        known = self._store.version(subject, number, Which.ALL)
        if known is None or (known.schema_id, known.schema.text) != (schema_id, schema.text):
            key, value = encode(SchemaRecord(subject, number, schema_id, schema))
            self._store.apply(self._store.position, 0, key, value)
            known = self._store.version(subject, number, Which.ALL)
        if known is None or (known.schema_id, known.schema.text) != (schema_id, schema.text):
            other = self._store.schema(schema_id, context_of(subject))
            place = "" if other is None else f" ({other.subject}, version {other.version})"
            raise SchemaError(f"schema {schema_id} was another text before{place}: the registry's ids were given again")
        return known


class RestWriters:
    """Implements `Writers`; a task that unpickles it asks the registry itself."""

    def __init__(self, client: RestClient, subject: str, schema_type: str) -> None:
        self._client = client
        self._subject = subject
        self._schema_type = schema_type
        self._registry: RestRegistry | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_registry": None}

    def get(self, key: SchemaKey) -> str | None:
        if self._registry is None:
            self._registry = RestRegistry(self._client, self._schema_type)
        found = self._registry.find(key, self._subject)
        return None if found is None else found.text


def _normalize(normalize: bool) -> dict[str, str]:
    return {"normalize": "true"} if normalize else {}


def _schema_text(answer: Mapping[str, Any]) -> SchemaText:
    try:
        return SchemaText.from_json(answer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"the schema registry's answer is no schema: {error!r:.200}") from error


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise SchemaError(f"the schema registry's answer is no list: {answer!r:.100}")
    return answer


def _rows(answer: Any) -> list[Mapping[str, Any]]:
    rows = _list(answer)
    if not all(isinstance(one, Mapping) for one in rows):
        raise SchemaError(f"the schema registry's answer is no list of objects: {answer!r:.100}")
    return rows


def _number(answer: Any, name: str) -> int:
    return _whole(answer.get(name) if isinstance(answer, Mapping) else None)


def _whole(found: Any) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise SchemaError(f"the schema registry's answer is no number from 1 on: {found!r:.100}")
    return found
