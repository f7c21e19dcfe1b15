"""Input in blocks, and lines as records."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.cli.record_io import clients
from klamm.core.cli.record_io.clients import Columnar, json_parser
from klamm.core.cli.record_io.interrupts import Interrupts
from klamm.core.cli.record_io.line_input import (
    BadInput,
    CsvColumns,
    InputRecord,
    LineBlock,
    ParsedBlock,
    csv_blocks,
    json_records,
    keyed,
    line_blocks,
    parsed_blocks,
    raw_blocks,
    typed_blocks,
    values_of_json,
)
from klamm.schemas.avro.parsing import parse
from klamm.schemas.avro.values.json_values import json_reader
from klamm.schemas.columns.json_documents import DocumentWriter
from klamm.schemas.serdes.avro import row_writer

LONGEST = 100
EXACT = json_parser(Decimal)


def lines_of(*writes: bytes) -> list[tuple[int, bytes | None]]:
    """Returns the numbered lines of what another thread writes into a pipe; None for one that is too long."""
    source, target = os.pipe()

    def write() -> None:
        for data in writes:
            os.write(target, data)
        os.close(target)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Interrupts() as interrupts:
            blocks = list(line_blocks(source, interrupts, LONGEST))
    finally:
        writer.join()
        os.close(source)
    listed = ((first, [None] if isinstance(lines, BadInput) else lines) for first, lines in blocks)
    return [(first + n, line) for first, lines in listed for n, line in enumerate(lines)]


def test_lines_are_numbered_over_blocks_of_any_size() -> None:
    assert lines_of(b"a\nb", b"b\n\nc\n") == [(1, b"a"), (2, b"bb"), (3, b""), (4, b"c")]
    assert lines_of(b"one") == [(1, b"one")]
    assert lines_of() == []


@pytest.mark.parametrize("rest", [b"", b"bb", b"\n", b"bb\nc\nd"])
def test_a_line_that_is_too_long_is_left_out(rest: bytes) -> None:
    read = lines_of(b"a\n", b"b" * 60, b"b" * 60, rest)
    found = [(n, None if line is not None and len(line) > LONGEST else line) for n, line in read]
    # one that arrived as a whole is not too long to be kept: it is refused as a record
    assert found == [(1, b"a"), (2, None), *([(3, b"c"), (4, b"d")] if b"c" in rest else [])]


def test_a_line_that_is_too_long_is_bad_in_every_form() -> None:
    def blocks() -> Iterator[LineBlock]:
        yield from [(1, [b"key,value"]), (2, BadInput(2, "long")), (3, [b"a,1"])]

    columns = CsvColumns(None, None, None, ",", empty_is_null=False)
    for made in (
        list(raw_blocks(blocks(), empty_is_null=False)),
        list(parsed_blocks(blocks(), keyed(InputRecord, b","), skip=True)),
        list(csv_blocks(blocks(), columns, skip=True)),
    ):
        assert [(bad.line, bad.reason) for block in made for bad in block.bad] == [(2, "long")]
        assert [number for block in made for number in block.lines][-1] == 3


def test_after_a_signal_no_more_is_read() -> None:
    source, target = os.pipe()
    os.write(target, b"a\nincomplete")
    with Interrupts() as interrupts:
        blocks = line_blocks(source, interrupts, LONGEST)
        assert next(blocks) == (1, [b"a"])
        threading.Timer(0.05, lambda: os.kill(os.getpid(), 2)).start()
        assert list(blocks) == []
        assert (interrupts.received, interrupts.status) == (2, 130)
    os.close(source)
    os.close(target)


def test_the_second_signal_raises() -> None:
    with Interrupts():
        os.kill(os.getpid(), 15)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), 2)


def blocks_of(*lines: bytes) -> Iterator[LineBlock]:
    return iter([(1, list(lines))])


def test_raw_lines_are_values() -> None:
    (block,) = raw_blocks(blocks_of(b"a", b""), empty_is_null=False)
    assert (block.values, list(block.lines)) == ([b"a", b""], [1, 2])
    (block,) = raw_blocks(blocks_of(b"a", b""), empty_is_null=True)
    assert block.values == [b"a", None]


def serialize(value: Any) -> bytes | None:
    return None if value is None else repr(value).encode()


def all_of(documents: Sequence[Any]) -> list[bytes] | None:
    return None if None in documents else [repr(document).encode() for document in documents]


def only(line: bytes, parse: Any) -> tuple[InputRecord | None, str]:
    (block,) = parsed_blocks(blocks_of(line), parse, skip=False)
    return (block.records or [None])[0], block.bad[0].reason if block.bad else ""


def test_json_of_values() -> None:
    parse = values_of_json(serialize, EXACT, None, empty_is_null=False)
    assert only(b'{"a": 1.50}', parse)[0] == InputRecord(repr({"a": Decimal("1.50")}).encode())
    assert only(b"null", parse)[0] == InputRecord(None)
    assert only(b"", parse)[1].startswith("expected the JSON of one value, got an empty line")
    assert only(b"", values_of_json(serialize, EXACT, None, empty_is_null=True))[0] == InputRecord(None)
    assert only(b"{'a'}", parse)[1] == (
        "expected the JSON of one value, got \"{'a'}\" at character 2: "
        "Expecting property name enclosed in double quotes"
    )
    assert only(b"NaN", parse)[1].startswith("expected the JSON of one value, got 'NaN': NaN is not JSON")
    assert "Exceeds the limit" in only(b"1" * 5000, parse)[1]
    assert only(b"a\xff", parse)[1] == "byte 2 (0xff) is not UTF-8"
    assert "nested too deeply" in only(b"[" * 100_000, parse)[1]


def listed(blocks: Iterator[ParsedBlock]) -> list[Any]:
    (block,) = blocks
    values = [record.value for record in block.records] if block.values is None else block.values
    return [list(zip(block.lines, values, strict=True)), [(bad.line, bad.reason) for bad in block.bad]]


@pytest.mark.parametrize("empty_is_null", [False, True])
@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"1", b'{"a": 2}', b"null"],
        [b"1", b"", b"2"],
        [b"1", b' {"a": 2} ', b'{"a": 2} 3'],
        [b"1", b"\xff"],
        [b'{"a":tru}'],
        [b'{"a":1'],
    ],
)
def test_a_block_of_typed_lines_is_what_its_lines_are(lines: list[bytes], empty_is_null: bool) -> None:
    for skip in (False, True):
        one_by_one = parsed_blocks(blocks_of(*lines), values_of_json(serialize, EXACT, None, empty_is_null), skip)
        together = typed_blocks(blocks_of(*lines), serialize, EXACT, Columnar(lambda: all_of), empty_is_null, skip)
        assert listed(together) == listed(one_by_one)


NUMBERS = [
    b"1",
    b"-0",
    b"-0.0",
    b"1.0",
    b"1e3",
    b"1E400",
    b"-1e400",
    b"1e-400",
    b"0.1",
    b"9007199254740993.0",
    b"01",
    b"-",
    b"1.",
]
NUMBERS += [b"%d" % n for n in (2**63 - 1, -(2**63), 2**64, 10**30)] + [b"9" * 400, b"9" * 5000, b"NaN", b"-Infinity"]
STRINGS = [
    rb'"\ud800"',
    rb'"\udc00"',
    rb'"\ud83d\ude00"',
    rb'"\ud83d\u0041"',
    rb'"\u0000\n\/"',
    rb'"\x"',
    b'"a\x01"',
    b'"\xff"',
]
STRINGS += [b'"\xed\xa0\x80"', '"ä\u2028\x7f"'.encode(), b'"', b"tru", b"true", b"null", b"[" * 300 + b"]" * 300]
OBJECTS = [
    b'{"a":1,"a":2}',
    b'{"a":1} x',
    b'{"a":1}\x00',
    b'{"a":1,}',
    b' {"a" : 1}\r',
    b"\xef\xbb\xbf{}",
    b'{"\\u0061":1}',
]


@pytest.mark.parametrize("fractions", [float, Decimal])
@pytest.mark.parametrize("text", NUMBERS + STRINGS + OBJECTS, ids=lambda text: repr(text)[:30])
def test_documents_are_parsed_as_pythons_json_does(text: bytes, fractions: type[float] | type[Decimal]) -> None:
    def outcome(parse: Callable[[], Any]) -> str:
        try:
            return repr(parse())
        except (ValueError, RecursionError) as error:
            return type(error).__name__

    def no_number(name: str) -> Any:
        raise ValueError(name)

    judge = outcome(lambda: json.loads(text.decode(), parse_float=fractions, parse_constant=no_number))
    assert outcome(lambda: json_parser(fractions)(text)) == judge


TRIP = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "rider", "type": ["null", "string"], "default": None},
        {"name": "km", "type": "double"},
        {"name": "n", "type": "long"},
    ],
}
PARTS = [b'{"km":', b'{"rider":"\xc3\xa4","km":', b'{"n":1,"km":', b'{"rider":', b"{", b"", b"null"]
RESTS = [
    b',"n":1}',
    b',"n":-9223372036854775808}',
    b',"n":1.0}',
    b',"n":null}',
    b',"other":2,"n":1}',
    b"}",
    b"",
    b',"n":1,"n":2}',
]
LINES = st.builds(
    lambda *parts: b"".join(parts), st.sampled_from(PARTS), st.sampled_from(NUMBERS), st.sampled_from(RESTS)
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lines=st.lists(LINES | st.just(b'{"km":1.5,"n":1}') | st.sampled_from(STRINGS + OBJECTS), max_size=4),
    skip=st.booleans(),
)
def test_a_block_by_columns_is_what_its_lines_are(lines: list[bytes], skip: bool) -> None:
    schema = parse(json.dumps(TRIP))
    one, parser = row_writer("t", schema, b"\0", json_reader(schema.root)), json_parser(float)
    columnar = Columnar(lambda: DocumentWriter.of(schema.root, b"\0"))

    one_by_one = parsed_blocks(blocks_of(*lines), values_of_json(one, parser, None, False), skip)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clients, "_MANY", 0)
        patched.setattr(clients, "_FEW", 0)
        together = listed(typed_blocks(blocks_of(*lines), one, parser, columnar, False, skip))
    assert together == listed(one_by_one)


def test_a_field_is_the_key() -> None:
    parse = values_of_json(serialize, EXACT, "id", empty_is_null=False)
    assert only(b'{"id": "x"}', parse)[0] == InputRecord(b"{'id': 'x'}", b"x")
    assert only(b'{"id": 7}', parse)[0] == InputRecord(b"{'id': 7}", b"7")
    assert only(b'{"id": 1.50}', parse)[0] == InputRecord(b"{'id': Decimal('1.50')}", b"1.50")
    assert only(b'{"id": null}', parse)[0] == InputRecord(b"{'id': None}", None)
    assert only(b'{"other": 7}', parse)[1] == "there is no field 'id' for the key"


def test_a_delimiter_ends_the_key() -> None:
    parse = keyed(InputRecord, b": ")
    assert only(b"a: b: c", parse)[0] == InputRecord(b"b: c", b"a")
    assert only(b"a:b", parse)[1] == "expected a key, ': ' and a value, got 'a:b'"


def test_whole_records() -> None:
    parse = json_records(None, EXACT)
    line = b'{"topic":"t","partition":1,"offset":9,"timestamp":5,"key":{"base64":"/w=="},"value":"v",'
    line += b'"headers":[{"key":"h","value":null}]}'
    assert only(line, parse)[0] == InputRecord(b"v", b"\xff", (("h", None),), 5)
    assert only(b'{"value":null,"timestamp":"1970-01-01T00:00:01Z"}', parse)[0] == InputRecord(None, None, (), 1000)
    assert only(b'{"value":{"a":1}}', json_records(serialize, EXACT))[0] == InputRecord(b"{'a': 1}")
    for wrong, why in (
        (b"[1]", "expected a record as JSON"),
        (b'{"key":"a"}', "expected a record as JSON"),
        (b'{"value":1}', 'value: expected text, {"base64": …} or null, got 1'),
        (b'{"value":{"base64":"?"}}', "value: "),
        (b'{"value":"v","offest":1}', "'offest' is no part of a record"),
        (b'{"value":"v","timestamp":"noon"}', "timestamp: expected milliseconds from 1970"),
        (b'{"value":"v","timestamp":"1969-12-31T23:59Z"}', "timestamp: expected milliseconds from 1970"),
        (b'{"value":"v","timestamp":99999999999999999999}', "timestamp: expected milliseconds from 1970"),
        (b'{"value":"v","headers":[{"key":"\\ud800"}]}', "\\ud800 is half of a surrogate pair"),
        (b'{"value":"\\udfff"}', "\\udfff is half of a surrogate pair"),
        (b'{"value":"v","headers":{"a":1}}', "headers: expected a list"),
        (b'{"value":"v","headers":[{"a":1}]}', "headers: expected"),
    ):
        assert only(wrong, parse)[1].startswith(why), wrong


def test_lines_after_a_bad_one_are_left_unless_it_is_skipped() -> None:
    def parsed(skip: bool) -> ParsedBlock:
        (block,) = parsed_blocks(blocks_of(b"a:1", b"x", b"b:2", b"y"), keyed(InputRecord, b":"), skip)
        return block

    block = parsed(skip=False)
    assert ([r.key for r in block.records], list(block.lines)) == ([b"a"], [1])
    assert [bad.line for bad in block.bad] == [2]
    block = parsed(skip=True)
    assert ([r.key for r in block.records], list(block.lines)) == ([b"a", b"b"], [1, 3])
    assert [bad.line for bad in block.bad] == [2, 4]


def csv_of(text: str | bytes, skip: bool = False, **options: Any) -> ParsedBlock:
    columns = {
        "names": None,
        "key": None,
        "serializer": lambda _: serialize,
        "delimiter": ",",
        "empty_is_null": False,
        **options,
    }
    lines = (text.encode() if isinstance(text, str) else text).split(b"\n")
    made = ParsedBlock()
    numbers: list[int] = []
    for block in csv_blocks(iter([(1, lines[:2]), (3, lines[2:])]), CsvColumns(**columns), skip):  # type: ignore[arg-type]
        made.records += block.records
        made.bad += block.bad
        numbers += block.lines
    made.lines = numbers
    return made


def test_csv_with_a_row_of_names() -> None:
    block = csv_of('\ufeffid,name\r\n1,"a ""b""\nc"\r\n2,d', key="id")
    assert block.records == [
        InputRecord(repr({"id": "1", "name": 'a "b"\nc'}).encode(), b"1"),
        InputRecord(repr({"id": "2", "name": "d"}).encode(), b"2"),
    ]
    assert (list(block.lines), block.bad) == ([2, 4], [])


def test_csv_with_named_columns_and_another_delimiter() -> None:
    block = csv_of("1;2\n3;4", names=("a", "b"), delimiter=";")
    assert [record.value for record in block.records] == [b"{'a': '1', 'b': '2'}", b"{'a': '3', 'b': '4'}"]


def test_csv_of_a_topic_without_schema() -> None:
    block = csv_of("key,value\na,1\nb,", serializer=None, empty_is_null=True)
    assert block.records == [InputRecord(b"1", b"a"), InputRecord(None, b"b")]


def test_a_csv_cell_is_as_large_as_a_record() -> None:
    block = csv_of("value\n" + "x" * 200_000, serializer=None)
    assert ([record.value for record in block.records], block.bad) == ([b"x" * 200_000], [])


def test_bad_csv() -> None:
    block = csv_of("a,b\n1,2\n1\n3,4", skip=True)
    assert [(bad.line, bad.reason) for bad in block.bad] == [(3, "expected 2 cells (a, b), got 1")]
    assert list(block.lines) == [2, 4]
    block = csv_of(b"a,b\n\xff,2\n1\n3,4", skip=True)  # a line that is no text counts too
    assert ([bad.line for bad in block.bad], list(block.lines)) == ([2, 3], [4])
    block = csv_of('a,b\n1,2\n"3,4')
    assert ([bad.line for bad in block.bad], len(block.records)) == ([3], 1)
    assert block.bad[0].reason.startswith("no CSV: ")
    for text, options, why in (
        ("a,a\n1,2", {}, "two columns are named 'a'"),
        ("a,b\n1,2", {"key": "id"}, "there is no column 'id' for the key; columns: a, b"),
        (
            "a,b\n1,2",
            {"serializer": None},
            "the topic has no schema, so CSV has the columns value and key; here it has a, b",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            csv_of(text, **options)
