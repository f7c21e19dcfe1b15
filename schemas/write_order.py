"""The order in which processes write to the topic of schemas: each decides on all that was written before.

A write is first put at one path of the coordination, if what stood there when the topic was read still does, and then
appended. A process that ends between the two leaves a write that the next one appends. The path has the highest ids,
too, so that a topic that lost its records gives none again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from klamm.core.interfaces.coordination import BadVersionError, Coordination, NodeExistsError, NoNodeError

from .log import SchemaLog
from .store.records import Record, SchemaRecord, decode, encode
from .store.schema_store import SchemaStore, Which

PATH: Final = "/schemas/write"


@dataclass(frozen=True, slots=True)
class _Write:
    """The last write: its records, the position of the topic that it was decided at, the highest ids with it."""

    records: tuple[Record, ...] = ()
    after: int = 0
    last_ids: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        records = [[None if part is None else part.decode() for part in encode(record)] for record in self.records]
        return zlib.compress(json.dumps({"records": records, "after": self.after, "ids": self.last_ids}).encode())

    @classmethod
    def decode(cls, data: bytes) -> _Write:
        if not data:
            return cls()
        given = json.loads(zlib.decompress(data))
        records = [decode(key.encode(), None if value is None else value.encode()) for key, value in given["records"]]
        return cls(tuple(records), given["after"], given["ids"])


class WriteOrder:
    """Blocking. A pair of `read` and `write` is one attempt."""

    def __init__(self, coordination: Coordination, log: SchemaLog) -> None:
        self._coordination = coordination
        self._log = log
        self._version = 0
        self._store = SchemaStore()

    def read(self) -> SchemaStore:
        """Returns the topic's table, with a write that another process left undone."""
        data = self._last()
        self._store = self._log.read()
        last = _Write.decode(data)
        if last.after <= self._store.position and not _is_written(self._store, last):
            self._log.append(last.records)
            self._store = self._log.read()
        for context, schema_id in last.last_ids.items():
            self._store.raise_last_id(context, schema_id)
        return self._store

    def write(self, records: Sequence[Record]) -> bool:
        """Appends records that were decided on what `read` returned; returns False, and appends none, if another
        process wrote since."""
        ids = self._store.last_ids()
        for record in records:
            if isinstance(record, SchemaRecord):
                ids[record.context] = max(ids.get(record.context, 0), record.schema_id)
        write = _Write(tuple(records), self._store.position, ids)
        try:
            self._coordination.set(PATH, write.encode(), self._version)
        except BadVersionError:
            return False
        self._log.append(records)
        return True

    def _last(self) -> bytes:
        try:
            data, stat = self._coordination.get(PATH)
        except NoNodeError:
            with suppress(NodeExistsError):
                self._coordination.create(PATH, make_parents=True)
            data, stat = self._coordination.get(PATH)
        self._version = stat.version
        return data


def _is_written(store: SchemaStore, write: _Write) -> bool:
    for record in write.records:
        if isinstance(record, SchemaRecord):
            found = store.version(record.subject, record.version, Which.ALL)
            return found is not None and found.offset >= write.after
    return True
