"""The registry as a client uses it: schemas by the keys of the envelopes, and new ones registered so that all processes
agree.

Ids are immutable in one topic: a result is not looked up again. An unknown key is looked up in the topic, and is then
treated as unknown for `UNKNOWN_FOR_S`. A registration is appended to the topic only where that ends as it was read
(compare-and-append); the highest ids are kept in the coordination too.

The topic may be deleted and created again, or lose its end. A registration and a look-up of an unknown key read the
topic; when it was created again, all that is known of it is dropped. A process that knows all its keys does not notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from klamm.core.errors import SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from .canonical import canonical_text
from .compatibility import Compatibility, check
from .last_ids import kept_ids
from .log import SchemaLog
from .parsing import check_new
from .store.config import Config
from .store.registration import DEFAULTS, NewVersion, register
from .store.schema import SchemaText
from .store.schema_store import SchemaStore, SchemaVersion
from .store.subjects import context_of
from .subject_schemas import SubjectSchemas, describe

_log = logging.getLogger(__name__)
UNKNOWN_FOR_S: Final = 5.0
MAX_UNKNOWN: Final = 1000
MAX_RACES: Final = 200
"""Lost races after which a registration fails; each loss is another process's success."""
_Key = tuple[str, SchemaKey]
"""A subject and the key of one of its values."""


class SchemaRegistry:
    """Thread-safe. `coordination` is called when something is to be registered; it and the log are the caller's,
    `close` closes the log."""

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
        self._generation = 0
        self._schemas: dict[str, SubjectSchemas] = {}
        self._found: dict[_Key, RegisteredSchema] = {}
        self._unknown: dict[_Key, float] = {}

    def close(self) -> None:
        self._log.close()

    def lookup(self, key: SchemaKey, subject: str = "") -> RegisteredSchema:
        """Returns the schema that a value of the subject names; raises `SchemaError` if none has this key, or if it
        cannot be read.
        """
        found = self._found.get((subject, key))
        if found is not None:
            return found
        with self._lock:
            found = self._schemas[subject].find(key) if subject in self._schemas else None
            if found is None and self._unknown.get((subject, key), 0.0) <= self._clock():
                found = self._of(self._read(), subject).find(key)
            if found is None:
                self._remember_unknown((subject, key))
                raise SchemaError(f"unknown schema {describe(key)}")
            if key.fingerprint is None:  # a later version may have the same one
                self._found[subject, key] = found
            return found

    def register(self, subject: str, text: str, compatibility: Compatibility | None = None) -> RegisteredSchema:
        """Returns the registered schema, new or existing, once it is in the topic. `compatibility` becomes the
        subject's level with its first version, if it has no configuration; else what the registry has counts. Raises
        `SchemaError` when the text is not a schema, or is not compatible.
        """
        check_new(text)
        schema = SchemaText(canonical_text(text))
        with self._lock:
            store = self._read()
            known = store.find(subject, schema)
            if known is not None:
                return self._of(store, subject).read(known)
            keep = kept_ids(self._coordination())
            for _ in range(MAX_RACES):
                store = self._read()
                for context, last in keep(store.last_ids()).items():
                    store.raise_last_id(context, last)
                made = self._plan(store, subject, schema, compatibility)
                if made.records:
                    if not self._log.append(made.records):
                        continue
                    keep({context_of(subject): made.schema_id})
                stored = self._use(self._log.read() if made.records else store).find(subject, schema)
                if stored is not None and stored.schema_id == made.schema_id:
                    return self._of(store, subject).read(stored)
        raise SchemaError(f"{subject}: {MAX_RACES} other registrations came first; try again")

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Returns the live versions of a subject, the oldest first."""
        with self._lock:
            return self._read().versions(subject)

    def subjects(self) -> list[str]:
        with self._lock:
            return self._read().subjects()

    def _plan(
        self, store: SchemaStore, subject: str, schema: SchemaText, compatibility: Compatibility | None
    ) -> NewVersion:
        own = Config(compatibility_level=compatibility) if compatibility is not None else None

        def compare(versions: Sequence[SchemaVersion], config: Config) -> None:
            level = config.compatibility_level or Compatibility.BACKWARD
            if compatibility not in (None, level):
                _log.warning(
                    "%s: compatibility is %s in the registry, which counts; the topic's %s is not used",
                    subject, level, compatibility,
                )  # fmt: skip
            asked = versions if level.transitive else versions[-1:]
            check(subject, schema.text, [(one.version, self._text(store, one)) for one in asked], level)

        return register(store, subject, schema, compare, config=own, defaults=DEFAULTS)

    def _text(self, store: SchemaStore, version: SchemaVersion) -> str | SchemaError:
        try:
            return self._of(store, version.subject).read(version).text
        except SchemaError as error:
            return error

    def _read(self) -> SchemaStore:
        return self._use(self._log.read())

    def _use(self, store: SchemaStore) -> SchemaStore:
        """Forgets what was read from a topic of the same name before."""
        if store.generation != self._generation:
            _log.warning("the schemas topic was created again, or lost its end: it is read again")
            self._generation = store.generation
            self._found.clear()
            self._unknown.clear()
        return store

    def _of(self, store: SchemaStore, subject: str) -> SubjectSchemas:
        if subject not in self._schemas:
            self._schemas[subject] = SubjectSchemas(store, subject)
        return self._schemas[subject]

    def _remember_unknown(self, key: _Key) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown.setdefault(key, 0.0)
        if self._unknown[key] <= self._clock():
            self._unknown[key] = self._clock() + UNKNOWN_FOR_S
