"""The sink `sqlite`: a table with the primary key topic, topic id, partition and offset: nothing is there twice.

The topic id is part of it because offsets begin again in a topic that was deleted and created again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from klamm.plugin import ConfigPath, ConsumerRecord, Section, StorageError, key

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    topic TEXT, topic_id TEXT, partition INTEGER, "offset" INTEGER, timestamp INTEGER, key, value,
    PRIMARY KEY (topic, topic_id, partition, "offset")
) WITHOUT ROWID
"""


class SqliteConfig(Section):
    path: ConfigPath = key(..., "The file; made when it is not there.")


class SqliteSink:
    """Called from one thread, as the `Sink` interface guarantees and SQLite requires."""

    def __init__(self, config: SqliteConfig) -> None:
        self._path = config.path
        self._database: sqlite3.Connection | None = None
        self._ids: Mapping[str, UUID] = {}

    def open(self) -> None:
        with self._translated():
            self._database = sqlite3.connect(self._path, timeout=30)
            self._database.execute(_TABLE)

    def topic_ids(self, ids: Mapping[str, UUID]) -> None:
        self._ids = ids

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        rows = [
            (
                r.topic,
                str(self._ids.get(r.topic, "")),
                r.partition,
                r.offset,
                r.timestamp_ms,
                _cell(r.key),
                _cell(r.value),
            )
            for r in records
        ]
        with self._translated():
            self._connection().executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def flush(self) -> None:
        with self._translated():
            self._connection().commit()

    def close(self) -> None:
        """Closes the database; unflushed records are not kept."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise StorageError(f"{self._path}: the sink is not open")
        return self._database

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self._path}: {error}") from error


def _cell(value: Any) -> Any:
    """Bytes, text and numbers as they are, anything else as JSON."""
    return value if value is None or isinstance(value, bytes | str | int | float) else json.dumps(value, default=str)
