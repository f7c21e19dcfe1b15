"""A coordination, or a topic of schemas, that is older than the other: no id is given again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.store.schema_store import SchemaStore
from klammtest.guarantees import guarantee
from klammtest.schemas import MemoryTopic, embedded, registry


def schema(name: str) -> str:
    field = {"name": name, "type": ["null", "int"], "default": None}
    return json.dumps({"type": "record", "name": "R", "fields": [field]}, separators=(",", ":"))


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaStore, "next_version", lambda *_: 2)
    patch.setattr(SchemaStore, "last_id", lambda *_: 1)


@guarantee("D14", "a coordination from an older backup gives no schema id again", plant=believe_the_coordination)
def test_ids_and_versions_of_the_topic_are_not_given_again(tmp_path: Path) -> None:
    topic = MemoryTopic()
    for folder, names in (("lost", "abc"), ("restored", "a")):
        (tmp_path / folder).mkdir()
        coordination = embedded(tmp_path / folder)
        topic_then = topic if folder == "lost" else MemoryTopic()
        made = registry(coordination, topic_then)
        for name in names:
            made.register("t-value", schema(name))
        coordination.close()
    restored = embedded(tmp_path / "restored")
    try:
        made = registry(restored, topic)
        assert made.register("t-value", schema("d")).schema_id == 4
        assert made.register("u-value", schema("c")).schema_id == 3
        assert [(one.version, one.schema_id) for one in made.newest_first("t-value")] == [
            (4, 4),
            (3, 3),
            (2, 2),
            (1, 1),
        ]
        found = {i: registry(restored, topic).lookup(SchemaKey(schema_id=i)).text for i in range(1, 5)}
        assert found == {i: schema(name) for i, name in enumerate("abcd", 1)}
    finally:
        restored.close()


def believe_the_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaStore, "raise_last_id", lambda *_: None)


@guarantee("D14", "a schemas topic that lost its records gives no schema id again", plant=believe_the_topic)
def test_ids_of_a_lost_topic_are_not_given_again(tmp_path: Path) -> None:
    topic = MemoryTopic()
    coordination = embedded(tmp_path)
    try:
        for name in "abc":
            registry(coordination, topic).register("t-value", schema(name))
        topic.records[1:] = []
        made = registry(coordination, topic)
        with pytest.raises(SchemaError, match="unknown schema id 2"):
            made.lookup(SchemaKey(schema_id=2))
        assert made.register("t-value", schema("d")).schema_id == 4
        topic.records.clear()
        assert made.register("t-value", schema("d")).schema_id == 5
        assert topic.versions() == [("t-value", 1, 5)]
    finally:
        coordination.close()
