r"""Formats of records with the letters of `rpk topic consume`: `%t %p %o: %k %v\n`.

| letter | field | | letter | field |
| --- | --- | --- | --- | --- |
| `%t`, `%T` | topic, its length | | `%p` | partition |
| `%k`, `%K` | key, its length | | `%o` | offset |
| `%v`, `%V` | value, its length | | `%d` | timestamp in ms |
| `%h{…}`, `%H` | headers (`%k %v` inside), their number | | `%e` | leader epoch |
| `%i` | the number of the record among the printed | | `%x`, `%y` | producer id, producer epoch |
| `%%`, `%{`, `%}` | a percent sign, braces | | | |

A modifier in braces follows a letter. Numbers: `ascii` (default), `hex`, `hex64` to `hex4`, `big64` to `big8`,
`little64` to `little8`, `byte`, `bool`; larger numbers are truncated. Bytes: `hex`, `base64`, `base64raw`.
`%d{strftime[%F %T]}` is in UTC. Escapes: `\t \n \r \\ \xNN`. Null is nothing. A length is that of the bytes that the
letter prints without a modifier.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...errors import ConfigError
from ...records.record import Headers


class PrintedRecord(NamedTuple):
    """The fields that a format can print. `value`: as printed; `number`: 1 for the first printed record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    number: int


RecordFormat = Callable[[PrintedRecord], bytes]
Show = Callable[[bytes], bytes]
"""Returns bytes as they are printed: escaped on a terminal."""
_Number = Callable[[PrintedRecord], int]
_Bytes = Callable[[PrintedRecord], "bytes | None"]

_NUMBERS: Final[dict[str, _Number]] = {
    "T": lambda r: len(r.topic),
    "K": lambda r: len(r.key or b""),
    "V": lambda r: len(r.value or b""),
    "H": lambda r: len(r.headers),
    "p": lambda r: r.partition,
    "o": lambda r: r.offset,
    "d": lambda r: r.timestamp_ms,
    "e": lambda r: r.leader_epoch,
    "x": lambda r: r.producer_id,
    "y": lambda r: r.producer_epoch,
    "i": lambda r: r.number,
}
_TEXTS: Final[dict[str, _Bytes]] = {
    "t": lambda r: r.topic.encode(),
    "k": lambda r: r.key,
    "v": lambda r: r.value,
}
_SIGNS: Final = {"%": b"%", "{": b"{", "}": b"}"}
_ESCAPES: Final = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\"}
_KCAT: Final = {"s": "%v", "S": "%V", "R": "%V{big32}"}
_NOT_HERE: Final = {
    "a": "record attributes",
    "[": "log start offsets",
    "|": "last stable offsets",
    "]": "high watermarks",
}
_IN_HEADERS: Final = "kKvV"
_CLOSING: Final = {"[": "]", "{": "}", "(": ")"}
_BITS: Final = {64: 8, 32: 4, 16: 2, 8: 1}


def compile_format(text: str, show: Show = bytes) -> RecordFormat:
    """Returns a function that prints a record. `show` is applied to keys, values and header values without a
    modifier. Raises `ConfigError` with the position of the error."""
    return _Parser(text, show).compile()


class _Parser:
    def __init__(self, text: str, show: Show, offset: int = 0, letters: str = "") -> None:
        self._text = text
        self._show = show
        self._offset = offset
        self._letters = letters
        self._at = 0

    def compile(self) -> RecordFormat:
        pieces: list[RecordFormat] = []
        literal = bytearray()
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "\\":
                literal += self._escape()
            elif char != "%":
                literal += os.fsencode(char)
                self._at += 1
            elif self._text[self._at + 1 : self._at + 2] in _SIGNS and self._at + 1 < len(self._text):
                literal += _SIGNS[self._text[self._at + 1]]
                self._at += 2
            else:
                if literal:
                    pieces.append(_constant(bytes(literal)))
                    literal.clear()
                pieces.append(self._letter())
        if literal:
            pieces.append(_constant(bytes(literal)))
        return _joined(pieces)

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"-f, character {self._offset + self._at + 1}: {what}")

    def _escape(self) -> bytes:
        code = self._text[self._at + 1 : self._at + 2]
        if code in _ESCAPES and code:
            self._at += 2
            return _ESCAPES[code]
        if code == "x":
            try:
                found = bytes.fromhex(self._text[self._at + 2 : self._at + 4])
            except ValueError:
                found = b""
            if len(found) == 1:
                self._at += 4
                return found
        raise self._wrong(f"expected \\t, \\n, \\r, \\\\ or \\xNN, got \\{code}")

    def _letter(self) -> RecordFormat:
        letter = self._text[self._at + 1 : self._at + 2]
        if self._letters and letter not in self._letters:
            raise self._wrong(f"inside %h{{…}} are %k, %K, %v and %V, not %{letter}")
        if letter not in (*_NUMBERS, *_TEXTS, "h"):
            if letter in _KCAT:
                raise self._wrong(f"%{letter} is kcat's; here it is {_KCAT[letter]}")
            if letter in _NOT_HERE:
                raise self._wrong(f"%{letter} ({_NOT_HERE[letter]}) is rpk's, and Klamm does not print it")
            raise self._wrong(f"there is no letter %{letter}; there are %{' %'.join((*_TEXTS, 'h', *_NUMBERS))}")
        start = self._at
        self._at += 2
        modifier = self._braces() if self._text[self._at : self._at + 1] == "{" else None
        end, self._at = self._at, start
        made = self._piece(letter, modifier)
        self._at = end
        return made

    def _braces(self) -> str:
        """Returns the text in braces, which may contain pairs of braces."""
        depth, start = 0, self._at + 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "%" and self._text[self._at + 1 : self._at + 2] in _SIGNS:
                self._at += 1
            else:
                depth += (char == "{") - (char == "}")
            self._at += 1
            if depth == 0:
                return self._text[start : self._at - 1]
        self._at = start - 1
        raise self._wrong("there is no } for this {")

    def _piece(self, letter: str, modifier: str | None) -> RecordFormat:
        if letter == "h":
            if modifier is None:
                raise self._wrong("%h needs a format of one header, such as %h{%k=%v }")
            return _headers(_Parser(modifier, self._show, self._offset + self._at + 3, _IN_HEADERS).compile())
        if letter in _TEXTS:
            return self._bytes(_TEXTS[letter], modifier)
        get = _NUMBERS[letter]
        if letter == "d" and modifier is not None and modifier.startswith("strftime"):
            return _strftime(self._wrapped(modifier.removeprefix("strftime")))
        if letter == "d" and modifier is not None and modifier.startswith("go"):
            raise self._wrong("Go's formats are rpk's; use %d{strftime[%F %T]}")
        return self._number(get, modifier or "ascii")

    def _wrapped(self, text: str) -> str:
        """Returns the format between its marks: `[%F]`, `##%F##`."""
        mark = text[:1]
        count = len(text) - len(text.lstrip(mark)) if mark else 0
        closing = _CLOSING.get(mark, mark) * count
        if not count or len(text) < 2 * count or not text.endswith(closing):
            raise self._wrong("expected strftime's format in brackets, as in %d{strftime[%F %T]}")
        return text[count : len(text) - count]

    def _bytes(self, get: _Bytes, modifier: str | None) -> RecordFormat:
        show = self._show
        match modifier:
            case None:
                return lambda r: show(get(r) or b"")
            case "hex":
                return lambda r: (get(r) or b"").hex().encode()
            case "base64":
                return lambda r: base64.b64encode(get(r) or b"")
            case "base64raw":
                return lambda r: base64.b64encode(get(r) or b"").rstrip(b"=")
        raise self._wrong(f"expected the modifier hex, base64 or base64raw, got {modifier}")

    def _number(self, get: _Number, modifier: str) -> RecordFormat:
        kind = modifier.rstrip("0123456789")
        bits = int(modifier[len(kind) :] or 0)
        if modifier == "byte":
            kind, bits = "big", 8
        if modifier == "ascii":
            return lambda r: str(get(r)).encode()
        if modifier == "hex":
            return lambda r: f"{get(r) & 0xFFFFFFFFFFFFFFFF:x}".encode()
        if modifier == "bool":
            return lambda r: b"true" if get(r) else b"false"
        if kind == "hex" and bits in (*_BITS, 4):
            width, mask = bits // 4, (1 << bits) - 1
            return lambda r: f"{get(r) & mask:0{width}x}".encode()
        if kind in ("big", "little") and bits in _BITS:
            size, mask = _BITS[bits], (1 << bits) - 1
            order: str = kind
            return lambda r: (get(r) & mask).to_bytes(size, "big" if order == "big" else "little")
        raise self._wrong(
            "expected a number's modifier (ascii, hex, hex64 to hex4, big64 to big8, little64 to little8, byte, bool), "
            f"got {modifier}"
        )


def _constant(literal: bytes) -> RecordFormat:
    return lambda _: literal


def _joined(pieces: Sequence[RecordFormat]) -> RecordFormat:
    if len(pieces) == 1:
        return pieces[0]
    return lambda record: b"".join([piece(record) for piece in pieces])


def _headers(one: RecordFormat) -> RecordFormat:
    def print_headers(record: PrintedRecord) -> bytes:
        return b"".join(one(record._replace(key=name.encode(), value=item)) for name, item in record.headers)

    return print_headers


def _strftime(pattern: str) -> RecordFormat:
    def print_time(record: PrintedRecord) -> bytes:
        try:
            moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=record.timestamp_ms)
        except OverflowError:  # after the year 9999: not a time that strftime knows
            return str(record.timestamp_ms).encode()
        return os.fsencode(moment.strftime(pattern))

    return print_time
