"""Ids: one per schema, whoever registers first; immutable; a write that was left undone is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import CoordinationError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.avro.canonical import canonical_text
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.registry.registry import LogRegistry
from klamm.schemas.store.config import Config
from klamm.schemas.store.records import ConfigRecord, SchemaTombstone
from klammtest.schemas import MemoryLog, MemoryTopic, embedded, registry, stored


def schema(*names: str, record: str = "R", **more: Any) -> str:
    return json.dumps({"type": "record", "name": record, "fields": [{"name": n, "type": "int", **more} for n in names]})


@pytest.fixture
def coordination(tmp_path: Path) -> Iterator[Coordination]:
    made = embedded(tmp_path)
    yield made
    made.close()


def without_coordination() -> Coordination:
    raise CoordinationError("away")


def test_same_schema_same_id_and_the_text_is_the_canonical_one(coordination: Coordination) -> None:
    topic = MemoryTopic()
    first = registry(coordination, topic).register("t-value", schema("a"))
    again = registry(coordination, topic).register("t-value", schema("a").replace(" ", "\n"))
    assert first == again
    assert again.text == canonical_text(schema("a")) == schema("a").replace(" ", "")
    assert topic.versions() == [("t-value", 1, 1)]


def test_a_known_schema_needs_no_coordination(coordination: Coordination) -> None:
    topic = MemoryTopic()
    first = registry(coordination, topic).register("t-value", schema("a"))
    assert LogRegistry(MemoryLog(topic), without_coordination).register("t-value", schema("a")) == first


def test_one_schema_may_belong_to_two_subjects(coordination: Coordination) -> None:
    made = registry(coordination)
    assert made.register("t-value", schema("a")) == made.register("u-value", schema("a"))
    assert made.subjects() == ["t-value", "u-value"]


def test_lookup_by_each_key_reads_the_topic_once(coordination: Coordination) -> None:
    topic = MemoryTopic()
    written = registry(coordination, topic).register("t-value", schema("a"))
    reader = registry(coordination, topic)
    topic.reads = 0
    for _ in range(3):
        assert reader.lookup(SchemaKey(schema_id=1)) == written
        assert reader.lookup(SchemaKey(md5=written.md5)) == written
        assert reader.lookup(SchemaKey(fingerprint=written.fingerprint)) == written
    assert topic.reads == 1


def test_an_unknown_key_is_an_error_and_not_looked_for_at_once_again(coordination: Coordination) -> None:
    now = [0.0]
    topic = MemoryTopic()
    reader = LogRegistry(MemoryLog(topic), lambda: coordination, lambda: now[0])
    for key in (SchemaKey(schema_id=7), SchemaKey(md5=b"m" * 16), SchemaKey(fingerprint=b"f" * 8)):
        with pytest.raises(SchemaError, match="unknown schema"):
            reader.lookup(key)
    reads = topic.reads
    with pytest.raises(SchemaError, match="unknown schema id 7"):
        reader.lookup(SchemaKey(schema_id=7))
    assert topic.reads == reads
    topic.records.append(stored("t-value", 1, 7, schema("a")))
    now[0] = 60.0
    assert reader.lookup(SchemaKey(schema_id=7)).text == schema("a")


def test_a_reader_without_coordination_has_the_topic_alone() -> None:
    reader = LogRegistry(MemoryLog(MemoryTopic(stored("t-value", 1, 3, schema("a")))), without_coordination)
    assert reader.lookup(SchemaKey(schema_id=3)).schema_id == 3
    with pytest.raises(SchemaError, match="unknown schema id 4"):
        reader.lookup(SchemaKey(schema_id=4))


def test_a_write_is_decided_on_all_that_was_written_before() -> None:
    topic = MemoryTopic()
    slow, fast = MemoryLog(topic), MemoryLog(topic)
    slow.read()
    fast.read()
    assert fast.append([stored("t-value", 1, 1, schema("a"))])
    assert not slow.append([stored("t-value", 1, 1, schema("b"))])
    assert slow.read().next_version("t-value") == 2
    assert slow.append([stored("t-value", 2, 2, schema("b"))])
    assert topic.versions() == [("t-value", 1, 1), ("t-value", 2, 2)]


def test_an_incompatible_version_is_refused_and_leaves_nothing(coordination: Coordination) -> None:
    topic = MemoryTopic()
    made = registry(coordination, topic)
    made.register("t-value", schema("a"))
    with pytest.raises(SchemaError, match=r"t-value: not BACKWARD compatible: .* version 1: field b"):
        made.register("t-value", schema("a", "b"))
    assert topic.versions() == [("t-value", 1, 1)]
    topic.records.append(ConfigRecord("t-value", Config(compatibility_level=Compatibility.FORWARD)))
    assert made.register("t-value", schema("a", "b")).schema_id == 2
    assert [(one.version, one.schema_id) for one in made.newest_first("t-value")] == [(2, 2), (1, 1)]


def test_the_level_of_the_first_registration_is_the_subjects(
    coordination: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    topic = MemoryTopic()
    made = registry(coordination, topic)
    made.register("t-value", schema("a"), Compatibility.FORWARD)
    assert topic.records[0] == ConfigRecord("t-value", Config(compatibility_level=Compatibility.FORWARD))
    made.register("t-value", schema("a", "b"), Compatibility.BACKWARD)
    assert "t-value: compatibility is FORWARD in the registry" in caplog.text
    with pytest.raises(SchemaError, match="not FORWARD compatible"):
        made.register("t-value", schema("c"))


def test_a_changed_default_is_another_schema_of_the_same_fingerprint(coordination: Coordination) -> None:
    """Issue 32: it was refused, and is how schemas change most often."""
    made = registry(coordination)
    first = made.register("t-value", schema("a"))
    second = made.register("t-value", schema("a", default=3))
    third = made.register("u-value", schema("a", aliases=["b"]))
    assert [one.schema_id for one in (first, second, third)] == [1, 2, 3]
    assert first.fingerprint == second.fingerprint == third.fingerprint
    key = SchemaKey(fingerprint=first.fingerprint)
    assert made.lookup(key, "t-value") == second
    assert made.lookup(key, "u-value") == third
    assert made.lookup(key) == third


def test_a_fingerprint_of_two_schemas_that_are_read_differently_is_refused(coordination: Coordination) -> None:
    made = registry(coordination)
    first = made.register("t-value", schema("a"))
    dates = schema("a").replace('"type": "int"', '"type": {"type": "int", "logicalType": "date"}')
    made.register("t-value", dates)
    with pytest.raises(SchemaError, match=r"names the schemas 1, 2, which differ in their logical types"):
        made.lookup(SchemaKey(fingerprint=first.fingerprint), "t-value")


def test_a_schema_that_cannot_be_read_stops_nothing_else(coordination: Coordination) -> None:
    """Issue 29, A1."""
    topic = MemoryTopic(stored("orders-value", 1, 1, '"no type"'), stored("t-value", 1, 2, schema("a")))
    made = registry(coordination, topic)
    assert made.lookup(SchemaKey(schema_id=2)).schema_id == 2
    with pytest.raises(SchemaError, match=r"^schema 1 \(orders-value, version 1\) cannot be read: .*unknown type"):
        made.lookup(SchemaKey(schema_id=1))
    topic.records.append(ConfigRecord(None, Config(compatibility_level=Compatibility.NONE)))
    assert made.register("t-value", schema("a", record="S")).schema_id == 3  # 1 is not given again
    topic.records.append(ConfigRecord(None, None))
    with pytest.raises(SchemaError, match="not BACKWARD compatible: version 1 cannot be checked: schema 1"):
        made.register("orders-value", schema("b"))
    topic.records.append(ConfigRecord("orders-value", Config(compatibility_level=Compatibility.NONE)))
    assert made.register("orders-value", schema("b")).schema_id == 4
    assert [(one.version, one.schema_id) for one in made.newest_first("orders-value")] == [(2, 4), (1, 1)]


def test_a_deleted_version_is_not_compared_and_may_be_registered_again(coordination: Coordination) -> None:
    """Issue 29, A11."""
    topic = MemoryTopic(ConfigRecord(None, Config(compatibility_level=Compatibility.NONE)))
    made = registry(coordination, topic)
    made.register("t-value", schema("a"))
    second = made.register("t-value", schema("a", "b"))
    topic.records.append(stored("t-value", 2, 2, second.text, deleted=True))
    topic.records.append(ConfigRecord(None, Config(compatibility_level=Compatibility.FULL)))
    assert made.register("t-value", schema("a")).schema_id == 1
    made.register("t-value", schema("a", aliases=["c"]))
    assert made.lookup(SchemaKey(schema_id=2)) == second
    topic.records.append(ConfigRecord(None, Config(compatibility_level=Compatibility.NONE)))
    again = made.register("t-value", schema("a", "b"))
    assert (again.schema_id, [one.version for one in made.newest_first("t-value")]) == (2, [4, 3, 1])
    assert topic.records[-1] == SchemaTombstone("t-value", 2)


def test_threads_at_once_agree(coordination: Coordination) -> None:
    """Eight registrars of the same and of different schemas."""
    topic = MemoryTopic()
    found: list[tuple[str, int]] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def register(number: int) -> None:
        made = registry(coordination, topic)
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
