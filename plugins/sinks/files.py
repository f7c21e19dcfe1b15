"""The sink `files`: JSON lines, a folder per partition and a file per flush, each record once.

    <path>/<topic>/<partition>/<first offset>-<last offset>.jsonl[.gz]

Each line is a JSON object (RFC 8259, in ASCII) with `offset`, `timestamp`, `key`, `value` and `headers`. The form of a
value depends on its type alone, as in Avro's JSON encoding:

    bytes and fixed              a string with a code point below 256 for each byte: `text.encode("latin-1")` inverts it
    NaN and the infinities       "NaN", "Infinity", "-Infinity"
    decimal, uuid                their text
    dates and times              ISO 8601

A file is written under another name, flushed to disk and renamed, so a reader sees complete files only. The names show
which offsets are stored: records that are delivered again after a crash between flush and commit are not written twice.

Offsets are valid within one topic id. `<path>/<topic>/.topic_id` has the id of the topic to which the names above
belong, the first one that the sink was given; files of a topic that was created again with the same name have its id in
their names: `<first offset>-<last offset>.<topic id>.jsonl[.gz]`.

Offsets are valid within one history of a topic. If a log lost its end (a restored backup), the records that replace the
lost ones are written too, in files with the number of the cut in their names; the files with the lost records stay as
they are: `<first offset>-<last offset>[.<topic id>].cut<number>.jsonl[.gz]`. There is a line for each cut in

    <path>/<topic>/<partition>/.cuts[.<topic id>]

With `on.bad.record: quarantine` each record or batch that cannot be read is written to a file of its own, with the
reason:

    <path>/<topic>/_bad/<partition>/<first offset>-<last offset>[.<topic id>][.cut<number>].json
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from klamm.plugin import BadRecords, ConfigPath, ConsumerRecord, LogCut, Section, StorageError, TopicPartition, key

_NAME = re.compile(r"(\d{20})-(\d{20})(?:\.([0-9a-f-]{36}))?(?:\.cut(\d+))?\.jsonl(\.gz)?")
_TOPIC_ID = ".topic_id"
_CUTS = ".cuts"
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Avro's names of these numbers (its JSON encoder is Jackson, which quotes them)."""


class FilesConfig(Section):
    """The folder and the format of the files."""

    path: ConfigPath = key(..., "The folder; created if it does not exist.")
    compression: Literal["none", "gzip"] = key("none", "Whether files are compressed.")


class FilesSink:
    """Implements the sink of `klamm.core.interfaces.sink`. Raises `StorageError` with one line if the disk fails."""

    def __init__(self, config: FilesConfig) -> None:
        self._config = config
        self._unflushed: dict[TopicPartition, list[ConsumerRecord]] = {}
        self._next: dict[TopicPartition, int] = {}
        self._ids: Mapping[str, UUID] = {}
        self._marks: dict[str, str | None] = {}
        self._cuts: dict[TopicPartition, list[tuple[int, int]]] = {}

    def open(self) -> None:
        try:
            self._config.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"sink folder {self._config.path} cannot be created: {error.strerror}") from error

    def topic_ids(self, ids: Mapping[str, UUID]) -> None:
        self._ids = dict(ids)
        self._marks.clear()
        self._cuts.clear()

    def log_cut(self, cut: LogCut) -> None:
        self._next.pop(cut.partition, None)
        self._cuts.pop(cut.partition, None)  # another member may have recorded cuts since
        known = self._read_cuts(cut.partition)
        if (cut.offset, cut.lost_epoch) in known[-1:]:
            return
        known.append((cut.offset, cut.lost_epoch))
        lines = [json.dumps({"offset": offset, "lost_epoch": epoch}) + "\n" for offset, epoch in known]
        with _writing(self._folder(cut.partition)):
            _replace(self._cuts_path(cut.partition), "".join(lines).encode())

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            if record.offset >= self._expected(tp):
                self._unflushed.setdefault(tp, []).append(record)
                self._next[tp] = record.offset + 1

    def flush(self) -> None:
        for tp, unflushed in self._unflushed.items():
            stored = self._stored(tp)  # read again: a member that lost the partition may have written just before
            records = [record for record in unflushed if record.offset >= stored]
            if records:
                with _writing(self._folder(tp)):
                    self._publish(self._folder(tp), records, self._suffix(tp))
        self._unflushed.clear()
        self._next.clear()  # another member may write a partition before it is assigned to this one again
        self._cuts.clear()

    def quarantine(self, bad: BadRecords) -> None:
        topic, number = bad.partition
        folder = self._config.path / topic / "_bad" / str(number)
        fields = {
            "from": bad.from_offset,
            "to": bad.to_offset,
            "reason": bad.reason,
            "batch": bad.is_batch,
            "key": bad.key,
            "value": bad.value,
        }
        with _writing(folder):
            name = f"{bad.from_offset:020}-{bad.to_offset - 1:020}{self._suffix(bad.partition)}.json"
            _replace(folder / name, (_json(fields) + "\n").encode())

    def close(self) -> None:
        """Drops the records that were not flushed."""
        self._unflushed.clear()

    def _folder(self, tp: TopicPartition) -> Path:
        return self._config.path / tp.topic / str(tp.partition)

    def _expected(self, tp: TopicPartition) -> int:
        if tp not in self._next:
            self._next[tp] = self._stored(tp)
        return self._next[tp]

    def _stored(self, tp: TopicPartition) -> int:
        """Returns the offset after the last one in the partition's files; counts files of this topic id, up to the
        offset at which a log cut invalidated the rest."""
        mark, cuts = self._mark(tp.topic), self._read_cuts(tp)
        names = [_NAME.fullmatch(path.name) for path in self._folder(tp).glob("*.jsonl*")]
        ends = [(int(name[2]) + 1, int(name[4] or 0)) for name in names if name and name[3] == mark]
        # A file written before a cut counts up to the offset of the cut, and so for each later cut.
        return max((min([end, *(offset for offset, _ in cuts[since:])]) for end, since in ends), default=0)

    def _cuts_path(self, tp: TopicPartition) -> Path:
        mark = self._mark(tp.topic)
        return self._folder(tp) / (f"{_CUTS}.{mark}" if mark else _CUTS)

    def _read_cuts(self, tp: TopicPartition) -> list[tuple[int, int]]:
        """Returns offset and last lost leader epoch of each cut, in the order in which they were recorded."""
        if tp not in self._cuts:
            path = self._cuts_path(tp)
            try:
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                self._cuts[tp] = [(int(line["offset"]), int(line["lost_epoch"])) for line in lines]
            except FileNotFoundError:
                self._cuts[tp] = []
            except OSError as error:
                raise StorageError(f"{path} cannot be read: {error.strerror}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    f"{path} is damaged: each line should have the offset and lost_epoch of a cut"
                ) from error
        return self._cuts[tp]

    def _suffix(self, tp: TopicPartition) -> str:
        """Returns the suffix of the names of files that are written now."""
        mark, cuts = self._mark(tp.topic), len(self._read_cuts(tp))
        return (f".{mark}" if mark else "") + (f".cut{cuts}" if cuts else "")

    def _mark(self, topic: str) -> str | None:
        """Returns the part of file names that contains the topic id; None for the first id of a topic, and if ids
        are unknown."""
        if topic not in self._ids:
            return None
        if topic not in self._marks:
            folder = self._config.path / topic
            with _writing(folder):
                mine = str(self._ids[topic])
                self._marks[topic] = None if _claim(folder / _TOPIC_ID, mine) == mine else mine
        return self._marks[topic]

    def _publish(self, folder: Path, records: Sequence[ConsumerRecord], suffix: str) -> None:
        compressed = self._config.compression == "gzip"
        offsets = f"{records[0].offset:020}-{records[-1].offset:020}"
        name = f"{offsets}{suffix}.jsonl{'.gz' if compressed else ''}"
        data = "".join(as_json(record) + "\n" for record in records).encode()
        _replace(folder / name, gzip.compress(data, mtime=0) if compressed else data)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"sink folder {folder} cannot be written: {error.strerror}") from error


def _claim(path: Path, mine: str) -> str:
    """Returns the content of the file, which is created with `mine` if it does not exist. Of two tasks that create
    it at once one succeeds."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        _write(part, mine.encode())
        try:
            path.hardlink_to(part)
        except FileExistsError:
            pass
        finally:
            part.unlink()
        _sync(path.parent)
    return path.read_text().strip()


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    _write(part, data)
    part.replace(path)
    _sync(path.parent)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def as_json(record: ConsumerRecord) -> str:
    """Returns a record as one line."""
    fields = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": [[name, value] for name, value in record.headers],
    }
    return _json(fields)


def _json(fields: Mapping[str, Any]) -> str:
    """Returns JSON. Raises `StorageError` for a value that JSON cannot represent."""
    try:
        try:
            return json.dumps(fields, default=_to_json, allow_nan=False)
        except ValueError:  # the fast case is without NaN and infinities
            return json.dumps(_finite(fields), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:  # such as an int of more than 4300 digits
        raise StorageError(f"a value cannot be written as JSON: {error}") from error


def _finite(value: Any) -> Any:
    """Returns the value as JSON's types, with the names of numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value if value is None or isinstance(value, str | int) else _finite(_to_json(value))


def _to_json(value: Any) -> Any:
    """Converts values that JSON cannot represent: bytes, dataclasses, and Avro's logical types."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    raise StorageError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _sync(folder: Path) -> None:
    """Makes renames in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
