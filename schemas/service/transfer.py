"""Writes all schemas of a registry to a file, and imports those of a dump or of another running registry. Ids are
kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPException
from itertools import islice
from typing import Any, Final, TextIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from klamm.core.errors import SchemaError

from ..store.config import Config, Mode
from ..store.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    SchemaRecord,
    SchemaTombstone,
    decode,
    encode,
)
from ..store.schema import SchemaText
from ..store.schema_store import SchemaStore, Which
from ..store.subjects import ALL_CONTEXTS, DEFAULT_CONTEXT, GLOBAL, context_of, qualified
from .topic import SchemaTopic

AT_ONCE: Final = 200
"""Records of one append."""
_TIMEOUT_S: Final = 30.0
_LAST_ID: Final = "klamm-last-id"
"""The subject whose version, removed at once, has the highest id of a context if no schema has it any more."""


def dump(store: SchemaStore, into: TextIO) -> int:
    """Writes the records of a store, a JSON object with the text of `key` and `value` in a line; returns how many."""
    records = [*_removed_ids(store), *_records(store)]
    for record in records:
        key, value = encode(record)
        text = {"key": key.decode(), "value": None if value is None else value.decode()}
        into.write(json.dumps(text, ensure_ascii=False) + "\n")
    return len(records)


def _removed_ids(store: SchemaStore) -> Iterator[SchemaRecord | SchemaTombstone]:
    """Yields what makes the highest id of each context known where no schema has it any more."""
    for context, last in store.last_ids().items():
        if last and store.schema(last, context) is None:
            yield from _with_last_id(context, last)


def _with_last_id(context: str, last: int) -> tuple[SchemaRecord, SchemaTombstone]:
    subject = qualified(context, _LAST_ID)
    return SchemaRecord(subject, 1, last, SchemaText('"null"')), SchemaTombstone(subject, 1)


def _records(store: SchemaStore) -> Iterator[Record]:
    for context in store.contexts():
        if context != DEFAULT_CONTEXT:
            yield ContextRecord(context)
    for scope, config in store.configs().items():
        yield ConfigRecord(scope, config)
    for scope, mode in store.modes().items():
        yield ModeRecord(scope, mode)
    yield from sorted(store.schemas(ALL_CONTEXTS, Which.ALL), key=lambda version: version.offset)


def read_dump(lines: Iterable[str], name: str) -> SchemaStore:
    """Returns the table that the records of a dump make. A line has an object with a record's `key` and `value`, as
    `dump` writes it, or `payload`, as kcat's `-J` does; or the two texts with a tab between, as Kafka's console
    consumer prints them. Raises `SchemaError`, with the line."""
    store = SchemaStore()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            key, value = _key_and_value(line)
            _add(store, decode(key, value))
        except (ValueError, KeyError, TypeError, RecursionError, SchemaError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SchemaError(f"{name}, line {number}: no record of a schemas topic: {why}") from error
    return store


def _key_and_value(line: str) -> tuple[bytes, bytes | None]:
    key, tab, value = line.partition("\t")
    if tab and line.lstrip().startswith("{") and "keytype" in json.loads(key):
        return key.encode(), None if value.strip() == "null" else value.encode()
    given = json.loads(line)
    value = given["payload"] if "value" not in given and "payload" in given else given["value"]
    return _bytes(given["key"]), None if value is None else _bytes(value)


def _bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part).encode()


def _add(store: SchemaStore, record: Record) -> None:
    """Raises `SchemaError` if its id is that of another schema."""
    _check_id(store, record, "")
    store.apply(store.position, 0, *encode(record))


def of_registry(url: str) -> SchemaStore:
    """Returns the schemas of a registry that runs at `url`: versions by id, deleted ones too, and the configurations
    and modes: the global ones, and those of each context and subject. Raises `SchemaError` if it does not answer as a
    registry does."""
    store = SchemaStore()
    try:
        for record in _of_registry(url.rstrip("/")):
            _add(store, record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, SchemaError):
            raise
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SchemaError(f"{url}: it does not answer as a schema registry: {why}"[:500]) from error
    return store


def _of_registry(base: str) -> Iterator[Record]:
    level = _get(f"{base}/config")
    if not isinstance(level, dict):
        raise ValueError("it has no /config")
    yield ConfigRecord(None, _config(level))
    contexts = [context for context in _get(f"{base}/contexts") or () if context != DEFAULT_CONTEXT]
    for context in contexts:
        yield ContextRecord(context)
    subjects = _get(f"{base}/subjects?deleted=true&subjectPrefix=:*:") or []
    for scope in (GLOBAL, *(qualified(context, "") for context in contexts), *subjects):
        own = _get(f"{base}/config/{quote(scope, safe='')}")
        if own is not None:
            yield ConfigRecord(scope, _config(own))
        mode = _get(f"{base}/mode/{quote(scope, safe='')}")
        if mode is not None:
            yield ModeRecord(scope, Mode(mode["mode"]))
    rows: list[SchemaRecord] = []
    for subject in subjects:
        at = f"{base}/subjects/{quote(subject, safe='')}/versions"
        live = set(_get(at) or ())
        for number in _get(f"{at}?deleted=true") or ():
            found = _get(f"{at}/{number}?deleted=true")
            if found is not None:
                rows.append(
                    SchemaRecord(found["subject"], number, found["id"], SchemaText.from_json(found), number not in live)
                )
    rows.sort(key=lambda row: row.schema_id)
    yield from rows
    for context, newest in {row.context: row for row in rows}.items():
        query = f"fetchMaxId=true&subject={quote(qualified(context, ''), safe='')}"
        last = (_get(f"{base}/schemas/ids/{newest.schema_id}?{query}") or {}).get("maxId") or 0
        if last > newest.schema_id:
            yield from _with_last_id(context, last)


def _config(given: dict[str, Any]) -> Config:
    known = {key: value for key, value in given.items() if value is not None}
    return Config.from_json(known)


def _get(url: str) -> Any:
    """Returns the answer; None if there is none of it."""
    if not url.startswith(("http://", "https://")):
        raise SchemaError(f"{url}: not the address of a registry; expected http://HOST:PORT")
    try:
        with urlopen(Request(url, headers={"Accept": "application/json"}), timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise SchemaError(f"{url}: the registry answers with status {error.code}") from error
    except (URLError, OSError, ValueError, RecursionError, HTTPException) as error:
        raise SchemaError(f"{url}: no registry answers: {getattr(error, 'reason', error)}") from error


def import_store(topic: SchemaTopic, given: SchemaStore) -> tuple[int, int]:
    """Appends the records of `given` that are not there yet. Returns how many were appended, and how many were there.
    Raises `SchemaError` if an id or a version belongs to another schema here; records that were appended before stay.
    Ids that were removed in `given` are not allocated here either."""
    removed, records = list(_removed_ids(given)), _records(given)

    def of_ids(store: SchemaStore) -> tuple[Sequence[Record], int]:
        known = {context for context, last in given.last_ids().items() if store.last_id(context) >= last}
        missing = [record for record in removed if context_of(record.subject) not in known]
        return missing, len(missing)

    def of_part(store: SchemaStore) -> tuple[Sequence[Record], int]:
        missing = [record for record in part if not _is_there(store, record)]
        return missing, len(missing)

    appended, total = topic.write(of_ids), len(removed)
    while part := list(islice(records, AT_ONCE)):
        appended += topic.write(of_part)
        total += len(part)
    topic.keep_last_ids()
    return appended, total - appended


def _is_there(store: SchemaStore, record: Record) -> bool:
    match record:
        case SchemaRecord(subject, number, schema_id, schema, deleted):
            _check_id(store, record, " here")
            found = store.version(subject, number, Which.ALL)
            if found is not None and found.schema_id != schema_id:
                raise SchemaError(f"{subject}, version {number}: it is schema {found.schema_id} here, not {schema_id}")
            return found is not None and (found.schema, found.deleted) == (schema, deleted)
        case ContextRecord(context):
            return context in store.contexts()
        case ConfigRecord(scope, config):
            return store.config(scope) == config
        case ModeRecord(scope, mode):
            return store.mode(scope) == mode
    return False


def _check_id(store: SchemaStore, record: Record, where: str) -> None:
    if not isinstance(record, SchemaRecord):
        return
    other = store.schema(record.schema_id, record.context)
    if other is not None and other.schema.text != record.schema.text:
        raise SchemaError(
            f"{record.subject}, version {record.version}: its id {record.schema_id} is that of another schema{where}, "
            f"version {other.version} of {other.subject}" + ("; import into a topic without it" if where else "")
        )
