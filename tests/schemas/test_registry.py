"""Ids: one per schema, whoever registers first; immutable; completed when left unwritten."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import CoordinationError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.claims import SchemaIdClaims
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.log import SchemaEntry, read_entries
from klamm.schemas.registry import SchemaRegistry
from klammtest.schemas import MemoryLog, embedded, registry


def schema(*names: str, record: str = "R", **more: Any) -> str:
    return json.dumps({"type": "record", "name": record, "fields": [{"name": n, "type": "int", **more} for n in names]})


@pytest.fixture
def coordination(tmp_path: Path) -> Iterator[Coordination]:
    made = embedded(tmp_path)
    yield made
    made.close()


def test_same_schema_same_id_and_the_first_text_stays(coordination: Coordination) -> None:
    log = MemoryLog()
    first = registry(coordination, log).register("t-value", schema("a"))
    again = registry(coordination, log).register("t-value", schema("a").replace(" ", ""))
    assert first == again
    assert again.text == schema("a")
    assert again.schema_id == 1
    assert [e.version for e in log.entries] == [1]


def test_one_schema_may_belong_to_two_subjects(coordination: Coordination) -> None:
    made = registry(coordination)
    assert made.register("t-value", schema("a")) == made.register("u-value", schema("a"))
    assert made.subjects() == ["t-value", "u-value"]


def test_lookup_by_each_key_reads_the_topic_once(coordination: Coordination) -> None:
    log = MemoryLog()
    written = registry(coordination, log).register("t-value", schema("a"))
    reader = registry(coordination, log)
    log.reads = 0
    for _ in range(3):
        assert reader.lookup(SchemaKey(schema_id=1)) == written
        assert reader.lookup(SchemaKey(md5=written.md5)) == written
        assert reader.lookup(SchemaKey(fingerprint=written.fingerprint)) == written
    assert log.reads == 1


def test_an_unknown_key_is_an_error_and_not_looked_for_at_once_again(coordination: Coordination) -> None:
    now = [0.0]
    log = MemoryLog()
    reader = SchemaRegistry(log, lambda: coordination, lambda: now[0])
    for key in (SchemaKey(schema_id=7), SchemaKey(md5=b"m" * 16), SchemaKey(fingerprint=b"f" * 8)):
        with pytest.raises(SchemaError, match="unknown schema"):
            reader.lookup(key)
    reads = log.reads
    with pytest.raises(SchemaError, match="unknown schema id 7"):
        reader.lookup(SchemaKey(schema_id=7))
    assert log.reads == reads
    log.append(SchemaEntry("t-value", 1, 7, schema("a")))
    now[0] = 60.0
    assert reader.lookup(SchemaKey(schema_id=7)).text == schema("a")


def test_a_reader_without_coordination_has_the_topic_alone() -> None:
    def away() -> Coordination:
        raise CoordinationError("away")

    log = MemoryLog()
    log.append(SchemaEntry("t-value", 1, 3, schema("a")))
    reader = SchemaRegistry(log, away)
    assert reader.lookup(SchemaKey(schema_id=3)).schema_id == 3
    with pytest.raises(SchemaError, match="unknown schema id 4"):
        reader.lookup(SchemaKey(schema_id=4))


def test_a_claimed_id_that_was_never_written_is_completed_by_a_reader(coordination: Coordination) -> None:
    assert SchemaIdClaims(coordination).claim("t-value", 1, schema("a"), None) == 1
    log = MemoryLog()
    assert registry(coordination, log).lookup(SchemaKey(schema_id=1)).text == schema("a")
    assert log.entries == [SchemaEntry("t-value", 1, 1, schema("a"))]


def test_a_claimed_id_that_was_never_written_is_completed_by_a_writer(coordination: Coordination) -> None:
    SchemaIdClaims(coordination).claim("t-value", 1, schema("a"), None)
    log = MemoryLog()
    assert registry(coordination, log).register("t-value", schema("a")).schema_id == 1
    assert log.entries == [SchemaEntry("t-value", 1, 1, schema("a"))]


def test_an_incompatible_version_is_refused_and_leaves_nothing(coordination: Coordination) -> None:
    log = MemoryLog()
    made = registry(coordination, log)
    made.register("t-value", schema("a"))
    with pytest.raises(SchemaError, match=r"t-value: not BACKWARD compatible: .* version 1: field b"):
        made.register("t-value", schema("a", "b"))
    assert SchemaIdClaims(coordination).ids() == [1]
    assert made.register("t-value", schema("a", "b"), Compatibility.FORWARD).schema_id == 2
    assert [(e.version, e.schema_id) for e in made.versions("t-value")] == [(1, 1), (2, 2)]


def test_a_fingerprint_that_would_name_two_schemas_is_refused(coordination: Coordination) -> None:
    made = registry(coordination)
    made.register("t-value", schema("a"))
    with pytest.raises(SchemaError, match=r"same fingerprint as schema 1: .*default, aliases, logicalType"):
        made.register("t-value", schema("a", default=3))
    with pytest.raises(SchemaError, match="same fingerprint"):
        made.register("u-value", schema("a", aliases=["b"]))
    assert SchemaIdClaims(coordination).ids() == [1]


def test_stray_records_are_logged_and_passed_over(coordination: Coordination, caplog: pytest.LogCaptureFixture) -> None:
    assert list(read_entries(b"{", b"{", "_schemas-0@0", [])) == []
    assert list(read_entries(b'{"keytype":"SCHEMA"}', b'{"id": 1}', "_schemas-0@1", [])) == []
    assert "_schemas-0@0" in caplog.text
    assert "_schemas-0@1" in caplog.text
    key = SchemaEntry("t-value", 1, 1, "").key()
    for value in (
        b"[" * 100_000,
        b'{"subject":"t-value","version":1,"id":Infinity,"schema":""}',
        b'{"subject":"t-value","version":1,"id":2147483648,"schema":""}',  # the next id would be none
        b'{"subject":"t-value","version":1.5,"id":1,"schema":""}',
    ):
        caplog.clear()
        assert list(read_entries(key, value, "_schemas-0@3", [])) == []
        assert "_schemas-0@3: a record that is no schema" in caplog.text
    for key, value in ((None, b"x"), (b'{"keytype":"NOOP"}', b""), (b'{"keytype":"SCHEMA"}', None)):
        assert list(read_entries(key, value, "_schemas-0@2", [])) == []


def test_an_entry_is_what_it_is_read_back_as() -> None:
    for more in ((), ((("n.R", "other", 3),), True, "PROTOBUF")):
        entry = SchemaEntry("a/b-value", 3, 12, schema("a"), *more)
        assert list(read_entries(entry.key(), entry.value(), "", [])) == [entry]


def test_a_schema_that_cannot_be_read_stops_nothing_else(coordination: Coordination) -> None:
    """Issue 29, A1."""
    log = MemoryLog()
    log.append(SchemaEntry("orders-value", 1, 1, '"no type"'))
    log.append(SchemaEntry("t-value", 1, 2, schema("a")))
    made = registry(coordination, log)
    assert made.lookup(SchemaKey(schema_id=2)).schema_id == 2
    with pytest.raises(SchemaError, match=r"^schema 1 \(orders-value, version 1\) cannot be read: .*unknown type"):
        made.lookup(SchemaKey(schema_id=1))
    assert made.register("t-value", schema("a", record="S"), Compatibility.NONE).schema_id == 3  # 1 is not given again
    with pytest.raises(SchemaError, match="orders-value: not BACKWARD compatible: version 1 cannot be checked"):
        made.register("orders-value", schema("b"))
    assert made.register("orders-value", schema("b"), Compatibility.NONE).schema_id == 4
    assert [(e.version, e.schema_id) for e in made.versions("orders-value")] == [(1, 1), (2, 4)]


def test_a_subject_that_is_no_utf_8_stops_nothing_else(
    coordination: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "klamm.schemas")  # pytest-xdist cannot pass the subject on
    log = MemoryLog()
    log.append(SchemaEntry("\ud800", 1, 1, '"\ud800"'))
    made = registry(coordination, log)
    assert made.register("t-value", schema("a")).schema_id == 2
    assert made.subjects() == ["t-value", "\ud800"]


def test_a_deleted_version_is_not_compared_and_may_be_registered_again(coordination: Coordination) -> None:
    """Issue 29, A11."""
    log = MemoryLog()
    made = registry(coordination, log)
    made.register("t-value", schema("a"))
    made.register("t-value", schema("a", "b"), Compatibility.NONE)
    log.append(replace(log.entries[-1], deleted=True))
    made.register("t-value", schema("a", record="R"), Compatibility.FULL)  # as version 1
    assert made.lookup(SchemaKey(schema_id=2)).text == schema("a", "b")
    again = made.register("t-value", schema("a", "b"), Compatibility.NONE)
    assert (again.schema_id, [entry.version for entry in made.versions("t-value")]) == (2, [1, 2, 3])


def test_threads_at_once_agree(coordination: Coordination) -> None:
    """Eight registrars of the same and of different schemas."""
    log = MemoryLog()
    found: list[tuple[str, int]] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def register(number: int) -> None:
        made = registry(coordination, log)
        try:
            barrier.wait(60)
            for name in ("a", "b", "c", f"own{number}"):
                subject = f"{name}-value"
                found.append((name, made.register(subject, schema(name, record=name)).schema_id))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=register, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    ids = dict(found)
    assert len(found) == 32
    assert len(set(found)) == len(ids) == 11
    assert sorted(ids.values()) == list(range(1, 12))
