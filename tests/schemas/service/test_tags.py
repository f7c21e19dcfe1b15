"""Tags, metadata and rules that a request changes; the version that the metadata name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from klammtest.registry import RunningRegistry

AVRO = {
    "type": "record", "name": "R", "namespace": "n", "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", {"type": "array", "items": {
            "type": "record", "name": "S", "fields": [{"name": "c", "type": "string"}]
        }}]},
    ],
}  # fmt: skip
OBJECT = {
    "type": "object",
    "definitions": {"x.y": {"type": "object", "properties": {"z": {"type": "string"}}}},
    "properties": {"a": {"type": "array", "items": {"oneOf": [{"type": "object", "properties": {"b": {}}}]}}},
}
PROTO = """syntax = "proto3";
package shop;
message Order { string name = 1; message Line { oneof kind { int32 a = 1; int32 b = 2; } } }
"""


def tags(path: str, *names: str, kind: str = "sr_field") -> dict[str, Any]:
    return {"schemaEntity": {"entityPath": path, "entityType": kind}, "tags": list(names)}


def test_tags_of_avro(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, AVRO)
    path = f"/subjects/{subject}/versions/latest/tags"
    added = [tags("n.R.a", "PII"), tags("S.c", "X", "Y"), tags(".n.R", "T", kind="sr_record")]
    made = registry.post(path, {"newVersion": 2, "tagsToAdd": added, "metadata": {"properties": {"p": "1"}}})
    assert (made.status, made.body["version"]) == (200, 2)
    text = json.loads(made.body["schema"])
    assert text["confluent:tags"] == ["T"]
    assert text["fields"][0] == {"name": "a", "type": "int", "confluent:tags": ["PII"]}
    assert text["fields"][1]["type"][1]["items"]["fields"][0]["confluent:tags"] == ["X", "Y"]
    assert made.body["metadata"] == {"properties": {"p": "1", "confluent:version": "2"}}
    less = registry.post(path, {"tagsToAdd": [tags("n.S.c", "Y", "Z")], "tagsToRemove": [tags("n.S.c", "X", "Q")]})
    field = json.loads(less.body["schema"])["fields"][1]["type"][1]["items"]["fields"][0]
    assert (less.body["version"], field["confluent:tags"]) == (3, ["Y", "Z"])
    assert less.body["metadata"]["properties"] == {"p": "1", "confluent:version": "3"}
    none = registry.post(path, {"tagsToRemove": [tags("n.R.a", "PII"), tags("n.R", "T", kind="sr_record")]})
    text = json.loads(none.body["schema"])
    assert "confluent:tags" not in text
    assert text["fields"][0] == {"name": "a", "type": "int"}


def test_tags_of_json_schema(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, OBJECT, schemaType="JSON")
    added = [
        tags("object.a.array.oneof.0.object.b", "PII"), tags("object.definitions.x.y.object.z", "Q"),
        tags("object", "T", kind="sr_record"),
    ]  # fmt: skip
    made = registry.post(f"/subjects/{subject}/versions/1/tags", {"tagsToAdd": added})
    text = json.loads(made.body["schema"])
    assert text["properties"]["a"]["items"]["oneOf"][0]["properties"]["b"] == {"confluent:tags": ["PII"]}
    assert text["definitions"]["x.y"]["properties"]["z"] == {"type": "string", "confluent:tags": ["Q"]}
    assert text["confluent:tags"] == ["T"]


def test_tags_of_protobuf(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, PROTO, schemaType="PROTOBUF")
    path = f"/subjects/{subject}/versions/latest/tags"
    added = [tags("Order.name", "A", "B"), tags("Order.Line.kind.b", "C"), tags("Order.Line", "D", kind="sr_record")]
    made = registry.post(path, {"tagsToAdd": added})
    assert made.status == 200, made.body
    assert made.body["schema"] == (
        'syntax = "proto3";\npackage shop;\n\nimport "confluent/meta.proto";\n\nmessage Order {\n'
        '  string name = 1 [(confluent.field_meta) = { tags: "A" tags: "B" }];\n  message Line {\n'
        '    option (confluent.message_meta) = { tags: "D" };\n    oneof kind {\n      int32 a = 1;\n'
        '      int32 b = 2 [(confluent.field_meta) = { tags: "C" }];\n    }\n  }\n}\n'
    )
    less = registry.post(path, {"tagsToRemove": [tags("Order.name", "A"), tags("Order.Line", "D", kind="sr_record")]})
    assert '  string name = 1 [(confluent.field_meta) = { tags: "B" }];' in less.body["schema"]
    assert "message_meta" not in less.body["schema"]


def test_tags_that_come_with_a_schema(registry: RunningRegistry, subject: str) -> None:
    made = registry.register(subject, AVRO, schemaTagsToAdd=[tags("n.R.a", "PII")])
    assert json.loads(made.body["schema"])["fields"][0]["confluent:tags"] == ["PII"]
    assert made.body["metadata"] == {"properties": {"confluent:version": "1"}}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"tagsToAdd": [tags("n.R.none", "T")]}, 42201), ({"tagsToAdd": [tags("", "T")]}, 42201),
        ({"tagsToAdd": [tags("n.R", "T", kind="other")]}, 422), ({"tagsToAdd": 7}, 422), ({"tagsToAdd": [{}]}, 422),
        ({"tagsToAdd": [{"schemaEntity": {"entityPath": "n.R.a", "entityType": "sr_field"}, "tags": [1]}]}, 422),
        ({"newVersion": 5}, 42201), ({"newVersion": -7}, 422), ({"rulesToRemove": "r"}, 422),
        ({"ruleSet": {}, "rulesToRemove": ["r"]}, 42210),
        ({"rulesToMerge": {"domainRules": [{"name": "1r", "type": "CEL", "mode": "WRITE"}]}}, 42210),
    ],
)  # fmt: skip
def test_changes_that_are_refused(registry: RunningRegistry, subject: str, body: dict[str, Any], code: int) -> None:
    registry.register(subject, AVRO)
    refused = registry.post(f"/subjects/{subject}/versions/1/tags", body)
    assert refused.code == code, refused.body
    assert registry.get(f"/subjects/{subject}/versions").body == [1]


def test_tags_of_what_is_not_there(registry: RunningRegistry, subject: str) -> None:
    assert registry.post(f"/subjects/{subject}/versions/1/tags", {}).code == 40401
    registry.register(subject, AVRO)
    assert registry.post(f"/subjects/{subject}/versions/2/tags", {}).code == 40402
    assert registry.post(f"/subjects/{subject}/versions/0/tags", {}).code == 42202
    assert registry.get(f"/subjects/{subject}/versions/1/tags").status == 405


def test_rules_are_merged_and_removed(registry: RunningRegistry, subject: str) -> None:
    def rule(name: str, kind: str) -> dict[str, Any]:
        return {"name": name, "kind": "CONDITION", "mode": "WRITE", "type": kind}

    registry.register(subject, AVRO, ruleSet={"domainRules": [rule("one", "CEL"), rule("two", "CEL")]})
    path = f"/subjects/{subject}/versions/latest/tags"
    merged = {"domainRules": [rule("two", "NEW"), rule("three", "CEL")]}
    made = registry.post(path, {"rulesToMerge": merged, "rulesToRemove": ["one"]})
    assert [(one["name"], one["type"]) for one in made.body["ruleSet"]["domainRules"]] == [
        ("two", "NEW"), ("three", "CEL"),
    ]  # fmt: skip


def test_metadata_name_the_version_that_was_sent(registry: RunningRegistry, subject: str) -> None:
    first = registry.register(subject, AVRO, version=1)
    assert first.body["metadata"] == {"properties": {"confluent:version": "1"}}
    assert registry.register(subject, AVRO).body["id"] == first.body["id"], "found without its version"
    assert registry.register(subject, AVRO, version=-1).body["version"] == 1
    assert registry.post(f"/subjects/{subject}", {"schema": json.dumps(AVRO)}).body["version"] == 1
    again = registry.register(subject, AVRO, version=2)
    assert (again.body["version"], again.body["metadata"]) == (2, {"properties": {"confluent:version": "2"}})
    assert registry.register(subject, AVRO, version=7).code == 42201
    more = {**AVRO, "doc": "is another text, and its metadata are those of the version before"}
    assert registry.register(subject, more).body["metadata"] == {"properties": {"confluent:version": "3"}}
    plain = registry.register(f"{subject}-plain", AVRO).body
    sent = {"schema": json.dumps(AVRO), "metadata": {"properties": {"confluent:version": "1"}}}
    assert registry.post(f"/subjects/{subject}-plain", sent).body["id"] == plain["id"]
    sent["metadata"]["properties"]["confluent:version"] = "9"  # type: ignore[index]
    assert registry.post(f"/subjects/{subject}-plain", sent).code == 40403


def test_metadata_alone_make_a_version_of_the_same_text(registry: RunningRegistry, subject: str) -> None:
    assert registry.register(subject, "  ").body["message"] == "Empty schema"
    registry.register(subject, AVRO, metadata={"tags": {"R.a": ["one"]}, "properties": {"p": "1"}})
    config = {"defaultMetadata": {"tags": {"R.a": ["under"], "R.b": ["two"]}}}
    registry.put(f"/config/{subject}", config)
    made = registry.register(subject, "", metadata={"tags": {"R.a": ["three"]}})
    assert json.loads(made.body["schema"]) == registry.get(f"/subjects/{subject}/versions/1/schema").body
    assert made.body["metadata"] == {"tags": {"R.a": ["three"], "R.b": ["two"]}}, "the tags of a path are replaced"


def test_a_long_old_schema_is_cut(registry: RunningRegistry, subject: str) -> None:
    text = json.dumps(
        {"type": "enum", "name": "E", "symbols": [f"S{n:04}" for n in range(2000)]}, separators=(",", ":")
    )
    registry.register(subject, text)
    refused = registry.register(subject, '"int"').body["message"]
    assert f"{{oldSchema: <truncated> '{text[:10240]}...'}}, {{validateFields:" in refused
