"""The registry: schemas by id, by MD5 and by fingerprint; new ones registered so that all processes agree.

Ids are immutable in one topic: a result is not looked up again. An unknown key is looked up in the topic, then among
the claims (if a process claimed an id and died before it wrote the schema, the finder completes it), and is then
treated as unknown for `UNKNOWN_FOR_S`.

The topic may be deleted and created again, or lose its end. A registration and a look-up of an unknown key read the
topic; when it lacks an entry that it had, all that is known of it is dropped, and what only the claims still have is
written again. A process that knows all its keys does not notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from klamm.core.errors import CoordinationError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from .claims import SchemaIdClaims
from .compatibility import Compatibility, check
from .fingerprint import registered
from .log import SchemaEntry, SchemaLog
from .parsing import check_new
from .table import SchemaTable, describe

_log = logging.getLogger(__name__)
UNKNOWN_FOR_S = 5.0
MAX_UNKNOWN = 1000
MAX_RACES = 200
"""Lost races after which a registration fails; each loss is another process's success."""


class SchemaRegistry:
    """Thread-safe. `coordination` is called when something is to be registered or cannot be found; it and the log are
    the caller's, `close` closes the log."""

    def __init__(
        self,
        log: SchemaLog,
        coordination: Callable[[], Coordination],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        self._read: list[SchemaEntry] = []
        self._unread: set[SchemaEntry] = set()
        self._table = SchemaTable()
        self._found: dict[SchemaKey, RegisteredSchema] = {}
        self._unknown: dict[SchemaKey, float] = {}

    def close(self) -> None:
        self._log.close()

    def lookup(self, key: SchemaKey) -> RegisteredSchema:
        """Returns the schema; raises `SchemaError` if none has this key, or if it cannot be read."""
        found = self._found.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._table.find(key)
            if found is None and self._unknown.get(key, 0.0) <= self._clock():
                self._refresh()
                found = self._table.find(key) or self._complete(key)
            if found is None:
                self._remember_unknown(key)
                raise SchemaError(f"unknown schema {describe(key)}")
            self._found[key] = found
            return found

    def register(
        self, subject: str, text: str, compatibility: Compatibility = Compatibility.BACKWARD
    ) -> RegisteredSchema:
        """Returns the registered schema, new or existing, once it is in the topic. Raises `SchemaError` when the text
        is not a schema, breaks the compatibility rule, or shares its fingerprint with another schema."""
        check_new(text)
        claims = SchemaIdClaims(self._coordination())
        with self._lock:
            for _ in range(MAX_RACES):
                entry = self._claim(claims, subject, text, compatibility)
                if entry is not None:
                    self._write(entry)
                    return self._stored(entry)
        raise SchemaError(f"{subject}: {MAX_RACES} other registrations came first; try again")

    def versions(self, subject: str) -> list[SchemaEntry]:
        """Returns all versions of a subject, the oldest first."""
        claims = SchemaIdClaims(self._coordination())
        return _entries(claims, subject)

    def subjects(self) -> list[str]:
        return SchemaIdClaims(self._coordination()).subjects()

    def _claim(self, claims: SchemaIdClaims, subject: str, text: str, rule: Compatibility) -> SchemaEntry | None:
        """Makes one attempt to claim; returns None if another process was faster."""
        known = claims.id_of(text)
        versions = _entries(claims, subject)
        self._refresh()
        valid = [entry for entry in versions if not self._deleted(entry)]
        for entry in valid:
            if entry.schema_id == known:
                return entry
        if self._restore(claims, subject):
            return None  # read again, with the claims that the coordination had lost
        check(subject, text, [(entry.version, entry.text) for entry in valid], rule)
        version = versions[-1].version + 1 if versions else 1
        schema_id = claims.claim(subject, version, text, known)
        if schema_id is None:
            return None
        first = claims.entry(schema_id)
        return SchemaEntry(subject, version, schema_id, first.text if first else text)

    def _deleted(self, entry: SchemaEntry) -> bool:
        held = self._table.entry(entry.subject, entry.version)
        return held is not None and held.deleted

    def _restore(self, claims: SchemaIdClaims, subject: str) -> bool:
        """Claims the schemas that the topic has and the coordination lacks; returns whether there were any. New ids and
        versions are allocated only above those of the topic."""
        ids, versions = set(claims.ids()), claims.versions(subject)
        lacking = [
            entry
            for entry in self._table.entries()
            if entry.schema_id not in ids or (entry.subject == subject and entry.version not in versions)
        ]
        restored = []
        for entry in sorted(lacking, key=lambda entry: entry.schema_id):
            try:
                text = self._table.read(entry).text
            except SchemaError:
                restored.append(claims.restore(entry, readable=False))
            else:
                restored.append(claims.restore(replace(entry, text=text), readable=True))
        return any(restored)

    def _write(self, entry: SchemaEntry) -> None:
        """Writes the schema to the topic unless it is there; a second copy would be harmless. The topic is always read
        before: it may have lost the schema since."""
        self._refresh()
        if self._table.entry(entry.subject, entry.version) is None:
            self._log.append(entry)
            self._unread.add(entry)
            self._table.add(entry)

    def _stored(self, entry: SchemaEntry) -> RegisteredSchema:
        """Returns the schema of an entry that is in the topic. Raises `SchemaError` if the topic, made with another
        coordination, has another one in its place: values written under this id would be read by the wrong schema.
        """
        found = self._table.find(SchemaKey(schema_id=entry.schema_id))
        if found is not None and found.fingerprint == registered(entry.schema_id, entry.text).fingerprint:
            return found
        if found is not None:
            problem = f"schema {entry.schema_id} is another one in the schemas topic"
        else:
            held = self._table.entry(entry.subject, entry.version)
            other = f"whose version {entry.version} is schema {held.schema_id}" if held else "which has no such version"
            problem = f"schema {entry.schema_id} is not in the schemas topic, {other}"
        raise SchemaError(
            f"{entry.subject}: {problem}; the topic and the coordination are not of one cluster's history"
        )

    def _complete(self, key: SchemaKey) -> RegisteredSchema | None:
        """Writes schemas that were claimed and never written; then looks the key up again."""
        try:
            claims = SchemaIdClaims(self._coordination())
            for schema_id in claims.ids():
                entry = None if schema_id in self._table else claims.entry(schema_id)
                if entry is not None:
                    self._write(entry)
        except CoordinationError:  # a reader without a coordination has only the topic
            return None
        return self._table.find(key)

    def _refresh(self) -> None:
        entries = self._log.read()
        known, self._read = self._read, entries
        new = entries[len(known) :]
        if entries[: len(known)] != known or not self._unread <= set(new):
            _log.warning("the schemas topic lacks entries that it had (was it created again?): it is read again")
            self._forget()
            new = entries
        self._unread.clear()
        for entry in new:
            self._table.add(entry)

    def _forget(self) -> None:
        """Forgets everything known about the topic."""
        self._table = SchemaTable()
        self._found.clear()
        self._unknown.clear()

    def _remember_unknown(self, key: SchemaKey) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown.setdefault(key, 0.0)
        if self._unknown[key] <= self._clock():
            self._unknown[key] = self._clock() + UNKNOWN_FOR_S


def _entries(claims: SchemaIdClaims, subject: str) -> list[SchemaEntry]:
    """Returns a subject's versions with the text of their ids."""
    found = []
    for version, schema_id in claims.versions(subject).items():
        first = claims.entry(schema_id)
        if first is None:
            raise SchemaError(
                f"{subject}: version {version} names schema {schema_id}, which is not in the coordination"
            )
        found.append(SchemaEntry(subject, version, schema_id, first.text))
    return found
