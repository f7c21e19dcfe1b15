"""Claims of ids in the coordination, so that any number of processes registering at once agree (design D8).

    /schemas/ids/<id>                    the entry: subject, version, text
    /schemas/identities/<sha256>         id of the schema that says this (see `parsing.identity`)
    /schemas/fingerprints/<hex>          id of the one schema with this CRC-64-AVRO
    /schemas/subjects/<subject>/<n>      id of the subject's version n

One transaction creates all paths of a claim; a process that loses a race finds a path taken and reads again.
"""

from __future__ import annotations

import json
import logging
from urllib.parse import quote, unquote

from klamm.core.errors import SchemaError
from klamm.core.interfaces.coordination import Coordination, Create, NodeExistsError, NoNodeError

from .fingerprint import fingerprint, identity_digest
from .log import SchemaEntry

_log = logging.getLogger(__name__)
ROOT = "/schemas"
_IDS, _IDENTITIES, _FINGERPRINTS, _SUBJECTS = (
    f"{ROOT}/{name}" for name in ("ids", "identities", "fingerprints", "subjects")
)


class SchemaIdClaims:
    """Reads and writes claims; blocking. Every method reads the coordination again."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def ids(self) -> list[int]:
        return sorted(int(name) for name in self._children(_IDS))

    def entry(self, schema_id: int) -> SchemaEntry | None:
        """Returns the entry for which an id was claimed."""
        data = self._data(f"{_IDS}/{schema_id}")
        if data is None:
            return None
        said = json.loads(data)
        return SchemaEntry(said["subject"], said["version"], schema_id, said["schema"])

    def id_of(self, text: str) -> int | None:
        """Returns the id of the schema that is equivalent to `text`."""
        data = self._data(f"{_IDENTITIES}/{identity_digest(text)}")
        return None if data is None else int(data)

    def id_of_fingerprint(self, value: bytes) -> int | None:
        data = self._data(f"{_FINGERPRINTS}/{value.hex()}")
        return None if data is None else int(data)

    def subjects(self) -> list[str]:
        return sorted(unquote(name, errors="surrogatepass") for name in self._children(_SUBJECTS))

    def versions(self, subject: str) -> dict[int, int]:
        """Returns version → id, in order."""
        base = _subject(subject)
        found = {}
        for version in sorted(int(name) for name in self._children(base)):
            data = self._data(f"{base}/{version}")
            if data is not None:
                found[version] = int(data)
        return found

    def claim(self, subject: str, version: int, text: str, known_id: int | None) -> int | None:
        """Claims `text` as the subject's `version` and returns its id; None if another process was faster. Raises
        `SchemaError` if its fingerprint names another schema.
        """
        if known_id is None:
            self._refuse_shared_fingerprint(subject, text)
        for path in (_IDS, _IDENTITIES, _FINGERPRINTS, _subject(subject)):
            self._make(path)
        schema_id = known_id if known_id is not None else max(self.ids(), default=0) + 1
        entry = SchemaEntry(subject, version, schema_id, text)
        paths = [_version(entry), *(_id_paths(entry) if known_id is None else ())]
        try:
            self._coordination.transaction(paths)
        except NodeExistsError:
            return None
        return schema_id

    def restore(self, entry: SchemaEntry, *, readable: bool) -> bool:
        """Creates the paths of a schema that is in the topic and missing in the coordination, as after its restore from
        an older backup: otherwise its id and version would be given to another schema. Of one that is not `readable`
        only these two are claimed. Returns whether any path was missing. Raises `SchemaError` when another schema has
        its id or its version already."""
        held = self.entry(entry.schema_id)
        if held is not None and held.text != entry.text and (not readable or _digest(held) != _digest(entry)):
            raise _given_twice(
                entry, f"id {entry.schema_id} is another schema's in the coordination, of {held.subject}"
            )
        number = self._data(_version(entry).path)
        if number is not None and int(number) != entry.schema_id:
            raise _given_twice(entry, f"version {entry.version} is schema {int(number)} in the coordination")
        for path in (_IDS, _IDENTITIES, _FINGERPRINTS, _subject(entry.subject)):
            self._make(path)
        paths = [_version(entry), *(_id_paths(entry) if readable else [_id_path(entry)])]
        lost = [path for path in paths if self._data(path.path) is None]
        if not lost:
            return False
        try:
            self._coordination.transaction(lost)
        except NodeExistsError:
            return True  # another process does the same: the caller reads again
        _log.warning(
            "schema %d (%s, version %d) is in the schemas topic and was not in the coordination: claimed",
            entry.schema_id, entry.subject, entry.version,
        )  # fmt: skip
        return True

    def _refuse_shared_fingerprint(self, subject: str, text: str) -> None:
        other = self.id_of_fingerprint(fingerprint(text))
        if other is not None and self.id_of(text) is None:
            raise SchemaError(
                f"{subject}: the schema has the same fingerprint as schema {other}: they differ only in what Avro's "
                "canonical form leaves out (default, aliases, logicalType); change a field or a name as well"
            )

    def _make(self, path: str) -> None:
        try:
            self._coordination.create(path, make_parents=True)
        except NodeExistsError:
            return

    def _data(self, path: str) -> bytes | None:
        try:
            return self._coordination.get(path)[0]
        except NoNodeError:
            return None

    def _children(self, path: str) -> list[str]:
        try:
            return self._coordination.children(path)
        except NoNodeError:
            return []


def _version(entry: SchemaEntry) -> Create:
    return Create(f"{_subject(entry.subject)}/{entry.version}", str(entry.schema_id).encode())


def _id_path(entry: SchemaEntry) -> Create:
    said = {"subject": entry.subject, "version": entry.version, "schema": entry.text}
    return Create(f"{_IDS}/{entry.schema_id}", json.dumps(said).encode())


def _id_paths(entry: SchemaEntry) -> list[Create]:
    """The parent paths that the first claim of an id creates."""
    number = str(entry.schema_id).encode()
    return [
        _id_path(entry),
        Create(f"{_IDENTITIES}/{identity_digest(entry.text)}", number),
        Create(f"{_FINGERPRINTS}/{fingerprint(entry.text).hex()}", number),
    ]


def _digest(entry: SchemaEntry) -> str:
    try:
        return identity_digest(entry.text)
    except SchemaError:  # claimed for its id only
        return entry.text


def _given_twice(entry: SchemaEntry, what: str) -> SchemaError:
    return SchemaError(
        f"{entry.subject}: version {entry.version} is schema {entry.schema_id} in the schemas topic, but {what}: the "
        "coordination was restored from an older backup; restore one that is as new as the topic"
    )


def _subject(subject: str) -> str:
    return f"{_SUBJECTS}/{quote(subject, safe='', errors='surrogatepass')}"
