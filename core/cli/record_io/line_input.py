"""Input as blocks of whole lines, and lines as records."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from json import JSONDecodeError
from typing import Any, Final, NamedTuple

from ...errors import SchemaError
from ...interfaces.serde import DocumentsSerializer, Serializer
from ...records.record import LAST_TIMESTAMP_MS, Headers
from .clients import Columnar, JsonParser, to_json
from .interrupts import Interrupts
from .positions import moment_ms

BLOCK_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 18
_CELL_BYTES: Final = 1 << 30
"""The most characters of a CSV cell: `max.request.size` decides how large a record may be."""
_RECORD_KEYS: Final = frozenset({"key", "value", "headers", "timestamp", "topic", "partition", "offset"})


class BadInput(Exception):
    """A line that is no record: its number, from 1, and what was expected. The lines after it have not been read
    yet."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class InputRecord(NamedTuple):
    """One record of the input; `timestamp_ms` None: the time of sending."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


LineParser = Callable[[bytes], InputRecord]
"""Returns the record of a line; raises `ValueError` or `SchemaError` with what is expected."""


@dataclass(slots=True)
class ParsedBlock:
    """Records of consecutive lines, the number of each record's line, and the bad lines."""

    records: list[InputRecord] = field(default_factory=list)
    lines: Sequence[int] = ()
    bad: list[BadInput] = field(default_factory=list)
    values: Sequence[bytes | None] | None = None
    """The records, if all of them are only values."""


LineBlock = tuple[int, list[bytes] | BadInput]
"""Consecutive lines without their ends, and the number of the first of them; or a line that is too long."""


def line_blocks(fd: int, interrupts: Interrupts, longest: int) -> Iterator[LineBlock]:
    """Yields lines without their line ends, with the number of the first of them, as they arrive: at most about
    `BLOCK_BYTES` at a time. Ends at the end of the input, or after a signal, without an incomplete last line. Raises
    `BadInput` for a line of more than `longest` bytes."""
    rest, number, too_long = bytearray(), 1, False
    for data in _reads(fd, interrupts):
        if too_long:
            cut = data.find(b"\n")
            if cut < 0:
                continue
            data, number, too_long = data[cut + 1 :], number + 1, False
        cut = data.rfind(b"\n")
        if cut < 0:
            rest += data
        else:
            lines = (bytes(rest) + data[:cut]).split(b"\n")
            yield number, lines
            number += len(lines)
            rest = bytearray(data[cut + 1 :])
        if len(rest) > longest:
            reason = f"a line of more than {longest} bytes; producer.max.request.size allows no larger record"
            yield number, BadInput(number, reason)
            rest, too_long = bytearray(), True
    if rest and interrupts.received is None:
        yield number, [bytes(rest)]


def _reads(fd: int, interrupts: Interrupts) -> Iterator[bytes]:
    """Yields the bytes that have arrived. The end is read only once, since a terminal reports Ctrl-D to one read
    only."""
    ended = False
    while not ended and interrupts.wait_readable(fd):
        parts, size = list[bytes](), 0
        while not ended and size < BLOCK_BYTES and (not parts or interrupts.wait_readable(fd, 0)):
            parts.append(os.read(fd, _READ_BYTES))
            size += len(parts[-1])
            ended = not parts[-1]
        yield b"".join(parts)


def raw_blocks(blocks: Iterable[LineBlock], empty_is_null: bool) -> Iterator[ParsedBlock]:
    """Yields lines as values."""
    for first, lines in blocks:
        if isinstance(lines, BadInput):
            yield ParsedBlock(bad=[lines])
            continue
        values: list[bytes | None] = [line or None for line in lines] if empty_is_null else [*lines]
        yield ParsedBlock(lines=range(first, first + len(lines)), values=values)


def parsed_blocks(blocks: Iterable[LineBlock], parse: LineParser, skip: bool) -> Iterator[ParsedBlock]:
    """Yields the records of lines. Without `skip` the first bad line ends the input: its block has the records
    before it, and the bad line."""
    for first, lines in blocks:
        if isinstance(lines, BadInput):
            yield ParsedBlock(bad=[lines])
            continue
        block, numbers = ParsedBlock(), list[int]()
        for number, line in enumerate(lines, first):
            try:
                block.records.append(parse(line))
                numbers.append(number)
            except (ValueError, SchemaError) as error:
                block.bad.append(BadInput(number, _reason(error)))
                if not skip:
                    break
        block.lines = numbers
        yield block


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} ({error.object[error.start]:#04x}) is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"\\u{ord(error.object[error.start]):04x} is half of a surrogate pair, which UTF-8 does not have"
    return str(error)


# -- what a line is


def values_of_json(
    serialize: Serializer, parse_json: JsonParser, key_field: str | None, empty_is_null: bool
) -> LineParser:
    """Each line is the JSON document of a typed value; `key_field` names the field that is its key as well."""

    def parse(line: bytes) -> InputRecord:
        if not line and empty_is_null:
            return InputRecord(None)
        document = _document(line, parse_json, "the JSON of one value")
        return InputRecord(serialize(document), _key_of(document, key_field))

    return parse


def typed_blocks(
    blocks: Iterable[LineBlock],
    serialize: Serializer,
    parse_json: JsonParser,
    columnar: Columnar[DocumentsSerializer],
    empty_is_null: bool,
    skip: bool,
) -> Iterator[ParsedBlock]:
    """Yields the records of lines, each of which is the JSON document of a typed value. Fast case: a block of valid
    lines is converted as a whole, if `columnar` can."""
    parse = values_of_json(serialize, parse_json, None, empty_is_null)
    for first, lines in blocks:
        if isinstance(lines, list):
            with contextlib.suppress(ValueError, SchemaError, RecursionError):  # `parsed_blocks` finds the line
                documents = [parse_json(line) for line in lines]
                serialize_all = columnar.of(len(documents))
                values: Sequence[bytes | None] | None = serialize_all and serialize_all(documents)
                if values is None:
                    values = [serialize(document) for document in documents]
                yield ParsedBlock(lines=range(first, first + len(lines)), values=values)
                continue
        yield from parsed_blocks([(first, lines)], parse, skip)


def keyed(parse: LineParser, delimiter: bytes) -> LineParser:
    """Each line is a key, the delimiter, and a text that `parse` parses."""

    def parse_keyed(line: bytes) -> InputRecord:
        key, found, rest = line.partition(delimiter)
        if not found:
            raise ValueError(
                f"expected a key, {delimiter.decode(errors='backslashreplace')!r} and a value, got {_shown(line)}"
            )
        return parse(rest)._replace(key=key)

    return parse_keyed


def json_records(serialize: Serializer | None, parse_json: JsonParser) -> LineParser:
    """Returns a parser of lines as `klamm consume --json` prints them. `serialize` gets the JSON of the value; without
    it the value is text, {"base64": …} or null."""

    def parse(line: bytes) -> InputRecord:
        record = _document(line, parse_json, 'a record as JSON, such as {"key":"a","value":"b"}')
        if not isinstance(record, dict) or "value" not in record:
            raise ValueError(f'expected a record as JSON, such as {{"key":"a","value":"b"}}, got {_shown(line)}')
        unknown = sorted(record.keys() - _RECORD_KEYS)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no part of a record: those are key, value, headers and timestamp")
        value = record["value"]
        return InputRecord(
            serialize(value) if serialize is not None else _bytes("value", value),
            _bytes("key", record.get("key")),
            tuple(_header(one) for one in _list("headers", record.get("headers"))),
            _timestamp(record.get("timestamp")),
        )

    return parse


def _document(line: bytes, parse_json: JsonParser, expected: str) -> Any:
    text = line.decode()
    try:
        return parse_json(text)
    except RecursionError:
        raise ValueError(f"expected {expected}; this is nested too deeply") from None
    except ValueError as error:
        where = f" at character {error.pos + 1}: {error.msg}" if isinstance(error, JSONDecodeError) else f": {error}"
        raise ValueError(f"expected {expected}, got {_shown(line)}{where}") from None


def _shown(line: bytes) -> str:
    text = line.decode(errors="backslashreplace")
    return repr(text if len(text) <= 60 else text[:60] + "…") if text else "an empty line"


def _key_of(document: Any, name: str | None) -> bytes | None:
    if name is None:
        return None
    if not isinstance(document, dict) or name not in document:
        raise ValueError(f"there is no field {name!r} for the key")
    found = document[name]
    if found is None or isinstance(found, str):
        return found if found is None else found.encode()
    return (str(found) if isinstance(found, Decimal) else to_json(found)).encode()


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}: {error}") from None
    raise ValueError(f'{name}: expected text, {{"base64": …}} or null, got {to_json(value):.60}')


def _list(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, got {to_json(value):.60}")
    return value


def _header(one: Any) -> tuple[str, bytes | None]:
    if not isinstance(one, dict) or not isinstance(one.get("key"), str) or one.keys() - {"key", "value"}:
        raise ValueError(f'headers: expected {{"key": …, "value": …}}, got {to_json(one):.60}')
    one["key"].encode()  # raises where that is not possible
    return one["key"], _bytes("headers", one.get("value"))


def _timestamp(value: Any) -> int | None:
    if value is None or value == -1:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    found: int | None = value if whole else moment_ms(value) if isinstance(value, str) else None
    if found is None or not 0 <= found <= LAST_TIMESTAMP_MS:
        raise ValueError(
            "timestamp: expected milliseconds from 1970 to the year 9999 or a time such as 2026-11-28T10:00Z, "
            f"got {to_json(value):.60}"
        )
    return found


# -- CSV


class CsvColumns(NamedTuple):
    """The columns of CSV. `names` None: the first row has the names. `key`: the column of the key. `serialize` takes
    a row as a dict; if it is None, the column `value` is the value, and `key`, if present, the key."""

    names: tuple[str, ...] | None
    key: str | None
    serializer: Callable[[Sequence[str]], Serializer] | None
    delimiter: str
    empty_is_null: bool


def csv_blocks(blocks: Iterable[LineBlock], columns: CsvColumns, skip: bool) -> Iterator[ParsedBlock]:
    """Yields the records of CSV (RFC 4180), as they arrive. Raises `BadInput` for a header row that cannot be used."""
    source = _CsvSource(blocks)
    csv.field_size_limit(_CELL_BYTES)
    reader = csv.reader(source, delimiter=columns.delimiter, strict=True)
    parse: Callable[[list[str]], InputRecord] | None = None
    if columns.names is not None:
        parse = _row_parser(list(columns.names), columns, 1)
    block, numbers = ParsedBlock(), list[int]()
    while True:
        first = source.line + 1
        try:
            row = next(reader)
            if parse is None:
                parse = _row_parser(row, columns, first)
                continue
            block.records.append(parse(row))
            numbers.append(first)
        except StopIteration:
            break
        except (ValueError, SchemaError, csv.Error) as error:
            block.bad.append(BadInput(first, f"no CSV: {error}" if isinstance(error, csv.Error) else _reason(error)))
            if not skip:
                break
        if source.at_block_end:
            block.lines = numbers
            yield block
            block, numbers = ParsedBlock(), []
    block.lines = numbers
    yield block


class _CsvSource:
    """The lines of blocks as text with their line ends, for the CSV reader, which reads further lines inside quotes."""

    def __init__(self, blocks: Iterable[LineBlock]) -> None:
        self._blocks = iter(blocks)
        self._lines: Iterator[bytes] = iter(())
        self._left = 0
        self.line = 0
        """The number of the last line that was read."""

    @property
    def at_block_end(self) -> bool:
        return self._left == 0

    def __iter__(self) -> _CsvSource:
        return self

    def __next__(self) -> str:
        while not self._left:
            _, lines = next(self._blocks)
            if isinstance(lines, BadInput):
                self.line = lines.line
                raise ValueError(lines.reason)
            self._lines, self._left = iter(lines), len(lines)
        self._left -= 1
        self.line += 1
        return next(self._lines).decode() + "\n"


def _row_parser(names: list[str], columns: CsvColumns, line: int) -> Callable[[list[str]], InputRecord]:
    names = [name.removeprefix("\ufeff").strip() for name in names]
    twice = sorted({name for name in names if names.count(name) > 1})
    key = columns.key
    if key is None and columns.serializer is None and "key" in names:
        key = "key"
    there = ", ".join(names)
    if twice:
        raise BadInput(line, f"two columns are named {twice[0]!r}; columns: {there}")
    if key is not None and key not in names:
        raise BadInput(line, f"there is no column {key!r} for the key; columns: {there}")
    if columns.serializer is None:
        others = sorted(set(names) - {"value", key})
        if "value" not in names or others:
            raise BadInput(line, f"the topic has no schema, so CSV has the columns value and key; here it has {there}")
    try:
        serialize = None if columns.serializer is None else columns.serializer(names)
    except SchemaError as error:
        raise BadInput(line, str(error)) from error
    count = len(names)

    def parse(row: list[str]) -> InputRecord:
        if len(row) != count:
            raise ValueError(f"expected {count} cells ({there}), got {len(row)}")
        found = dict(zip(names, row, strict=True))
        raw_key = None if key is None else found[key].encode()
        if serialize is not None:
            return InputRecord(serialize(found), raw_key)
        return InputRecord(None if columns.empty_is_null and not found["value"] else found["value"].encode(), raw_key)

    return parse
