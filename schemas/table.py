"""The schemas of a schemas topic, as a reader needs them: by id, by MD5, by fingerprint, and the versions of a subject.

A schema is parsed when it is first needed. One that cannot be read (others write to the topic too: another format, a
reference that is missing, no Avro) is an error only for who needs it. Not thread-safe; pickled as its entries.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from .fingerprint import md5, registered
from .log import SchemaEntry


class SchemaTable:
    def __init__(self, entries: Iterable[SchemaEntry] = ()) -> None:
        self._entries: list[SchemaEntry] = []
        self._by_id: dict[int, SchemaEntry] = {}
        self._by_md5: dict[bytes, SchemaEntry] = {}
        self._by_fingerprint: dict[bytes, RegisteredSchema] = {}
        self._fingerprinted = 0
        self._versions: dict[str, dict[int, SchemaEntry]] = {}
        self._parsed: dict[int, RegisteredSchema] = {}
        for entry in entries:
            self.add(entry)

    def __reduce__(self) -> tuple[type[SchemaTable], tuple[list[SchemaEntry]]]:
        return SchemaTable, (self._entries,)

    def add(self, entry: SchemaEntry) -> None:
        """Adds the next entry of the topic. The first one with an id has it; the last one of a version counts."""
        self._entries.append(entry)
        self._by_id.setdefault(entry.schema_id, entry)
        self._by_md5.setdefault(md5(entry.text), entry)
        self._versions.setdefault(entry.subject, {})[entry.version] = entry

    def __contains__(self, schema_id: int) -> bool:
        return schema_id in self._by_id

    def entry(self, subject: str, version: int) -> SchemaEntry | None:
        return self._versions.get(subject, {}).get(version)

    def entries(self) -> list[SchemaEntry]:
        """Returns the last entry of each version of each subject, deleted ones too."""
        return [entry for versions in self._versions.values() for entry in versions.values()]

    def newest_first(self, subject: str) -> list[SchemaEntry]:
        """Returns a subject's versions that are not deleted."""
        found = sorted(self._versions.get(subject, {}).items(), reverse=True)
        return [entry for _, entry in found if not entry.deleted]

    def find(self, key: SchemaKey) -> RegisteredSchema | None:
        """Returns the schema with a key, also of a deleted version; None if there is none. Raises `SchemaError`, with
        subject and id, if it cannot be read.
        """
        if key.fingerprint is not None:
            return self._fingerprint(key.fingerprint)
        entry = self._by_md5.get(key.md5) if key.md5 is not None else self._by_id.get(key.schema_id or 0)
        return None if entry is None else self.read(entry)

    def get(self, key: SchemaKey) -> str | None:
        """Returns a schema's text, its references written out; None and errors as `find`."""
        found = self.find(key)
        return None if found is None else found.text

    def read(self, entry: SchemaEntry) -> RegisteredSchema:
        """Returns the schema of an entry. Raises `SchemaError` as `find` does."""
        if self._by_id.get(entry.schema_id) is not entry:
            return self._parse(entry)
        if entry.schema_id not in self._parsed:
            self._parsed[entry.schema_id] = self._parse(entry)
        return self._parsed[entry.schema_id]

    def _parse(self, entry: SchemaEntry) -> RegisteredSchema:
        try:
            return registered(entry.schema_id, entry.text, self._references(entry, ()))
        except SchemaError as error:
            where = f"schema {entry.schema_id} ({entry.subject}, version {entry.version})"
            raise SchemaError(f"{where} cannot be read: {error}") from error

    def _references(self, entry: SchemaEntry, inside: tuple[SchemaEntry, ...]) -> list[str]:
        """Returns the texts that an entry refers to, those that they refer to first."""
        if entry.schema_type != "AVRO":
            raise SchemaError(f"it is {entry.schema_type}, not Avro")
        if entry in inside:
            raise SchemaError(f"its references contain {entry.subject}, version {entry.version}, itself")
        texts: dict[str, None] = {}
        for name, subject, version in entry.references:
            other = self.entry(subject, version)
            if other is None:
                raise SchemaError(f"its reference {name} ({subject}, version {version}) is not in the schemas topic")
            texts |= dict.fromkeys([*self._references(other, (*inside, entry)), other.text])
        return list(texts)

    def _fingerprint(self, value: bytes) -> RegisteredSchema | None:
        for entry in self._entries[self._fingerprinted :]:
            try:
                schema = self.read(entry)
            except SchemaError:  # no record can name it by a fingerprint that nobody knows
                continue
            self._by_fingerprint.setdefault(schema.fingerprint, schema)
        self._fingerprinted = len(self._entries)
        return self._by_fingerprint.get(value)


def describe(key: SchemaKey) -> str:
    """Returns `id 7`, `MD5 …` or `fingerprint …`."""
    if key.schema_id is not None:
        return f"id {key.schema_id}"
    if key.md5 is not None:
        return f"MD5 {key.md5.hex()}"
    return f"fingerprint {(key.fingerprint or b'').hex()}"
