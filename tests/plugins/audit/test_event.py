from __future__ import annotations

import json

import fastavro
import pytest

from klamm.core.errors import SchemaError
from klamm.plugins.audit.event import EventKey, decode_event
from klammtest.audits import event


def test_an_event_comes_back_as_it_was() -> None:
    sent = event("consumer", "readers", 5, 9, {0: 3, 7: 1}, replay=True, lossy=True, sequence=4, time_ms=99)
    _, value = sent.encode()
    assert decode_event(value) == sent


def test_a_producers_event_has_no_partition() -> None:
    _, value = event("producer", "p-1", 0, 1, {}).encode()
    assert decode_event(value).partition is None


def test_the_key_is_readable_and_tells_a_replay_from_the_range_that_it_repeats() -> None:
    counted, again = event("consumer", "g", 5, 9, {}), event("consumer", "g", 5, 7, {}, replay=True)
    assert json.loads(counted.encode()[0]) == ["consumer", "g", "flights", "", 0, 5, False, False]
    assert counted.key == EventKey("consumer", "g", "flights", "", 0, 5, False, False)
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


def test_a_loads_event_names_its_lake_its_directory_and_its_job() -> None:
    load = {"lake": "one", "directory": "hdfs://n/lake/flights", "replaces": ("zero",), "load": 3, "job": "j"}
    _, value = event("hadoop", "lake", 5, 9, {0: 4}, **load).encode()
    read = decode_event(value)
    assert {name: getattr(read, name) for name in load} == load


def test_the_end_of_a_group_or_a_lake_has_no_partition() -> None:
    ended = event("consumer", "readers", 5, 6, {}, partition=None, final=True)
    assert ended.ends
    assert decode_event(ended.encode()[1]).ends
    assert not event("producer", "p", 5, 6, {}).ends
    assert not event("consumer", "readers", 5, 6, {}).ends
