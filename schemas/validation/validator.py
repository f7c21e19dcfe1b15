"""The topic validator `schemas`: refuses records whose keys or values lack a schema, as the topic's configuration asks.

- A null passes. Anything else must name a schema (`schema_id`) that is registered, and not withdrawn, under the subject
  of the topic's strategy; with `full` the data must also be one value of that schema.
- The table of schemas follows the topic `_schemas`. A schema that it does not have is looked for at the topic's end
  before it is refused: what was registered before the record was sent is accepted.
- While that topic cannot be read, what the table has is accepted, and the rest refused with NOT_ENOUGH_REPLICAS: every
  producer sends the batch again. Nothing is accepted unchecked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.core.config.sections.topic import SchemaRule, TopicConfig
from klamm.core.errors import BrokerError, ErrorCode, KlammError, SchemaError
from klamm.core.extras import missing_package
from klamm.core.log.errors import InvalidRecordError, RecordError
from klamm.core.records.record import Record

from .. import message_indexes
from ..names import PROTOBUF
from ..store.subjects import context_of
from .config import SchemaValidatorConfig
from .payload import PayloadFormat, payload_format
from .schema_id import KEY_HEADER, VALUE_HEADER, SchemaId, describe, guid, header_of, number, schema_id

if TYPE_CHECKING:
    from klamm.core.interfaces.service import BrokerContext

    from ..service.topic import SchemaTopic
    from ..store.schema_store import SchemaStore, SchemaVersion

WAIT_S: Final = 2.0
"""How long a batch waits for the end of the topic of schemas."""
PAUSE_S: Final = 0.5
"""After a read that failed, batches are refused for so long without another one."""
MAX_KNOWN: Final = 10_000
"""The most schemas that are remembered for a topic's keys or values; then they are looked up again."""
_CONFIGS: Final = {
    "confluent.key.schema.validation",
    "confluent.key.subject.name.strategy",
    "confluent.value.schema.validation",
    "confluent.value.subject.name.strategy",
    "klamm.key.schema.validation",
    "klamm.value.schema.validation",
}
_SHOWN: Final = 3
_NO_MESSAGE: Final[tuple[int, ...]] = ()


class _MissingError(SchemaError):
    """The table does not have it; the topic of schemas may."""


class SchemaValidator:
    """Implements `klamm.core.interfaces.validator.StartedTopicValidator` and `QuickTopicValidator`."""

    def __init__(self, config: SchemaValidatorConfig) -> None:
        self._schemas = config.kafkastore_topic
        self._context: BrokerContext | None = None
        self._topics: dict[str, tuple[_Side, ...]] = {}
        self._starting = threading.Lock()
        self._table: SchemaTopic | None = None
        self._failed_at = -PAUSE_S

    def start(self, context: BrokerContext) -> None:
        self._context = context

    def applies_to(self, topic: str, config: Mapping[str, str]) -> bool:
        asked = TopicConfig.from_strings({name: config[name] for name in _CONFIGS & config.keys()})
        wanted = [
            (KEY_HEADER, "key", asked.key_schema_rule, attrgetter("key")),
            (VALUE_HEADER, "value", asked.value_schema_rule, attrgetter("value")),
        ]
        known = {side.what: side for side in self._topics.get(topic, ())}
        sides = tuple(
            known[what] if what in known and known[what].rule == rule else _Side(topic, header, what, rule, part)
            for header, what, rule, part in wanted
            if rule is not None
        )
        if not sides or topic == self._schemas:
            self._topics.pop(topic, None)
            return False
        self._topics[topic] = sides
        return True

    def validate(self, topic: str, partition: int, records: Sequence[Record]) -> None:  # noqa: ARG002
        """Raises `InvalidRecordError`, which names the records without a schema, and `BrokerError`
        (NOT_ENOUGH_REPLICAS) if that cannot be known now."""
        sides = self._topics.get(topic, ())
        if not sides:
            return
        table = self._following()
        errors, missing = _errors(sides, records, table)
        unread = self._read_on(table) if missing else None
        if missing:
            errors, missing = _errors(sides, records, table)
        if unread is not None and 0 < missing == len(errors):
            raise BrokerError(ErrorCode.not_enough_replicas, f"the topic of schemas cannot be read: {unread}")
        if errors:
            shown = "; ".join(f"record {error.place}: {error.message}" for error in errors[:_SHOWN])
            more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
            raise InvalidRecordError(f"{len(errors)} of {len(records)} records refused: {shown}{more}", errors)

    def passes(self, topic: str, records: Sequence[Record]) -> bool:
        """Returns True if the topic requires an id alone, and the table has not changed since the ids of all records
        were accepted."""
        sides, table = self._topics.get(topic, ()), self._table
        if table is None:
            return False
        for side in sides:
            if side.place != table.place:
                return False
            known, part = side.known, side.part
            for record in records:
                payload = part(record)
                if payload is not None and (record.headers or known.get(payload[:5], table) is not None):
                    return False
        return True

    def _following(self) -> SchemaTopic:
        with self._starting:
            if self._table is None:
                from ..service.topic import shared_topic  # a broker whose topics ask for no schema imports no client

                assert self._context is not None, "start first"
                self._table = shared_topic(self._context, self._schemas)
                self._table.start()
            return self._table

    def _read_on(self, table: SchemaTopic) -> str | None:
        """Reads the topic of schemas to its end; returns why that failed, None if it did not."""
        if time.monotonic() - self._failed_at < PAUSE_S:
            return table.problem() or "it was not read in time"
        try:
            table.catch_up(WAIT_S)
        except KlammError as error:
            self._failed_at = time.monotonic()
            return str(error)
        return None


def _errors(sides: Sequence[_Side], records: Sequence[Record], table: SchemaTopic) -> tuple[list[RecordError], int]:
    """Returns the faults of the records, and how many of them are that the table has no such schema."""
    found: list[RecordError] = []
    missing = 0
    for side in sides:
        if side.place != table.place or len(side.known) > MAX_KNOWN:
            side.known, side.place = {}, table.place
        known, part, header, check = side.known, side.part, side.header, side.check
        for record in records:
            payload = part(record)
            if payload is None or (not record.headers and known.get(payload[:5], check) is None):
                continue
            try:
                check(payload, header_of(record.headers, header), table)
            except SchemaError as error:
                missing += isinstance(error, _MissingError)
                found.append(RecordError(record.offset, f"{side.what}: {error}"))
    found.sort()
    return found, missing


@dataclass(eq=False)
class _Side:
    """The keys, or the values, of a topic."""

    topic: str
    header: str
    what: str
    rule: SchemaRule
    part: Callable[[Record], bytes | None]
    place: tuple[int, int] | None = None
    """What the table had read when `known` was begun."""
    known: dict[bytes, _Schema | None] = field(default_factory=dict)
    """By magic byte and id: None if no more is to be checked."""

    def check(self, payload: bytes, header: bytes | None, table: SchemaTopic) -> None:
        """Raises `SchemaError` with what is wrong."""
        found = schema_id(payload, header)
        known = self.known
        if found.name not in known:
            with table.store() as store:
                schema = self._look_up(found.name, store)
            known[found.name] = None if schema.references is None else schema
        left = known[found.name]
        if left is not None:
            left.check(found, payload, table)

    def _look_up(self, name: bytes, store: SchemaStore) -> _Schema:
        by_topic = self.rule.strategy == "TopicNameStrategy"
        subject = store.alias_of(f"{self.topic}-{self.what}") if by_topic else ""
        versions = _versions(store, name, context_of(subject))
        if not versions:
            raise _MissingError(f"{describe(name)} is not registered")
        if by_topic:
            _check_subject(versions, name, subject)
        version = min(versions, key=lambda one: (one.deleted, one.offset))
        if by_topic and not self.rule.full:
            return _Schema(version)
        references = {
            one.name: other.schema.text for one, other in store.resolve(version.subject, version.schema.references)
        }
        naming = None if by_topic else self._naming
        return _Schema(version, references, naming, self.rule.full)

    def _naming(self, record_name: str) -> str:
        """Returns the subject of a record."""
        return record_name if self.rule.strategy == "RecordNameStrategy" else f"{self.topic}-{record_name}"


@dataclass(eq=False)
class _Schema:
    """What is left to check of the payloads of one schema. The text is read for the first payload."""

    version: SchemaVersion
    references: dict[str, str] | None = None
    """None if nothing is left to check."""
    naming: Callable[[str], str] | None = None
    full: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _format: PayloadFormat | SchemaError | None = None
    _named: set[tuple[int, ...]] = field(default_factory=set)
    """The messages whose subject has the schema."""

    def check(self, found: SchemaId, payload: bytes, table: SchemaTopic) -> None:
        start, message = found.at if found.inside else 0, _NO_MESSAGE
        if self.version.schema.schema_type == PROTOBUF:
            stream = BytesIO(found.source)
            stream.seek(found.at)
            try:
                message = message_indexes.decode(stream)
            except (EOFError, ValueError) as error:
                raise SchemaError(str(error)) from error
            start = stream.tell() if found.inside else 0
        form = self._form()
        if self.naming is not None and message not in self._named:
            self._check_name(form, message, found.name, table)
        if self.full:
            form.check(payload, start, message)

    def _form(self) -> PayloadFormat:
        with self._lock:
            if self._format is None:
                self._format = self._parsed()
            if isinstance(self._format, SchemaError):
                raise self._format
            return self._format

    def _parsed(self) -> PayloadFormat | SchemaError:
        schema = self.version.schema
        where = f"schema {self.version.schema_id} ({self.version.subject}, version {self.version.version})"
        try:
            return payload_format(schema.schema_type, schema.text, self.references or {})
        except SchemaError as error:
            return SchemaError(f"{where}: {error}")
        except ImportError as error:
            line = missing_package(
                f"the broker, to check values of type {schema.schema_type},", error, "klamm[registry]"
            )
            if line is None:
                raise
            return SchemaError(f"{where}: {line}")

    def _check_name(self, form: PayloadFormat, message: tuple[int, ...], name: bytes, table: SchemaTopic) -> None:
        record_name = form.name(message)
        if record_name is None or self.naming is None:
            raise SchemaError(f"{describe(name)} is not a named record, as the subject name strategy requires")
        with table.store() as store:
            subject = store.alias_of(self.naming(record_name))
            _check_subject(_versions(store, name, context_of(subject)), name, subject)
        self._named.add(message)


def _versions(store: SchemaStore, name: bytes, context: str) -> list[SchemaVersion]:
    """Returns the versions, withdrawn ones too, that have the schema in a context."""
    schema = number(name)
    ids = [schema] if schema is not None else [one for where, one in store.by_guid(guid(name)) if where == context]
    return [version for one in ids for version in store.by_id(one, context)]


def _check_subject(versions: Sequence[SchemaVersion], name: bytes, subject: str) -> None:
    """Raises `SchemaError` unless one of these is a live version of the subject."""
    own = [version for version in versions if version.subject == subject]
    if not own:
        others = ", ".join(sorted({version.subject for version in versions})[:_SHOWN])
        raise _MissingError(f"{describe(name)} is not registered under the subject {subject} (but under {others})")
    if all(version.deleted for version in own):
        raise _MissingError(f"{describe(name)} is withdrawn from the subject {subject}")
