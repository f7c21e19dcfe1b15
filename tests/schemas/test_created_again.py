"""A schemas topic that was deleted and created again: what a process knew of the old one is not believed any more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.network.metadata import ClusterView
from klamm.core.errors import CoordinationError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.log import SchemaEntry, TopicSchemaLog
from klamm.schemas.registry import SchemaRegistry
from klammtest.guarantees import guarantee
from klammtest.schemas import MemoryLog, embedded, registry
from klammtest.stored_topic import StoredTopic


def schema(name: str) -> str:
    field = {"name": name, "type": ["null", "int"], "default": None}
    return json.dumps({"type": "record", "name": "R", "fields": [field]})


def entry(schema_id: int, name: str, version: int = 1) -> SchemaEntry:
    return SchemaEntry("t-value", version, schema_id, schema(name))


def without_coordination() -> Coordination:
    raise CoordinationError("away")


@pytest.fixture
def coordination(tmp_path: Path) -> Iterator[Coordination]:
    made = embedded(tmp_path)
    yield made
    made.close()


def keep_what_is_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaRegistry, "_forget", lambda _registry: None)


@guarantee("A2", "a schemas topic that was created again gets the schemas it lost", plant=keep_what_is_known)
def test_a_registration_writes_the_schema_again(coordination: Coordination) -> None:
    log = MemoryLog()
    made = registry(coordination, log)
    made.register("t-value", schema("a"))
    log.entries.clear()
    assert made.register("t-value", schema("a")).schema_id == 1
    assert SchemaRegistry(log, without_coordination).lookup(SchemaKey(schema_id=1)).text == schema("a")


def test_an_unknown_key_has_all_lost_schemas_written_again(coordination: Coordination) -> None:
    log = MemoryLog()
    made = registry(coordination, log)
    made.register("t-value", schema("a"))
    made.register("t-value", schema("b"))
    log.entries.clear()
    with pytest.raises(SchemaError, match="unknown schema id 9"):
        made.lookup(SchemaKey(schema_id=9))
    assert log.entries == [entry(1, "a"), entry(2, "b", version=2)]


@guarantee("A2", "nor is a value read by what its id meant in the deleted topic", plant=keep_what_is_known)
def test_an_id_has_the_text_of_the_new_topic() -> None:
    log = MemoryLog()
    log.entries = [entry(1, "old"), entry(2, "gone", version=2)]
    reader = SchemaRegistry(log, without_coordination)
    gone = reader.lookup(SchemaKey(schema_id=2))
    assert reader.lookup(SchemaKey(schema_id=1)).text == schema("old")
    log.entries = [entry(1, "new"), entry(3, "newer", version=2)]
    assert reader.lookup(SchemaKey(schema_id=3)).text == schema("newer")
    found = reader.lookup(SchemaKey(schema_id=1))
    assert found.text == schema("new")
    assert reader.lookup(SchemaKey(md5=found.md5)) == reader.lookup(SchemaKey(fingerprint=found.fingerprint)) == found
    for key in (SchemaKey(schema_id=2), SchemaKey(md5=gone.md5), SchemaKey(fingerprint=gone.fingerprint)):
        with pytest.raises(SchemaError, match="unknown schema"):
            reader.lookup(key)


def test_an_id_that_is_another_schema_in_the_topic_is_not_returned(tmp_path: Path) -> None:
    """The topic is of a coordination other than the one that the claims are in."""
    log = MemoryLog()
    (tmp_path / "own").mkdir()
    own = embedded(tmp_path / "own")
    try:
        made = registry(own, log)
        made.register("t-value", schema("a"))
        log.entries = [SchemaEntry("other-value", 1, 1, schema("x"))]
        with pytest.raises(SchemaError, match=r"t-value: schema 1 is another one in the schemas topic"):
            made.register("t-value", schema("a"))
        log.entries = [entry(5, "a")]
        with pytest.raises(SchemaError, match=r"t-value: schema 1 is not in the schemas topic, whose version 1 is"):
            made.register("t-value", schema("a"))
    finally:
        own.close()


class AbsentTopic(StoredTopic):
    """One that can be deleted; its cluster gives no topic ids, so only its absence shows that it was."""

    def __init__(self) -> None:
        super().__init__("_schemas")
        self.topic_id = None
        self.absent = False

    def metadata(self, topics: Iterable[str], *, timeout_s: float | None = None) -> ClusterView:
        return ClusterView() if self.absent else super().metadata(topics, timeout_s=timeout_s)

    def put(self, *entries: SchemaEntry) -> None:
        self.logs[0].append(*((0, entry.key(), entry.value(), ()) for entry in entries))


def test_a_topic_that_was_absent_is_read_from_its_beginning() -> None:
    topic = AbsentTopic()
    log = TopicSchemaLog(cast("ClusterClient", topic))
    topic.put(entry(1, "old"))
    assert log.read() == [entry(1, "old")]
    topic.absent = True
    assert log.read() == []
    topic.absent = False
    topic.create_again()
    topic.topic_id = None
    topic.put(entry(1, "new"), entry(2, "newer", version=2))
    assert log.read() == [entry(1, "new"), entry(2, "newer", version=2)]
