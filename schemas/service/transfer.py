"""All schemas of a registry in a file, and back: from a dump, or from another registry that runs. Ids are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TextIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from klamm.core.errors import SchemaError

from ..store.config import Config, Mode
from ..store.records import ConfigRecord, ModeRecord, Record, SchemaRecord, decode, encode
from ..store.schema import Metadata, Reference, RuleSet, SchemaText
from ..store.schema_store import SchemaStore, Which
from ..store.subjects import ALL_CONTEXTS
from .topic import SchemaTopic

__all__ = ["dump", "dumped", "import_records", "of_registry"]

AT_ONCE: Final = 200
"""Records of one append."""
_TIMEOUT_S: Final = 30.0


def dump(store: SchemaStore, into: TextIO) -> int:
    """Writes the records of a store, a JSON object with the text of `key` and `value` in a line; returns how many."""
    records = list(_records(store))
    for record in records:
        key, value = encode(record)
        text = {"key": key.decode(), "value": None if value is None else value.decode()}
        into.write(json.dumps(text, ensure_ascii=False) + "\n")
    return len(records)


def _records(store: SchemaStore) -> Iterator[Record]:
    for scope, config in store.configs().items():
        yield ConfigRecord(scope, config)
    for scope, mode in store.modes().items():
        yield ModeRecord(scope, mode)
    found = store.schemas(ALL_CONTEXTS, Which.ALL)
    for one in sorted(found, key=lambda version: version.offset):
        yield SchemaRecord(one.subject, one.version, one.schema_id, one.schema, one.deleted)


def dumped(lines: Iterable[str], name: str) -> Iterator[Record]:
    """Yields the records of a dump: as `dump` writes it, or of any tool that prints a record's `key` and `value` in a
    line. Raises `SchemaError`, with the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            key, value = given["key"], given["value"]
            yield decode(_bytes(key), None if value is None else _bytes(value))
        except (ValueError, KeyError, TypeError, SchemaError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SchemaError(f"{name}, line {number}: no record of a schemas topic: {why}") from error


def _bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part).encode()


def of_registry(url: str) -> Iterator[Record]:
    """Yields the records of a registry that runs at `url`: versions by id, deleted ones too, what is set for all and
    for each subject. Raises `SchemaError` if it does not answer."""
    base = url.rstrip("/")
    level = _get(f"{base}/config") or {}
    yield ConfigRecord(None, _config(level))
    rows: list[SchemaRecord] = []
    subjects = _get(f"{base}/subjects?deleted=true&subjectPrefix=:*:") or []
    for subject in subjects:
        at = f"{base}/subjects/{quote(subject, safe='')}/versions"
        live = set(_get(at) or ())
        for number in _get(f"{at}?deleted=true") or ():
            found = _get(f"{at}/{number}?deleted=true")
            if found is not None:
                rows.append(SchemaRecord(subject, number, found["id"], _schema(found), number not in live))
    yield from sorted(rows, key=lambda row: row.schema_id)
    for subject in subjects:
        own = _get(f"{base}/config/{quote(subject, safe='')}")
        if own is not None:
            yield ConfigRecord(subject, _config(own))
        mode = _get(f"{base}/mode/{quote(subject, safe='')}")
        if mode is not None:
            yield ModeRecord(subject, Mode(mode["mode"]))


def _config(given: dict[str, Any]) -> Config:
    known = {key: value for key, value in given.items() if value is not None}
    return Config.from_json(known)


def _schema(given: dict[str, Any]) -> SchemaText:
    metadata, rule_set = given.get("metadata"), given.get("ruleSet")
    return SchemaText(
        given["schema"],
        given.get("schemaType") or "AVRO",
        tuple(map(Reference.from_json, given.get("references") or ())),
        None if metadata is None else Metadata.from_json(metadata),
        None if rule_set is None else RuleSet.from_json(rule_set),
    )


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
    except (URLError, OSError, ValueError) as error:
        raise SchemaError(f"{url}: no registry answers: {getattr(error, 'reason', error)}") from error


def import_records(topic: SchemaTopic, records: Iterable[Record]) -> tuple[int, int]:
    """Appends records as they are; those that are there already are passed over. Returns how many were appended, and
    how many were there. Raises `SchemaError` if an id or a version is that of another schema here; what was appended
    before stays."""
    appended = there = 0
    source = iter(records)
    while part := list(islice(source, AT_ONCE)):
        missing: list[Record] = []

        def decide(store: SchemaStore) -> Sequence[Record]:
            missing[:] = [record for record in part if not _is_there(store, record)]  # noqa: B023
            return missing  # noqa: B023

        topic.write(decide)
        appended += len(missing)
        there += len(part) - len(missing)
    return appended, there


def _is_there(store: SchemaStore, record: Record) -> bool:
    match record:
        case SchemaRecord(subject, number, schema_id, schema, deleted):
            other = store.schema(schema_id, record.context)
            if other is not None and other.schema.text != schema.text:
                raise SchemaError(
                    f"{subject}, version {number}: its id {schema_id} is that of another schema here, version "
                    f"{other.version} of {other.subject}; import into a topic without it"
                )
            found = store.version(subject, number, Which.ALL)
            if found is not None and found.schema_id != schema_id:
                raise SchemaError(f"{subject}, version {number}: it is schema {found.schema_id} here, not {schema_id}")
            return found is not None and (found.schema, found.deleted) == (schema, deleted)
        case ConfigRecord(scope, config):
            return store.config(scope) == config
        case ModeRecord(scope, mode):
            return store.mode(scope) == mode
    return False
