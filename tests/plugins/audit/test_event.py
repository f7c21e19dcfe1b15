from __future__ import annotations

import io
import json
from importlib import resources

import fastavro
import pytest

from klamm.core.errors import SchemaError
from klamm.plugins.audit.event import UNATTRIBUTED, EventKey, EventWindow, decode_event
from klammtest.audits import event

FORMER = bytes.fromhex("8819cae4012a4051")
"""The fingerprint that events of the former version begin with."""


def test_an_event_comes_back_as_it_was() -> None:
    sent = event("consumer", "readers", 5, 9, {0: 3, 7: 1}, replay=True, lossy=True, sequence=4, time_ms=99)
    _, value = sent.encode()
    assert decode_event(value) == sent


def test_a_producers_event_has_no_partition() -> None:
    _, value = event("producer", "p-1", 0, 1, {}).encode()
    assert decode_event(value).partition is None


def test_the_key_is_readable_and_tells_a_replay_from_the_range_that_it_repeats() -> None:
    counted, again = event("consumer", "g", 5, 9, {}), event("consumer", "g", 5, 7, {}, replay=True)
    assert json.loads(counted.encode()[0]) == ["consumer", "g", "flights", "", 0, 5, False]
    assert counted.key == EventKey("consumer", "g", "flights", "", 0, 5, False)
    assert counted.encode()[0] != again.encode()[0]


def test_the_value_names_its_schema_as_avro_says() -> None:
    """Single-object encoding: C3 01, then the CRC-64-AVRO of the canonical form, little-endian."""
    _, value = event("broker", "b", 0, 1, {}).encode()
    assert value[:2] == b"\xc3\x01"
    assert len(value) > 10
    assert fastavro.schema.fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"


@pytest.mark.parametrize("damage", [None, b"", b"hello", b"\xc3\x01short"])
def test_what_is_no_event_is_one_clear_line(damage: bytes | None) -> None:
    with pytest.raises(SchemaError, match="not an audit event"):
        decode_event(damage)


def test_every_cut_of_an_event_is_refused() -> None:
    _, value = event("consumer", "readers", 5, 9, {0: 3, 7: 1}).encode()
    for end in range(10, len(value)):
        with pytest.raises(SchemaError):
            decode_event(value[:end])


def test_an_event_that_makes_no_sense_is_refused() -> None:
    for wrong in (
        event("tailor", "x", 0, 1, {}),
        event("broker", "b", 5, 4, {}),
        event("broker", "b", 0, 1, {}, window_ms=0),
    ):
        with pytest.raises(SchemaError, match="contradictory fields"):
            decode_event(wrong.encode()[1])


def test_an_event_of_the_former_version_is_read() -> None:
    """As klamm wrote them before topic ids: of the broker's records nobody knows whose they are."""
    schema = json.loads(resources.files("klamm.plugins.audit").joinpath("event_1.avsc").read_text())
    window = {"start": 600_000, "count": 3, "bytes": 30, "attempted": 0, "attempted_bytes": 0}
    fields = {"tier": "broker", "owner": "b", "host": "h", "application": "a", "topic": "flights", "partition": 0}
    fields |= {"from": 5, "to": 9, "window_ms": 600_000, "windows": [window], "replay": False, "lossy": False}
    fields |= {"final": False, "interval_ms": 0, "sequence": 1, "time": 7}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    read = decode_event(bytes.fromhex("c301") + FORMER + out.getvalue(), stored_ms=8)
    assert (read.topic_id, read.epoch, read.quiet, read.seen_ms) == ("", -1, False, 8)
    assert read.windows == (EventWindow(600_000, 3, 30, source=UNATTRIBUTED),)
