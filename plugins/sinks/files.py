"""The sink `files`: JSON lines, a folder per partition and a file per flush, each record once.

    <path>/<topic>/<partition>/<first offset>-<last offset>.jsonl[.gz]

A file is written under another name, forced to disk and renamed, so a reader sees whole files only. The names say which
offsets are there: what is delivered again after a crash between flush and commit is not written a second time.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from klamm.core.config.section import ConfigPath, Section, key
from klamm.core.errors import StorageError
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import ConsumerRecord

_NAME = re.compile(r"(\d{20})-(\d{20})\.jsonl(\.gz)?")


class FilesConfig(Section):
    """Where the files go, and how they are written."""

    path: ConfigPath = key(..., "The folder; made when it is not there.")
    compression: Literal["none", "gzip"] = key("none", "Whether files are packed.")


class FilesSink:
    """See the seam, `klamm.core.seams.sink.Sink`. `StorageError` in one line when the disk refuses."""

    def __init__(self, config: FilesConfig) -> None:
        self._config = config
        self._waiting: dict[TopicPartition, list[ConsumerRecord]] = {}
        self._next: dict[TopicPartition, int] = {}

    def open(self) -> None:
        try:
            self._config.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"sink folder {self._config.path} cannot be made: {error.strerror}") from error

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            if record.offset >= self._expected(tp):
                self._waiting.setdefault(tp, []).append(record)
                self._next[tp] = record.offset + 1

    def flush(self) -> None:
        for tp, waiting in self._waiting.items():
            stored = self._stored(tp)  # again: a member that lost the partition may just have written it
            records = [record for record in waiting if record.offset >= stored]
            try:
                if records:
                    self._publish(self._folder(tp), records)
            except OSError as error:
                raise StorageError(f"sink folder {self._folder(tp)} cannot be written: {error.strerror}") from error
        self._waiting.clear()
        self._next.clear()  # another member may have written a partition before it comes back here

    def close(self) -> None:
        """What was not flushed is not written."""
        self._waiting.clear()

    def _folder(self, tp: TopicPartition) -> Path:
        return self._config.path / tp.topic / str(tp.partition)

    def _expected(self, tp: TopicPartition) -> int:
        if tp not in self._next:
            self._next[tp] = self._stored(tp)
        return self._next[tp]

    def _stored(self, tp: TopicPartition) -> int:
        """The offset after the last one in the partition's files."""
        names = [_NAME.fullmatch(path.name) for path in self._folder(tp).glob("*.jsonl*")]
        return max((int(name[2]) + 1 for name in names if name), default=0)

    def _publish(self, folder: Path, records: Sequence[ConsumerRecord]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        packed = self._config.compression == "gzip"
        name = f"{records[0].offset:020}-{records[-1].offset:020}.jsonl{'.gz' if packed else ''}"
        data = "".join(as_json(record) + "\n" for record in records).encode()
        part = folder / f".{name}.{os.getpid()}.part"
        with part.open("wb") as file:
            file.write(gzip.compress(data, mtime=0) if packed else data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / name)
        _sync(folder)


def as_json(record: ConsumerRecord) -> str:
    """One line. Bytes that are no UTF-8 text are `{"base64": …}`."""
    said = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": [[name, value] for name, value in record.headers],
    }
    return json.dumps(said, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What JSON has no form for: bytes, dataclasses, and Avro's logical types."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    raise StorageError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _sync(folder: Path) -> None:
    """The rename itself is on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
