"""The topic of schemas as a table: records in, answers out.

`apply` takes the records in the order of the topic; one that was applied before is passed over. What the table holds
depends on the last record of each key and on the order of these, so compaction changes no answer but `last_id`, which
`raise_last_id` keeps from falling. A record that cannot be taken is stray, and does not stop the others.

- A version is live, deleted (withdrawn: not the newest, not compared; its id resolves), or forgotten.
- An id belongs to one text in its context. A record that gives it to another one is stray: the first keeps it.
- A `DELETE_SUBJECT` concerns the versions before it in the topic; a record after it registers a version again.

Not thread-safe. Answers are immutable objects and new lists.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

from klamm.core.errors import SchemaError

from .config import Config, Mode
from .records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    RecordPlace,
    SchemaRecord,
    SchemaTombstone,
    StrayRecordError,
    SubjectClearing,
    SubjectDeletion,
    decode,
)
from .schema import Reference, SchemaText, text_md5
from .subjects import ALL_CONTEXTS, DEFAULT_CONTEXT, GLOBAL, GLOBAL_CONTEXT, beside, context_of, in_scope, qualified
from .subjects import split as split_subject

_log = logging.getLogger(__name__)
MAX_STRAY: Final = 1000
"""The number of stray records that are remembered, the last ones; all are counted."""
MAX_DEPTH: Final = 64
"""References of references."""
MAX_RESOLVED: Final = 16 * 1024 * 1024
"""Characters of a schema with all that it refers to."""


class Which(Enum):
    """Which versions an answer has."""

    LIVE = "live"
    ALL = "all"
    DELETED = "deleted"

    def takes(self, version: SchemaVersion) -> bool:
        return self is Which.ALL or version.deleted == (self is Which.DELETED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion(SchemaRecord):
    """A record of the topic with its `offset` and `timestamp_ms`; `guid` is the schema's."""

    guid: str
    offset: int
    timestamp_ms: int


_Key = tuple[str, int]
"""A subject and a version."""
K = TypeVar("K")
V = TypeVar("V")


class _Context:
    """The ids of a context."""

    def __init__(self) -> None:
        self.versions: dict[int, dict[_Key, SchemaVersion]] = {}
        self.by_guid: dict[str, set[int]] = {}
        self.by_md5: dict[bytes, set[int]] = {}
        self.last_id = 0

    def add(self, version: SchemaVersion) -> None:
        self.versions.setdefault(version.schema_id, {})[version.subject, version.version] = version
        self.by_guid.setdefault(version.guid, set()).add(version.schema_id)
        self.by_md5.setdefault(text_md5(version.schema.text), set()).add(version.schema_id)

    def remove(self, version: SchemaVersion) -> None:
        left = self.versions[version.schema_id]
        del left[version.subject, version.version]
        if not left:
            del self.versions[version.schema_id]
            _discard(self.by_md5, text_md5(version.schema.text), version.schema_id)
        if all(other.guid != version.guid for other in left.values()):
            _discard(self.by_guid, version.guid, version.schema_id)


class SchemaStore:
    def __init__(self) -> None:
        self.generation = 0
        """Grows when the table is cleared: what was read from it before may be of another topic."""
        self._empty()

    def _empty(self) -> None:
        self.position = 0
        """The offset after the last record that was applied."""
        self.stray_count = 0
        self._stray: deque[str] = deque(maxlen=MAX_STRAY)
        self._subjects: dict[str, dict[int, SchemaVersion]] = {}
        self._sorted: list[str] | None = None
        self._contexts: dict[str, _Context] = {}
        self._declared: set[str] = set()
        self._referrers: dict[_Key, set[_Key]] = {}
        self._configs: dict[str | None, Config] = {}
        self._modes: dict[str | None, Mode] = {}

    def clear(self) -> None:
        """Forgets everything: the topic is read again from its beginning."""
        if self.position:
            self.generation += 1
        self._empty()

    def apply(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record of the topic; none that stands before `position`."""
        if offset < self.position:
            return
        try:
            self._take(decode(key, value), offset, timestamp_ms)
        except StrayRecordError as error:
            self._report(offset, str(error), error.place)
        self.position = offset + 1

    def _report(self, offset: int, reason: str, place: RecordPlace) -> None:
        self.stray_count += 1
        stray = f"offset {offset}{place}: {reason}"
        self._stray.append(stray)
        _log.warning("the topic of schemas has a record that is passed over: %s", stray)

    def _take(self, record: Record, offset: int, timestamp_ms: int) -> None:
        match record:
            case SchemaRecord():
                self._register(record, offset, timestamp_ms)
            case SchemaTombstone(subject, number):
                self._remove(subject, number)
            case SubjectDeletion(subject, last):
                for version in self.versions(subject):
                    if version.version <= last:
                        self._put(replace(version, deleted=True))
            case SubjectClearing(scope):
                for version in [one for one in self._all() if one.deleted and in_scope(scope, one.subject)]:
                    self._remove(version.subject, version.version)
            case ConfigRecord(scope, config):
                _set(self._configs, scope, config)
            case ModeRecord(scope, mode):
                _set(self._modes, scope, mode)
            case ContextRecord(context, exists):
                (self._declared.add if exists else self._declared.discard)(context)

    def _register(self, record: SchemaRecord, offset: int, timestamp_ms: int) -> None:
        context = self._context(record.subject)
        context.last_id = max(context.last_id, record.schema_id)
        other = next(iter(context.versions.get(record.schema_id, {}).values()), None)
        if other is not None and other.schema.text != record.schema.text:
            place = RecordPlace(record.subject, record.version, record.schema_id)
            raise StrayRecordError(f"its id is that of another text, version {other.version} of {other.subject}", place)
        self._put(
            SchemaVersion(
                record.subject, record.version, record.schema_id, record.schema, record.deleted,
                guid=record.schema.guid(), offset=offset, timestamp_ms=timestamp_ms,
            )
        )  # fmt: skip

    def _context(self, subject: str) -> _Context:
        return self._contexts.setdefault(context_of(subject), _Context())

    def _ids(self, context: str) -> _Context:
        """Returns the ids of a context that may be unknown."""
        return self._contexts.get(context) or _Context()

    def _put(self, version: SchemaVersion) -> None:
        self._remove(version.subject, version.version)
        if version.subject not in self._subjects:
            self._subjects[version.subject] = {}
            self._sorted = None
        self._subjects[version.subject][version.version] = version
        self._context(version.subject).add(version)
        for target in _targets(version):
            self._referrers.setdefault(target, set()).add((version.subject, version.version))

    def _remove(self, subject: str, number: int) -> None:
        versions = self._subjects.get(subject, {})
        version = versions.pop(number, None)
        if version is None:
            return
        if not versions:
            del self._subjects[subject]
            self._sorted = None
        self._context(subject).remove(version)
        for target in _targets(version):
            _discard(self._referrers, target, (subject, number))

    def _all(self) -> Iterator[SchemaVersion]:
        return (version for versions in self._subjects.values() for version in versions.values())

    # Stray records

    def stray(self) -> list[str]:
        """Returns a line on each of the last records that were not taken; `stray_count` counts all."""
        return list(self._stray)

    # Subjects and contexts

    def contexts(self) -> list[str]:
        """Returns the contexts, `.` first."""
        found = self._declared | {name for name, context in self._contexts.items() if context.versions}
        return [DEFAULT_CONTEXT, *sorted(found - {DEFAULT_CONTEXT, GLOBAL_CONTEXT})]

    def subjects(self, prefix: str = ALL_CONTEXTS, which: Which = Which.LIVE) -> list[str]:
        """Returns subjects, sorted, whose names begin with that of `prefix` within its context, or in all contexts if
        that is `:*:`. `DELETED`: those that have no live version."""
        context, name = split_subject(prefix)
        return [subject for subject in self._in_order(context, name) if self._has(subject, which)]

    def _in_order(self, context: str, name: str) -> Iterator[str]:
        if self._sorted is None:
            self._sorted = sorted(self._subjects)
        if context == "*":
            yield from (subject for subject in self._sorted if split_subject(subject)[1].startswith(name))
            return
        start = qualified(context, name)
        for subject in self._sorted[bisect_left(self._sorted, start) :]:
            if not subject.startswith(start):
                return
            if context_of(subject) == context:
                yield subject

    def _has(self, subject: str, which: Which) -> bool:
        live = any(not version.deleted for version in self._subjects[subject].values())
        return which is Which.ALL or live == (which is Which.LIVE)

    def has_subject(self, subject: str, which: Which = Which.LIVE) -> bool:
        return subject in self._subjects and self._has(subject, which)

    # Versions

    def versions(self, subject: str, which: Which = Which.LIVE) -> list[SchemaVersion]:
        """Returns a subject's versions, the oldest first; none of an unknown subject."""
        found = self._subjects.get(subject, {})
        return [found[number] for number in sorted(found) if which.takes(found[number])]

    def version(self, subject: str, number: int, which: Which = Which.LIVE) -> SchemaVersion | None:
        found = self._subjects.get(subject, {}).get(number)
        return found if found is not None and which.takes(found) else None

    def latest(self, subject: str, which: Which = Which.LIVE) -> SchemaVersion | None:
        found = self._subjects.get(subject, {})
        numbers = [number for number, version in found.items() if which.takes(version)]
        return found[max(numbers)] if numbers else None

    def next_version(self, subject: str) -> int:
        """Returns the number of a new version: one more than the highest that is not removed for good."""
        return max(self._subjects.get(subject, ()), default=0) + 1

    def with_metadata(
        self, subject: str, properties: Mapping[str, str], which: Which = Which.LIVE
    ) -> SchemaVersion | None:
        """Returns the newest version whose metadata have all these properties."""
        wanted = set(properties.items())
        for version in reversed(self.versions(subject, which)):
            if version.schema.metadata is not None and wanted <= set(version.schema.metadata.properties):
                return version
        return None

    def schemas(
        self, prefix: str = "", which: Which = Which.LIVE, *, latest_only: bool = False
    ) -> Iterator[SchemaVersion]:
        """Yields versions by subject and number; `prefix` as in `subjects`."""
        for subject in self.subjects(prefix, Which.ALL):
            found = self.versions(subject, which)
            yield from found[-1:] if latest_only else found

    # Ids

    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT, which: Which = Which.ALL) -> list[SchemaVersion]:
        """Returns the versions that have an id, by their place in the topic."""
        found = self._ids(context).versions.get(schema_id, {})
        return sorted((one for one in found.values() if which.takes(one)), key=lambda version: version.offset)

    def schema(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> SchemaVersion | None:
        """Returns a version of the schema with this id, a live one if there is one."""
        found = self._ids(context).versions.get(schema_id, {})
        return min(found.values(), key=lambda version: (version.deleted, version.offset), default=None)

    def by_guid(self, guid: str) -> list[tuple[str, int]]:
        """Returns the contexts and ids of a guid."""
        found = [(name, one) for name, context in self._contexts.items() for one in context.by_guid.get(guid, ())]
        return sorted(found)

    def by_md5(self, digest: bytes, context: str = DEFAULT_CONTEXT) -> list[int]:
        """Returns the ids of the schemas whose text has this MD5, ascending."""
        return sorted(self._ids(context).by_md5.get(digest, ()))

    def id_of(self, schema: SchemaText, context: str = DEFAULT_CONTEXT) -> int | None:
        """Returns the id of an equal schema in a context."""
        return min(self._ids(context).by_guid.get(schema.guid(), ()), default=None)

    def find(self, subject: str, schema: SchemaText, which: Which = Which.LIVE) -> SchemaVersion | None:
        """Returns the newest version of a subject that has an equal schema, or one that is equal except for the version
        that its metadata name."""
        guid, versions = schema.guid(), self.versions(subject, which)
        equal = next((one for one in reversed(versions) if one.guid == guid), None)
        if equal is not None:
            return equal
        return next((one for one in reversed(versions) if schema.is_version(one.schema, one.version)), None)

    def ids(self, context: str = DEFAULT_CONTEXT) -> list[int]:
        return sorted(self._ids(context).versions)

    def last_id(self, context: str = DEFAULT_CONTEXT) -> int:
        """Returns the highest id of all records that were applied, removed ones too; 0 if there is none."""
        return self._ids(context).last_id

    def last_ids(self) -> dict[str, int]:
        return {name: context.last_id for name, context in self._contexts.items()}

    def raise_last_id(self, context: str, schema_id: int) -> None:
        """Raises `last_id` to at least this id, which is known from outside the topic's records."""
        found = self._contexts.setdefault(context, _Context())
        found.last_id = max(found.last_id, schema_id)

    # References

    def referenced_by(self, subject: str, number: int, which: Which = Which.LIVE) -> list[SchemaVersion]:
        """Returns the versions whose schemas refer to a version, by subject and number."""
        found = (self._subjects[name][one] for name, one in sorted(self._referrers.get((subject, number), ())))
        return [version for version in found if which.takes(version)]

    def resolve(
        self, subject: str, references: Iterable[Reference], which: Which = Which.ALL
    ) -> list[tuple[Reference, SchemaVersion]]:
        """Returns all schemas that a schema of `subject` refers to, each before those that refer to it. Of several
        versions under one name the first counts. `which` applies to the references themselves; the schemas that these
        refer to may be withdrawn. Raises `SchemaError` for a reference that is missing or contains itself, and for too
        many."""
        found: dict[str, tuple[Reference, SchemaVersion]] = {}
        self._resolve(subject, references, which, (), found, set())
        return list(found.values())

    def _resolve(
        self,
        subject: str,
        references: Iterable[Reference],
        which: Which,
        inside: tuple[_Key, ...],
        found: dict[str, tuple[Reference, SchemaVersion]],
        done: set[_Key],
    ) -> None:
        for reference in references:
            key = (beside(subject, reference.subject), reference.version)
            named = f"its reference {reference.name} ({key[0]}, version {key[1]})"
            version = self.version(*key, which) if key[1] != -1 else self.latest(key[0], which)
            if version is None:
                raise SchemaError(f"{named} is not in the schemas topic")
            if key in inside:
                raise SchemaError(f"its references contain {key[0]}, version {key[1]}, itself")
            if len(inside) >= MAX_DEPTH:
                raise SchemaError(f"{named} is one of more than {MAX_DEPTH} within each other")
            if key not in done:
                self._resolve(key[0], version.schema.references, Which.ALL, (*inside, key), found, done)
                done.add(key)
            found.setdefault(reference.name, (reference, version))
            if sum(len(one.schema.text) for _, one in found.values()) > MAX_RESOLVED:
                raise SchemaError(f"what it refers to is longer than {MAX_RESOLVED} characters")

    # Configuration and modes

    def config(self, scope: str | None) -> Config | None:
        """Returns what is set for a subject, a context (`:.c:`) or, None, the default context itself."""
        return self._configs.get(scope)

    def config_in_scope(self, subject: str | None, default: Config) -> Config:
        """Returns the configuration that holds for a subject: its own over that of the default context; else that of
        its context, of all contexts, or `default`. The level of compatibility is never None."""
        own = None if subject is None else self._configs.get(subject)
        if own is not None:
            base = self._configs.get(None, default)
            found = own.over(base)
        else:
            found = self._configs.get(_scope(subject)) or self._configs.get(GLOBAL) or default
        level = found.compatibility_level or default.compatibility_level
        return replace(found, compatibility_level=level)

    def configs(self) -> dict[str | None, Config]:
        return dict(self._configs)

    def mode(self, scope: str | None) -> Mode | None:
        return self._modes.get(scope)

    def mode_in_scope(self, subject: str | None) -> Mode:
        """Returns the mode that holds for a subject: its own, its context's, that of all contexts, or READWRITE."""
        own = None if subject is None else self._modes.get(subject)
        return own or self._modes.get(_scope(subject)) or self._modes.get(GLOBAL) or Mode.READWRITE

    def modes(self) -> dict[str | None, Mode]:
        return dict(self._modes)

    def alias_of(self, subject: str) -> str:
        """Returns the subject that stands for this one by its configuration; itself if none does."""
        own = self._configs.get(subject)
        return own.alias if own is not None and own.alias else subject


def _scope(subject: str | None) -> str | None:
    """Returns the key of the configuration of a subject's context."""
    context = DEFAULT_CONTEXT if subject is None else context_of(subject)
    return None if context == DEFAULT_CONTEXT else qualified(context, "")


def _targets(version: SchemaVersion) -> set[_Key]:
    references = version.schema.references
    return {(beside(version.subject, one.subject), one.version) for one in references} if references else set()


def _discard(index: dict[K, set[V]], key: K, value: V) -> None:
    left = index.get(key)
    if left is not None:
        left.discard(value)
        if not left:
            del index[key]


def _set(table: dict[str | None, V], scope: str | None, value: V | None) -> None:
    if value is None:
        table.pop(scope, None)
    else:
        table[scope] = value
