"""Many records are printed together as they are one by one."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.cli.record_io import clients
from klamm.core.cli.record_io.clients import Columnar
from klamm.core.cli.record_io.printing import Printer, UnprintableError
from klamm.core.errors import SchemaError
from klamm.core.interfaces.serde import DocumentsDeserializer
from klamm.core.interfaces.sink import RecordBatch
from klamm.core.plugins import plugin_host
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.schemas.avro.parsing import parse
from klamm.schemas.avro.values.json_values import json_text
from klamm.schemas.avro.values.reading import value_reader
from klamm.schemas.columns.json_documents import DocumentReader
from klamm.schemas.serdes.avro import row_writer

TEXT = json.dumps(
    {
        "type": "record",
        "name": "Trip",
        "fields": [{"name": "rider", "type": ["null", "string"]}, {"name": "km", "type": "double"}],
    }
)
PREFIX = b"\0\0\0\0\7"
SCHEMA = parse(TEXT)
SERIALIZE = row_writer("trips", SCHEMA, PREFIX)
READ, PRINT = value_reader(SCHEMA.root, SCHEMA.root), json_text(SCHEMA.root)
CODECS = plugin_host().codec_table()
GOOD = st.builds(
    lambda rider, km: SERIALIZE({"rider": rider, "km": km}), st.none() | st.text(max_size=3), st.floats(-1e12, 1e12)
)
BAD = st.sampled_from([b"", PREFIX, b"\1" + PREFIX, PREFIX + b"\2\2\xff" + b"\0" * 8])
RECORDS = st.tuples(
    st.integers(0, 2**40), st.none() | st.binary(max_size=2), GOOD | st.none(), st.sampled_from([(), (("h", None),)])
)


def deserialize(payload: bytes) -> str:
    if payload[: len(PREFIX)] != PREFIX:
        raise SchemaError("no such schema")
    try:
        stream = io.BytesIO(payload[len(PREFIX) :])
        made = PRINT(READ(stream))
    except Exception as error:
        raise SchemaError("cannot be read") from error
    if stream.read():
        raise SchemaError("bytes left over")
    return made


def printed(
    runs: list[list[RecordBatch]], stop: int | None, most: int | None, grep: str | None, columnar: bool
) -> tuple[bytes, list[tuple[int, int]], int, list[int | None]]:
    """Returns the output, the offsets that could not be decoded, the number of printed records, and the last offset of
    each run."""
    reader = DocumentReader(len(PREFIX), lambda _: TEXT, SCHEMA.root) if columnar else None
    printer = Printer(
        codecs=CODECS,
        max_size=1 << 20,
        deserializers=lambda _: deserialize,
        columnar=lambda _: Columnar[DocumentsDeserializer](lambda: reader),
        form=None,
        whole=False,
        grep=None if grep is None else re.compile(grep.encode()),
        terminal=False,
    )
    out, bad, last = b"", [], list[int | None]()
    for run in runs:
        left = None if most is None else most - printer.printed
        if left == 0:
            break
        for text in printer.texts(run, stop, left):
            if isinstance(text, UnprintableError):
                bad.append((text.offset, text.end))
            else:
                out += text
        last.append(printer.last)
    return out, bad, printer.printed, last


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    contents=st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=4),
    wrong=st.none() | st.tuples(st.integers(0, 3), BAD),
    skipped=st.integers(0, 2),
    stop=st.none() | st.integers(1, 12),
    most=st.none() | st.integers(1, 8),
    grep=st.sampled_from([None, "null", r"\d{3}"]),
    codec=st.sampled_from([None, "zstd"]),
)
def test_many_records_are_printed_as_one_by_one(
    contents: list[list[Any]],
    wrong: tuple[int, bytes] | None,
    skipped: int,
    stop: int | None,
    most: int | None,
    grep: str | None,
    codec: str | None,
) -> None:
    if wrong is not None:
        number, payload = wrong
        records = contents[number % len(contents)]
        records[-1] = (*records[-1][:2], payload, records[-1][3])
    trips, run, offset = TopicPartition("trips", 3), list[RecordBatch](), 0
    for records in contents:
        data = encode_batch(records, codec=None if codec is None else CODECS.by_name(codec), base_offset=offset)
        after = offset + len(records)
        start = min(skipped, after - 1) if offset == 0 else offset
        run.append(RecordBatch(trips, start, after, len(records), data))
        offset = after + 1  # a gap, as compaction leaves it
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clients, "_MANY", 0)
        patched.setattr(clients, "_FEW", 0)
        together = printed([run], stop, most, grep, columnar=True)
    alone = printed([[batch] for batch in run], stop, most, grep, columnar=False)
    assert together[:3] == alone[:3]
    assert [at for at in together[3] if at is not None] == [at for at in alone[3] if at is not None]
