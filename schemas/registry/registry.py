"""The registry as clients use it: schemas by the keys of the envelopes, and new ones registered. There are two: the
topic itself (`LogRegistry`), and a registry that is asked by REST (`rest.RestRegistry`).

Ids are immutable: a result is not looked up again. An unknown key is looked up, and is then treated as unknown for
`UNKNOWN_FOR_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey

from ..comparing import OldVersion, Requirement, messages
from ..compatibility import Compatibility, check
from ..formats import AvroText, Text, parsed
from ..names import AVRO
from ..options import RegistryAccess
from ..store.config import Config
from ..store.registration import DEFAULTS, NewVersion, register, with_numbers
from ..store.schema import Reference, SchemaText
from ..store.schema_store import SchemaStore, SchemaVersion
from ..store.subjects import context_of
from .log import SchemaLog, TopicSchemaLog, kept_ids
from .subject_schemas import SubjectSchemas, describe

_log = logging.getLogger(__name__)
UNKNOWN_FOR_S: Final = 5.0
MAX_UNKNOWN: Final = 1000
MAX_RACES: Final = 200
"""Lost races after which a registration fails; each loss is another process's success."""
_Key = tuple[str, SchemaKey]
"""A subject and the key of one of its values."""


class Writers(Protocol):
    """The schemas that a topic's values were written with; pickled for the tasks of a job."""

    def get(self, key: SchemaKey, /) -> str | None:
        """Returns a schema's text, its references written out; None if there is none. Raises `SchemaError` if it cannot
        be read."""
        ...


class SchemaRegistry(ABC):
    """Thread-safe. All schemas are of one format, `schema_type`; one of another cannot be read. All methods raise
    `SchemaError` for what is unknown or refused, and `RegistryUnavailableError` if no registry answers."""

    def __init__(self, schema_type: str = AVRO, clock: Callable[[], float] = time.monotonic) -> None:
        self.schema_type = schema_type
        self._clock = clock
        self._lock = threading.Lock()
        self._schemas: dict[str, SubjectSchemas] = {}
        self._found: dict[_Key, RegisteredSchema] = {}
        self._unknown: dict[_Key, float] = {}

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _fetch(self, key: SchemaKey, subject: str) -> SchemaStore:
        """Returns a table that has the schema of a key, if there is one. Called under the lock."""

    def lookup(self, key: SchemaKey, subject: str = "") -> RegisteredSchema:
        """Returns the schema that a value of the subject names; raises `SchemaError` if none has this key, or if it
        cannot be read.
        """
        found = self.find(key, subject)
        if found is None:
            raise SchemaError(f"unknown schema {describe(key)}")
        return found

    def find(self, key: SchemaKey, subject: str = "") -> RegisteredSchema | None:
        """As `lookup`; returns None if no schema has this key."""
        found = self._found.get((subject, key))
        if found is not None:
            return found
        with self._lock:
            found = self._schemas[subject].find(key) if subject in self._schemas else None
            if found is None and self._unknown.get((subject, key), 0.0) <= self._clock():
                found = self._of(self._fetch(key, subject), subject).find(key)
            if found is None:
                self._remember_unknown((subject, key))
            elif key.fingerprint is None:  # a later version may have the same one
                self._found[subject, key] = found
            return found

    def register(
        self,
        subject: str,
        text: str,
        compatibility: Compatibility | None = None,
        *,
        references: Sequence[Reference] = (),
        normalize: bool = False,
    ) -> RegisteredSchema:
        """Returns the registered schema, new or existing, once it is stored. `compatibility` becomes the subject's
        level with its first version, if it has no configuration; otherwise the registry's level applies. Raises
        `SchemaError` when the text is not a schema, or is not compatible.
        """
        return self._register(subject, self._given(text, references), compatibility, normalize)

    def registered(
        self, subject: str, text: str, *, references: Sequence[Reference] = (), normalize: bool = False
    ) -> RegisteredSchema:
        """Returns the schema if it is a version of the subject; raises `SchemaError` if it is none."""
        return self._registered(subject, self._given(text, references), normalize)

    def _given(self, text: str, references: Sequence[Reference]) -> SchemaText:
        return SchemaText(text, self.schema_type, tuple(references))

    @abstractmethod
    def _register(
        self, subject: str, given: SchemaText, compatibility: Compatibility | None, normalize: bool
    ) -> RegisteredSchema: ...

    @abstractmethod
    def _registered(self, subject: str, given: SchemaText, normalize: bool) -> RegisteredSchema: ...

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version's schema; raises `SchemaError` if there is none."""
        for version in self.newest_first(subject):
            return self.read(version)
        raise SchemaError(f"no schema is registered as {subject}")

    @abstractmethod
    def newest_first(self, subject: str) -> Iterator[SchemaVersion]:
        """Yields the live versions of a subject."""

    def read(self, version: SchemaVersion) -> RegisteredSchema:
        """Returns the schema of a version. Raises `SchemaError`, which names it, if it cannot be read."""
        with self._lock:
            return self._schemas[version.subject].read(version)

    @abstractmethod
    def writers(self, subject: str) -> Writers: ...

    def _of(self, store: SchemaStore, subject: str) -> SubjectSchemas:
        if subject not in self._schemas:
            self._schemas[subject] = SubjectSchemas(store, subject, self.schema_type)
        return self._schemas[subject]

    def _remember_unknown(self, key: _Key) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown.setdefault(key, 0.0)
        if self._unknown[key] <= self._clock():
            self._unknown[key] = self._clock() + UNKNOWN_FOR_S


class LogRegistry(SchemaRegistry):
    """The topic of schemas. `coordination` is called when something is to be registered; it and the log are the
    caller's, `close` closes the log.

    A registration is appended only if the topic still ends where it was read to (compare-and-append); the highest ids
    are kept in the coordination too. The topic may be deleted and created again, or lose its end. A registration and a
    look-up of an unknown key read the topic; when it was created again, all that is known of it is dropped. A process
    that knows all its keys does not notice.
    """

    def __init__(
        self,
        log: SchemaLog,
        coordination: Callable[[], Coordination],
        clock: Callable[[], float] = time.monotonic,
        schema_type: str = AVRO,
    ) -> None:
        super().__init__(schema_type, clock)
        self._log = log
        self._coordination = coordination
        self._generation = 0

    def close(self) -> None:
        self._log.close()

    def _fetch(self, key: SchemaKey, subject: str) -> SchemaStore:  # noqa: ARG002 - all are read
        return self._read()

    def _register(
        self, subject: str, given: SchemaText, compatibility: Compatibility | None, normalize: bool
    ) -> RegisteredSchema:
        with self._lock:
            store = self._read()
            schema, parts = self._canonical(store, subject, given, normalize)
            known = store.find(subject, schema)
            if known is not None:
                return self._of(store, subject).read(known)
            keep = kept_ids(self._coordination())
            for _ in range(MAX_RACES):
                store = self._read()
                for context, last in keep(store.last_ids()).items():
                    store.raise_last_id(context, last)
                made = self._plan(store, subject, schema, parts, compatibility)
                if made.records:
                    if not self._log.append(made.records):
                        continue
                    keep({context_of(subject): made.schema_id})
                stored = self._use(self._log.read() if made.records else store).find(subject, schema)
                if stored is not None and stored.schema_id == made.schema_id:
                    return self._of(store, subject).read(stored)
        raise SchemaError(f"{subject}: {MAX_RACES} other registrations came first; try again")

    def _registered(self, subject: str, given: SchemaText, normalize: bool) -> RegisteredSchema:
        with self._lock:
            store = self._read()
            schema, _ = self._canonical(store, subject, given, normalize)
            known = store.find(subject, schema)
            if known is None:
                raise SchemaError(f"the schema is not registered as {subject}")
            return self._of(store, subject).read(known)

    def subjects(self) -> list[str]:
        with self._lock:
            return self._read().subjects()

    def newest_first(self, subject: str) -> Iterator[SchemaVersion]:
        with self._lock:
            found = self._of(self._read(), subject).newest_first()
        return iter(found)

    def writers(self, subject: str) -> SubjectSchemas:
        with self._lock:
            return SubjectSchemas(self._read(), subject, self.schema_type)

    def _canonical(
        self, store: SchemaStore, subject: str, given: SchemaText, normalize: bool
    ) -> tuple[SchemaText, Text]:
        """Returns a new schema as it is stored, and what it says. Raises `SchemaError` if it is none."""
        given = with_numbers(store, subject, given)
        found = store.resolve(subject, given.references)
        texts = {reference.name: version.schema.text for reference, version in found}
        parts: Text
        if self.schema_type == AVRO:
            parts = AvroText(given.text, tuple(dict.fromkeys(texts.values())), new=True)
        else:
            parts = parsed(self.schema_type, given.text, texts, new=True)
        normalize = normalize or bool(store.config_in_scope(subject, DEFAULTS).normalize)
        return replace(given, text=parts.normalized if normalize else parts.canonical), parts

    def _plan(
        self, store: SchemaStore, subject: str, schema: SchemaText, parts: Text, compatibility: Compatibility | None
    ) -> NewVersion:
        own = Config(compatibility_level=compatibility) if compatibility is not None else None

        def compare(versions: Sequence[SchemaVersion], config: Config) -> None:
            level = config.compatibility_level or Compatibility.BACKWARD
            if compatibility not in (None, level):
                warn_of_level(subject, level, compatibility)
            if isinstance(parts, AvroText):
                asked = versions if level.transitive else versions[-1:]
                old = [(one.version, self._text(store, one)) for one in asked]
                check(subject, parts.resolved, old, level)
            else:
                self._compare(store, subject, parts, versions, level)

        return register(store, subject, schema, compare, config=own, defaults=DEFAULTS)

    def _compare(
        self, store: SchemaStore, subject: str, parts: Text, versions: Sequence[SchemaVersion], level: Compatibility
    ) -> None:
        old = []
        for one in versions:
            found = store.resolve(one.subject, one.schema.references)
            texts = {reference.name: version.schema.text for reference, version in found}
            old.append(OldVersion(one.version, one.schema.schema_type, one.schema.text, texts))
        why = messages(self.schema_type, parts, old, Requirement(level))
        if why:
            raise SchemaError(f"{subject}: not {level} compatible: {why[0]}")

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


def open_registry(
    access: RegistryAccess,
    client: Callable[[], ClusterClient],
    coordination: Callable[[], Coordination],
    *,
    schema_type: str = AVRO,
    timeout_s: float = 30.0,
) -> SchemaRegistry:
    """Returns the registry at `schema.registry.url`, which may take `timeout_s` to answer; without that key the topic
    of schemas, through a client that the registry then owns."""
    if access.schema_registry_url:
        from .rest import RestRegistry  # imports urllib3
        from .rest_client import RestClient

        return RestRegistry(RestClient(access, timeout_s), schema_type)
    return LogRegistry(TopicSchemaLog(client(), access.schemas_topic), coordination, schema_type=schema_type)


def warn_of_level(subject: str, level: str, own: str | None) -> None:
    _log.warning(
        "%s: compatibility is %s in the registry, which counts; the topic's %s is not used", subject, level, own
    )
