"""A schemas topic that was deleted and created again: what a process knew of the old one is not believed any more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.network.metadata import ClusterView
from klamm.core.errors import CoordinationError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.registry.log import TopicSchemaLog
from klamm.schemas.registry.registry import LogRegistry
from klamm.schemas.store.records import SchemaRecord, encode
from klamm.schemas.store.schema_store import SchemaStore
from klammtest.guarantees import guarantee
from klammtest.schemas import MemoryLog, MemoryTopic, stored
from klammtest.stored_topic import StoredTopic


def schema(name: str) -> str:
    field = {"name": name, "type": ["null", "int"], "default": None}
    return json.dumps({"type": "record", "name": "R", "fields": [field]})


def entry(schema_id: int, name: str, version: int = 1) -> SchemaRecord:
    return stored("t-value", version, schema_id, schema(name))


def without_coordination() -> Coordination:
    raise CoordinationError("away")


def keep_what_is_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogRegistry, "_use", lambda _registry, store: store)


@guarantee("A2", "no value is read by what its id meant in a deleted schemas topic", plant=keep_what_is_known)
def test_an_id_has_the_text_of_the_new_topic() -> None:
    topic = MemoryTopic(entry(1, "old"), entry(2, "gone", version=2))
    reader = LogRegistry(MemoryLog(topic), without_coordination)
    gone = reader.lookup(SchemaKey(schema_id=2))
    assert reader.lookup(SchemaKey(schema_id=1)).text == schema("old")
    topic.records = [entry(1, "new"), entry(3, "newer", version=2)]
    assert reader.lookup(SchemaKey(schema_id=3)).text == schema("newer")
    found = reader.lookup(SchemaKey(schema_id=1))
    assert found.text == schema("new")
    assert reader.lookup(SchemaKey(md5=found.md5)) == reader.lookup(SchemaKey(fingerprint=found.fingerprint)) == found
    for key in (SchemaKey(schema_id=2), SchemaKey(md5=gone.md5), SchemaKey(fingerprint=gone.fingerprint)):
        with pytest.raises(SchemaError, match="unknown schema"):
            reader.lookup(key)


class AbsentTopic(StoredTopic):
    """One that can be deleted; its cluster gives no topic ids, so only its absence shows that it was."""

    def __init__(self) -> None:
        super().__init__("_schemas")
        self.topic_id = None
        self.absent = False

    def metadata(self, topics: Iterable[str], *, timeout_s: float | None = None) -> ClusterView:
        return ClusterView() if self.absent else super().metadata(topics, timeout_s=timeout_s)

    def put(self, *records: SchemaRecord) -> None:
        self.logs[0].append(*((0, *encode(record), ()) for record in records))


def versions(store: SchemaStore) -> list[tuple[int, int, str]]:
    return [(one.schema_id, one.version, one.schema.text) for one in store.versions("t-value")]


def test_a_topic_that_never_was_is_not_created_again() -> None:
    topic = AbsentTopic()
    log = TopicSchemaLog(cast("ClusterClient", topic))
    topic.absent = True
    assert log.read().generation == log.read().generation == 0
    topic.absent = False
    topic.put(entry(1, "first"))
    assert (versions(log.read()), log.read().generation) == ([(1, 1, schema("first"))], 0)


def test_a_topic_that_was_absent_is_read_from_its_beginning() -> None:
    topic = AbsentTopic()
    log = TopicSchemaLog(cast("ClusterClient", topic))
    topic.put(entry(1, "old"))
    assert versions(log.read()) == [(1, 1, schema("old"))]
    topic.absent = True
    assert versions(log.read()) == []
    topic.absent = False
    topic.create_again()
    topic.topic_id = None
    topic.put(entry(1, "new"), entry(2, "newer", version=2))
    assert versions(log.read()) == [(1, 1, schema("new")), (2, 2, schema("newer"))]
