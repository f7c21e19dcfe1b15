"""The records of the topic of schemas, as Confluent's registry has them: keys and values are JSON.

Keys are compared byte for byte by compaction, so they are written as Jackson does: the fields in this order, text
beyond ASCII as it is. What is read may have other fields and another order: Redpanda adds `seq` and `node`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.core.errors import SchemaError

from ..java_json import dumps
from .config import Config, Mode
from .schema import SchemaText
from .subjects import context_of

KeyValue = tuple[bytes, bytes | None]
"""A record's key and value."""
_NO_CONTENT: Final = frozenset({"NOOP", "ASSOC"})


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A version of a subject. A `deleted` one is withdrawn, and its id still resolves."""

    subject: str
    version: int
    schema_id: int
    schema: SchemaText
    deleted: bool = False

    @property
    def context(self) -> str:
        return context_of(self.subject)


@dataclass(frozen=True, slots=True)
class SchemaTombstone:
    """Removes a version of a subject for good."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectDeletion:
    """Withdraws the versions 1 to `version` that stand before it in the topic."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectClearing:
    """Forgets the withdrawn versions of a subject, or of all subjects of a context, that stand before it."""

    subject: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """`subject` None: of the default context, and of subjects that lack a value. `config` None: it is removed."""

    subject: str | None
    config: Config | None


@dataclass(frozen=True, slots=True)
class ModeRecord:
    subject: str | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class ContextRecord:
    context: str
    exists: bool = True


@dataclass(frozen=True, slots=True)
class Noop:
    """Nothing; a marker of a position in the topic."""


Record = (
    SchemaRecord
    | SchemaTombstone
    | SubjectDeletion
    | SubjectClearing
    | ConfigRecord
    | ModeRecord
    | ContextRecord
    | Noop
)


def encode(record: Record) -> KeyValue:
    """Returns key and value. Raises `SchemaError` for text that is no UTF-8."""
    key, value = _key(record), _value(record)
    try:
        return dumps(key).encode(), None if value is None else dumps(value).encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"text that cannot be UTF-8: {error.reason}") from error


def _key(record: Record) -> dict[str, Any]:
    match record:
        case SchemaRecord(subject, version) | SchemaTombstone(subject, version):
            return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        case SubjectDeletion(subject):
            return {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
        case SubjectClearing(subject):
            return {"keytype": "CLEAR_SUBJECT", "subject": subject, "magic": 0}
        case ConfigRecord(scope) | ModeRecord(scope):
            kind = {"keytype": "CONFIG" if isinstance(record, ConfigRecord) else "MODE"}
            return {**kind, **({} if scope is None else {"subject": scope}), "magic": 0}
        case ContextRecord(context):
            return {"keytype": "CONTEXT", "tenant": "default", "context": context}
    return {"keytype": "NOOP", "magic": 0}


def _value(record: Record) -> dict[str, Any] | None:
    match record:
        case SchemaRecord(subject, version, schema_id, schema, deleted):
            return {"subject": subject, "version": version, "id": schema_id, **schema.to_json(), "deleted": deleted}
        case SubjectDeletion(subject, version):
            return {"subject": subject, "version": version}
        case SubjectClearing(subject):
            return {"subject": subject}
        case ConfigRecord(scope, Config() as config):
            return {**({} if scope is None else {"subject": scope}), **config.to_json()}
        case ModeRecord(scope, Mode() as mode):
            return {**({} if scope is None else {"subject": scope}), "mode": mode}
        case ContextRecord(context, True):
            return {"tenant": "default", "context": context}
    return None


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """What is known of a record that cannot be read; as a text: what is behind its offset."""

    subject: str | None = None
    version: int | None = None
    schema_id: int | None = None

    def __str__(self) -> str:
        parts = [("subject", self.subject), ("version", self.version), ("id", self.schema_id)]
        named = ", ".join(f"{name} {value!r:.200}" for name, value in parts if value is not None)
        return f" ({named})" if named else ""


class StrayRecordError(SchemaError):
    """A record that no registry writes, or a damaged one; `place` is what is known of it."""

    def __init__(self, reason: str, place: RecordPlace = RecordPlace()) -> None:
        super().__init__(reason)
        self.place = place


def decode(key: bytes | None, value: bytes | None) -> Record:
    """Returns a record of the topic. Raises `StrayRecordError`, in one line."""
    given = _object(key, "key", RecordPlace())
    place = RecordPlace(_known(given.get("subject"), str), _known(given.get("version"), int))
    try:
        return _decode(given, value, place)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise StrayRecordError(why, place) from error


def _decode(key: Mapping[str, Any], value: bytes | None, place: RecordPlace) -> Record:
    kind = key["keytype"]
    if kind in _NO_CONTENT:
        return Noop()
    if kind == "SCHEMA":
        subject, version = _subject(key), _number(key, "version", 1)
        return SchemaTombstone(subject, version) if value is None else _schema(subject, version, value, place)
    if kind == "CONTEXT":
        return ContextRecord(_subject(key, "context"), value is not None)
    if kind in ("CONFIG", "MODE"):
        scope = None if key.get("subject") is None else _subject(key)
        given = None if value is None else _object(value, "value", place)
        if kind == "CONFIG":
            return ConfigRecord(scope, None if given is None else Config.from_json(given))
        return ModeRecord(scope, None if given is None else Mode(given["mode"]))
    if kind not in ("DELETE_SUBJECT", "CLEAR_SUBJECT"):
        raise ValueError(f"keytype {kind!r:.100} is not known")
    subject = _subject(key)
    if value is None:
        return Noop()
    if kind == "CLEAR_SUBJECT":
        return SubjectClearing(subject)
    return SubjectDeletion(subject, _number(_object(value, "value", place), "version", 0))


def _schema(subject: str, version: int, value: bytes, place: RecordPlace) -> SchemaRecord:
    given = _object(value, "value", place)
    place = RecordPlace(subject, version, _known(given.get("id"), int))
    try:
        if (given["subject"], given["version"]) != (subject, version):
            raise ValueError(f"the value is of {given['subject']!r:.100}, version {given['version']!r:.20}")
        schema = SchemaText.from_json(given)
        return SchemaRecord(subject, version, _number(given, "id", 0), schema, given.get("deleted") is True)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise StrayRecordError(why, place) from error


def _object(data: bytes | None, what: str, place: RecordPlace) -> dict[str, Any]:
    try:
        found = json.loads(data or b"null")
    except (ValueError, RecursionError) as error:
        raise StrayRecordError(f"the {what} is not JSON: {error}", place) from error
    if not isinstance(found, dict):
        raise StrayRecordError(f"the {what} is {data!r:.100}, not a JSON object", place)
    return found


def _known(value: Any, kind: type[Any]) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _subject(given: Mapping[str, Any], name: str = "subject") -> str:
    if not isinstance(given[name], str):
        raise ValueError(f"{name} is {given[name]!r:.100}, not text")
    return str(given[name])


def _number(given: Mapping[str, Any], name: str, least: int) -> int:
    """Returns an id or a version. Raises `ValueError` for a number that no record and no registry can have: an id would
    be taken for the last one."""
    number = given[name]
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**31:
        raise ValueError(f"{name} is {number!r:.100}, not a number from {least} to 2^31 - 1")
    return number
