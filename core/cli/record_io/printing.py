"""Record batches as the bytes that `klamm consume` prints."""

from __future__ import annotations

import base64
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...errors import CorruptRecordError, SchemaError
from ...escaping import escaped
from ...interfaces.serde import DocumentsDeserializer, HeaderDeserializer
from ...interfaces.sink import RecordBatch
from ...records.codecs import CodecTable, UnsupportedCodecError
from ...records.decode import RecordColumns, decode_columns, read_area
from ...records.header import BatchHeader
from ...records.partition import TopicPartition
from ...records.record import Headers
from ..output import writing
from .clients import Columnar, to_json
from .record_format import PrintedRecord, RecordFormat, compile_format

Deserialize = Callable[[bytes], str]
"""Returns the JSON of a value; raises `SchemaError`."""
_FLUSHED: Final = 1 << 18
"""Bytes that are collected before they are written."""


class UnprintableError(Exception):
    """The records [offset, end) of a partition cannot be decoded."""

    def __init__(self, partition: TopicPartition, offset: int, end: int, reason: str) -> None:
        super().__init__(f"{partition} offset {offset}: {reason}")
        self.partition = partition
        self.offset = offset
        self.end = end


def show_on_terminal(data: bytes) -> bytes:
    """Returns bytes as printable text: what is not UTF-8, and characters that are not printable, are escaped."""
    return escaped(data.decode("utf-8", "backslashreplace")).encode()


def format_of(text: str | None, whole: bool, terminal: bool) -> RecordFormat | None:
    """Returns the function that prints a record: by a format, or as JSON if `whole`; None prints the value alone."""
    if text is not None:
        return compile_format(text, show_on_terminal if terminal else bytes)
    if whole:
        show = show_json if terminal else str.encode
        return lambda record: show(_as_json(record)) + b"\n"
    return None


def show_json(document: str) -> bytes:
    """Returns a JSON document for a terminal: characters that are not printable as JSON's own escapes."""
    if document.isprintable():
        return document.encode()
    return "".join(c if c.isprintable() else ascii_json(c) for c in document).encode()


def ascii_json(char: str) -> str:
    """Returns a character as JSON's escape, a pair of them beyond U+FFFF."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _as_json(record: PrintedRecord) -> str:
    """Returns the record as JSON; `value` is JSON already, or null."""
    headers = ",".join(f'{{"key":{to_json(name)},"value":{_text(item)}}}' for name, item in record.headers)
    return (
        f'{{"topic":{to_json(record.topic)},"partition":{record.partition},"offset":{record.offset},'
        f'"timestamp":{record.timestamp_ms},"key":{_text(record.key)},'
        f'"value":{"null" if record.value is None else record.value.decode()},"headers":[{headers}]}}'
    )


def _text(data: bytes | None) -> str:
    """Returns bytes as JSON: text if they are UTF-8, else {"base64": …}."""
    if data is None:
        return "null"
    try:
        return to_json(data.decode())
    except UnicodeDecodeError:
        return to_json({"base64": base64.b64encode(data).decode()})


class Printer:
    """Prints the records of one command. `deserializers`: by topic, to JSON; None if values are printed as they are.
    `columnar`: by topic, what does the same for many values at once. `form` None prints values alone, each as a line.
    `whole`: the form takes every value as JSON."""

    def __init__(
        self,
        *,
        codecs: CodecTable,
        max_size: int,
        deserializers: Callable[[str], Deserialize | None],
        columnar: Callable[[str], Columnar[DocumentsDeserializer]],
        form: RecordFormat | None,
        whole: bool,
        grep: re.Pattern[bytes] | None,
        terminal: bool,
    ) -> None:
        self.printed = 0
        self._codecs = codecs
        self._max_size = max_size
        self._deserializers = deserializers
        self._columnar = columnar
        self._by_topic: dict[str, tuple[Deserialize | None, Columnar[DocumentsDeserializer]]] = {}
        self._form = form
        self._whole = whole
        self._grep = grep
        self._terminal = terminal

    def texts(
        self, batches: Sequence[RecordBatch], stop: int | None, most: int | None
    ) -> Iterator[bytes | UnprintableError]:
        """Yields the texts of the records before the offset `stop`, at most `most` of them, and an error for each that
        cannot be decoded. The batches are consecutive ones of a partition. When `most` is reached, `last` is the
        offset of the last record."""
        self.last: int | None = None
        topic = batches[0].partition.topic
        if topic not in self._by_topic:
            self._by_topic[topic] = self._deserializers(topic), self._columnar(topic)
        deserialize, columnar = self._by_topic[topic]
        alone = self._form is None and not self._terminal
        if alone and deserialize is not None:
            documents = columnar.of(sum(batch.record_count for batch in batches))
            lines = None if documents is None else self._together(batches, documents, stop, most)
            if lines is not None:
                yield lines
                return
        end = None if most is None else self.printed + most
        for batch in batches:
            if self.last is None:
                yield from self._batch(batch, deserialize, alone, stop, None if end is None else end - self.printed)

    def _together(
        self, batches: Sequence[RecordBatch], documents: DocumentsDeserializer, stop: int | None, most: int | None
    ) -> bytes | None:
        """Returns the lines of values: the fast case, for many records. None: they are printed batch by batch."""
        from ...records.arrow import arrow_columns

        first = batches[0].from_offset
        headers = [BatchHeader.parse(batch.data, 0) for batch in batches]
        if any(header.base_offset < batch.from_offset for header, batch in zip(headers[1:], batches[1:], strict=True)):
            return None  # read again in part
        try:
            areas = [
                read_area(batch.data, 0, header, self._codecs, self._max_size, batch.partition)
                for header, batch in zip(headers, batches, strict=True)
            ]
            columns = arrow_columns(areas, first, stop)
        except (CorruptRecordError, UnsupportedCodecError):
            return None
        texts = documents(columns.batch.column("value"))
        return None if texts is None else self._lines(columns.offsets, texts, most)

    def _batch(
        self, batch: RecordBatch, deserialize: Deserialize | None, alone: bool, stop: int | None, most: int | None
    ) -> Iterator[bytes | UnprintableError]:
        try:
            columns = decode_columns(
                batch.data, 0, BatchHeader.parse(batch.data, 0), self._codecs, self._max_size, batch.partition
            )
        except (CorruptRecordError, UnsupportedCodecError) as error:
            yield UnprintableError(batch.partition, batch.from_offset, batch.to_offset, str(error))
            return
        columns = _between(columns, batch.from_offset, stop)
        lines: bytes | None = None
        if alone:
            with contextlib.suppress(SchemaError):  # `_one_by_one` finds the record
                values = columns.values if deserialize is None else _documents(columns, deserialize)
                lines = self._lines(columns.offsets, values, most)
        if lines is None:
            yield from self._one_by_one(batch, columns, deserialize, most)
        else:
            yield lines

    def _lines(self, offsets: Sequence[int], values: Sequence[bytes | None], most: int | None) -> bytes:
        """Returns the values as lines: the fast case, in which nothing else of a record is printed."""
        chosen: Sequence[int] | None = None
        if self._grep is not None:
            search = self._grep.search
            chosen = [row for row, value in enumerate(values) if search(value or b"")]
            values = [values[row] for row in chosen]
        if most is not None and len(values) >= most:
            values = values[:most]
            self.last = offsets[most - 1 if chosen is None else chosen[most - 1]]
        self.printed += len(values)
        if not values:
            return b""
        try:
            return b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # None is handled below
        except TypeError:
            return b"\n".join([value or b"" for value in values]) + b"\n"

    def _one_by_one(
        self, batch: RecordBatch, columns: RecordColumns, deserialize: Deserialize | None, most: int | None
    ) -> Iterator[bytes | UnprintableError]:
        header = BatchHeader.parse(batch.data, 0)
        topic, number = batch.partition
        out: list[bytes] = []
        left = sys.maxsize if most is None else most
        form = self._form or self._value_line
        for offset, stamp, key, raw, headers in zip(*columns, strict=True):
            try:
                value = self._value(raw, headers, deserialize)
            except SchemaError as error:
                yield b"".join(out)
                out.clear()
                yield UnprintableError(batch.partition, offset, offset + 1, str(error))
                continue
            record = PrintedRecord(
                topic, number, offset, stamp, key, value, headers, header.leader_epoch, header.producer_id,
                header.producer_epoch, self.printed + 1,
            )  # fmt: skip
            text = form(record)
            if self._grep is not None and not self._grep.search(text):
                continue
            out.append(text)
            self.printed += 1
            left -= 1
            if not left:
                self.last = offset
                break
        yield b"".join(out)

    def _value(self, raw: bytes | None, headers: Headers, deserialize: Deserialize | None) -> bytes | None:
        if deserialize is not None:
            if raw is None:
                return None if self._form is not None else b"null"
            return _document(raw, headers, deserialize)
        if raw is not None and self._whole:
            return _text(raw).encode()
        return raw

    def _value_line(self, record: PrintedRecord) -> bytes:
        value = record.value or b""
        if self._terminal:
            value = show_on_terminal(value)
        return value + b"\n"


def _documents(columns: RecordColumns, deserialize: Deserialize) -> list[bytes | None]:
    if isinstance(deserialize, HeaderDeserializer):
        pairs = zip(columns.values, columns.headers, strict=True)
        return [b"null" if value is None else _document(value, headers, deserialize) for value, headers in pairs]
    return [b"null" if value is None else deserialize(value).encode() for value in columns.values]


def _document(value: bytes, headers: Headers, deserialize: Deserialize) -> bytes:
    if isinstance(deserialize, HeaderDeserializer):
        return str(deserialize.with_headers(value, headers)).encode()
    return deserialize(value).encode()


def _between(columns: RecordColumns, start: int, stop: int | None) -> RecordColumns:
    """Returns the records with offsets in [start, stop)."""
    offsets = columns.offsets
    if not offsets or (offsets[0] >= start and (stop is None or offsets[-1] < stop)):
        return columns
    first = next((row for row, offset in enumerate(offsets) if offset >= start), len(offsets))
    end = len(offsets)
    if stop is not None:
        end = next((row for row, offset in enumerate(offsets) if offset >= stop), end)
    return columns.part(first, max(first, end))


class Output:
    """Writes bytes to the standard output, in larger pieces."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Writes the collected bytes. Raises `BrokenPipeError` if the reader has ended."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts, self._size = [], 0
            with writing():
                self._out.write(data)
                self._out.flush()
