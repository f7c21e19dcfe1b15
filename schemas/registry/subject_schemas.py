"""The schemas that the values of a subject may have been written with, by the keys of the envelopes.

They are of one format. A schema is parsed when it is first needed. One that cannot be read (others write to the topic
too: another format, a reference that is missing, no Avro) is an error only for a caller that needs it. Not thread-safe;
pickled with its store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from fastavro.schema import fingerprint as avro_fingerprint

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from ..avro.parsing import parse, rendered
from ..names import AVRO, JSON, PROTOBUF
from ..store.schema import text_md5
from ..store.schema_store import SchemaStore, SchemaVersion, Which
from ..store.subjects import context_of

FORMATS: Final = {AVRO: "Avro", JSON: "JSON Schema", PROTOBUF: "Protobuf"}


class SubjectSchemas:
    """A view of a store, which includes schemas that are registered later. `subject` may be unknown: then the schemas
    of its context are meant. Those of another format than `schema_type` cannot be read."""

    def __init__(self, store: SchemaStore, subject: str = "", schema_type: str = AVRO) -> None:
        self._store = store
        self._subject = subject
        self._type = schema_type
        self._context = context_of(subject)
        self._generation = store.generation
        self._read: dict[int, tuple[SchemaVersion, RegisteredSchema]] = {}
        self._by_crc: dict[bytes, set[int]] = {}
        self._indexed_at: tuple[int, int] | None = None

    def find(self, key: SchemaKey) -> RegisteredSchema | None:
        """Returns the schema with a key, also of a deleted version; None if there is none. Raises `SchemaError`, with
        subject and id, if it cannot be read, or if a fingerprint names several that are read differently.
        """
        if key.fingerprint is not None:
            return self._by_fingerprint(key.fingerprint)
        if key.md5 is not None:
            ids = self._store.by_md5(key.md5, self._context)
            return self._by_id(ids[-1]) if ids else None
        if key.guid is not None:
            return self._by_guid(key.guid)
        return self._by_id(key.schema_id or 0)

    def get(self, key: SchemaKey) -> str | None:
        """Returns a schema's text, its references written out; None and errors as `find`."""
        found = self.find(key)
        return None if found is None else found.text

    def newest_first(self) -> list[SchemaVersion]:
        """Returns the subject's live versions."""
        return self._store.versions(self._subject)[::-1]

    def read(self, version: SchemaVersion) -> RegisteredSchema:
        """Returns the schema of a version. Raises `SchemaError` as `find` does."""
        if self._generation != self._store.generation:
            self._read.clear()
            self._generation = self._store.generation
        known, schema = self._read.get(version.schema_id, (None, None))
        if schema is None or known is not version:
            schema = self._parse(version)
            self._read[version.schema_id] = version, schema
        return schema

    def _by_id(self, schema_id: int) -> RegisteredSchema | None:
        version = self._store.schema(schema_id, self._context)
        return None if version is None else self.read(version)

    def _parse(self, version: SchemaVersion) -> RegisteredSchema:
        try:
            if version.schema.schema_type != self._type:
                raise SchemaError(f"it is {version.schema.schema_type}, not {FORMATS[self._type]}")
            needed = self._store.resolve(version.subject, version.schema.references)
            for reference, other in needed:
                if other.schema.schema_type != self._type:
                    found = other.schema.schema_type
                    raise SchemaError(f"its reference {reference.name} is {found}, not {FORMATS[self._type]}")
            text, guid = version.schema.text, UUID(version.guid).bytes
            if self._type == AVRO:
                texts = dict.fromkeys(other.schema.text for _, other in needed)
                return registered(version.schema_id, text, list(texts), guid)
            named = tuple((reference.name, other.schema.text) for reference, other in needed)
            return RegisteredSchema(version.schema_id, text, text_md5(text), b"", guid, self._type, named)
        except SchemaError as error:
            where = f"schema {version.schema_id} ({version.subject}, version {version.version})"
            raise SchemaError(f"{where} cannot be read: {error}") from error

    def _by_guid(self, guid: bytes) -> RegisteredSchema | None:
        """Returns the schema in the subject's context, else in another, where it may have another id."""
        found = dict(self._store.by_guid(str(UUID(bytes=guid))))
        context = self._context if self._context in found else next(iter(found), None)
        version = None if context is None else self._store.schema(found[context], context)
        return None if version is None else self.read(version)

    def _by_fingerprint(self, value: bytes) -> RegisteredSchema | None:
        """Returns the newest schema of the fingerprint in the subject, else in its context: the canonical form lacks
        `default`, `aliases` and logical types, so there may be several."""
        own = {version.schema_id for version in self._store.versions(self._subject, Which.ALL)}
        found = self._fingerprinted(value, own) or self._fingerprinted(value, self._elsewhere(value))
        if found:
            _refuse_if_read_differently(value, found)
        return found[-1] if found else None

    def _elsewhere(self, value: bytes) -> Iterable[int]:
        """Returns ids of the context that have, or had, the fingerprint; each schema is parsed once."""
        if self._indexed_at != (self._store.generation, self._store.position):
            for schema_id in self._store.ids(self._context):
                self._index(schema_id)
            self._indexed_at = self._store.generation, self._store.position
        return self._by_crc.get(value, ())

    def _index(self, schema_id: int) -> None:
        try:
            schema = self._by_id(schema_id)
        except SchemaError:  # no record can name it by a fingerprint that nobody knows
            return
        if schema is not None:
            self._by_crc.setdefault(schema.fingerprint, set()).add(schema_id)

    def _fingerprinted(self, value: bytes, ids: Iterable[int]) -> list[RegisteredSchema]:
        found = []
        for schema_id in sorted(ids):
            with suppress(SchemaError):
                schema = self._by_id(schema_id)
                if schema is not None and schema.fingerprint == value:
                    found.append(schema)
        return found


def _refuse_if_read_differently(value: bytes, found: list[RegisteredSchema]) -> None:
    forms = {json.dumps(rendered(parse(one.text).root, evolution=False)) for one in found}
    if len(forms) > 1:
        ids = ", ".join(str(one.schema_id) for one in found)
        raise SchemaError(
            f"fingerprint {value.hex()} names the schemas {ids}, which differ in their logical types: values would be "
            "read by another than they were written with; use an envelope with an id"
        )


def registered(schema_id: int, text: str, references: Sequence[str] = (), guid: bytes = b"") -> RegisteredSchema:
    """Returns an Avro schema with its id, GUID and fingerprints: the MD5 of its text, and CRC-64-AVRO of its parsing
    canonical form, 8 bytes, little-endian, as in Avro's single-object encoding. The types of `references` are written
    out in its text. Raises `SchemaError` if a text is not an Avro schema.
    """
    parsed = parse(text, references)
    try:
        fingerprint = bytes.fromhex(avro_fingerprint(parsed.canonical, "CRC-64-AVRO"))
    except UnicodeEncodeError as error:
        raise SchemaError(f"not an Avro schema: a name cannot be UTF-8: {error.reason}") from error
    return RegisteredSchema(schema_id, parsed.text, text_md5(text), fingerprint, guid)


def describe(key: SchemaKey) -> str:
    """Returns `id 7`, `MD5 …`, `GUID …` or `fingerprint …`."""
    if key.schema_id is not None:
        return f"id {key.schema_id}"
    if key.md5 is not None:
        return f"MD5 {key.md5.hex()}"
    if key.guid is not None:
        return f"GUID {UUID(bytes=key.guid)}"
    return f"fingerprint {(key.fingerprint or b'').hex()}"
