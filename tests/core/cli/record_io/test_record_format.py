"""Formats with the letters of `rpk topic consume`."""

from __future__ import annotations

import pytest

from klamm.core.cli.record_io.printing import format_of, show_json, show_on_terminal
from klamm.core.cli.record_io.record_format import PrintedRecord, compile_format
from klamm.core.errors import ConfigError

RECORD = PrintedRecord(
    "trips", 2, 300, 1_795_824_000_123, b"ann", b"\x00\xffv", (("a", b"1"), ("b", None)), 4, 7, 1, 12
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t[%p]@%o %k\n", b"trips[2]@300 ann\n"),
        ("%v", b"\x00\xffv"),
        ("%T %K %V %H %e %x %y %i", b"5 3 3 2 4 7 1 12"),
        (r"%%%{%}\t\\\x41\r", b"%{}\t\\A\r"),
        ("%v{hex} %k{base64} %v{base64raw}", b"00ff76 YW5u AP92"),
        ("%k{base64raw}", b"YW5u"),
        ("%o{hex} %o{hex64} %o{hex32} %o{hex16} %o{hex8} %o{hex4}", b"12c 000000000000012c 0000012c 012c 2c c"),
        ("%o{big64}", b"\0\0\0\0\0\0\x01\x2c"),
        ("%K{big32}%k", b"\0\0\0\x03ann"),
        ("%o{little16}%o{byte}%o{big8}%p{bool}%H{ascii}", b"\x2c\x01\x2c\x2ctrue2"),
        ("%d %d{strftime[%F %T]} %d{strftime##%Y##}", b"1795824000123 2026-11-28 00:00:00 2026"),
        ("%h{ %k=%v{hex}%}}", b" a=31} b=}"),
        ("%h{%K:%V,}", b"1:1,1:0,"),
        ("é%t", "étrips".encode()),
    ],
)
def test_a_record_is_printed(text: str, expected: bytes) -> None:
    assert compile_format(text)(RECORD) == expected


def test_null_is_nothing() -> None:
    assert compile_format("[%k|%v|%K]")(RECORD._replace(key=None, value=None)) == b"[||0]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%s", "-f, character 1: %s is kcat's; here it is %v"),
        ("ab%q", "-f, character 3: there is no letter %q"),
        ("%", "-f, character 1: there is no letter %"),
        ("%a", "record attributes"),
        (r"\q", r"-f, character 1: expected \\t, \\n"),
        (r"\xg1", "expected"),
        ("%v{oct}", "expected the modifier hex, base64 or base64raw, got oct"),
        ("%o{big24}", "expected a number's modifier .*, got big24"),
        ("%v{hex", "-f, character 3: there is no } for this {"),
        ("%h", "needs a format of one header"),
        ("x%h{%o}", "-f, character 5: inside %h{…} are"),
        ("%d{go[06]}", "Go's formats"),
        ("%d{strftime}", "expected strftime's format in brackets"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compile_format(text)


def test_fields_are_escaped_on_a_terminal() -> None:
    shown = compile_format(r"%k|%v|%v{hex}\n", show_on_terminal)(RECORD._replace(key=b"\x1b[31m\xc3\xa9\n"))
    assert shown == b"\\x1b[31m\xc3\xa9\\n|\\x00\\xffv|00ff76\n"
    assert show_json('{"a":"\x9b\u202eé\U000e0001"}') == '{"a":"\\u009b\\u202eé\\udb40\\udc01"}'.encode()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_whole_record_is_one_line(terminal: bool) -> None:
    form = format_of(None, True, terminal)
    assert form is not None
    line = form(RECORD._replace(key=b"a\n", value=b'"\xe2\x80\xae"')).decode()
    value = "\\u202e" if terminal else "\u202e"
    assert '"key":"a\\n","value":"' + value + '"' in line
    assert (line[-2:], line.count("\n")) == ("}\n", 1)
