"""Each endpoint of the registry: what it answers, with the codes and texts of Confluent's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from klammtest.registry import RunningRegistry


def record(*fields: str, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of optional fields; `!` before a name makes it required."""
    made = [
        {"name": field[1:], "type": "int"} if field[0] == "!" else {"name": field, "type": "int", "default": 0}
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": made, **more}


def compact(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"))


def test_a_schema_is_registered_once_and_found_everywhere(registry: RunningRegistry, subject: str) -> None:
    text = json.dumps(record("!a"), indent=4)
    first = registry.register(subject, text)
    assert (first.status, first.body["version"], first.body["schema"]) == (200, 1, compact(record("!a")))
    assert registry.register(subject, text).body == first.body
    number = first.body["id"]
    found = registry.get(f"/schemas/ids/{number}").body
    assert {key: found[key] for key in ("schema", "schemaType", "guid")} == {
        "schema": compact(record("!a")), "schemaType": "AVRO", "guid": first.body["guid"],
    }  # fmt: skip
    assert "subject" not in found
    assert registry.get(f"/schemas/ids/{number}?subject={subject}&fetchMaxId=TRUE").body["subject"] == subject
    assert registry.get(f"/schemas/ids/{number}/schema").body == record("!a")
    versions = registry.get(f"/schemas/ids/{number}/versions").body
    assert {"subject": subject, "version": 1} in versions
    assert subject in registry.get(f"/schemas/ids/{number}/subjects").body
    assert registry.get(f"/schemas/guids/{first.body['guid']}").body["schema"] == compact(record("!a"))
    assert registry.get(f"/schemas/guids/{first.body['guid']}/ids").body == [{"context": ".", "id": number}]
    for version in ("1", "latest", "-1"):
        answer = registry.get(f"/subjects/{subject}/versions/{version}").body
        assert (answer["subject"], answer["version"], answer["id"]) == (subject, 1, number)
    assert registry.get(f"/subjects/{subject}/versions/1/schema").body == record("!a")
    assert registry.get(f"/subjects/{subject}/versions").body == [1]
    looked = registry.post(f"/subjects/{subject}", {"schema": text, "unknown": "is ignored"})
    assert (looked.body["id"], looked.body["version"]) == (number, 1)


def test_the_same_text_has_one_id_in_all_subjects(registry: RunningRegistry, subject: str) -> None:
    ids = {registry.register(f"{subject}-{n}", record("!one", name=f"N{subject[8:]}")).body["id"] for n in range(3)}
    assert len(ids) == 1
    with_doc = registry.register(subject, record("!one", name=f"N{subject[8:]}", doc="is another schema"))
    assert with_doc.body["id"] not in ids


def test_another_registry_answers_what_one_has(registry: RunningRegistry, other: RunningRegistry, subject: str) -> None:
    for number in range(20):
        one, two = (registry, other) if number % 2 else (other, registry)
        made = one.register(subject, record(*(f"f{n}" for n in range(number + 1))))
        assert (made.status, made.body["version"]) == (200, number + 1)
        assert two.get(f"/schemas/ids/{made.body['id']}").status == 200
        assert two.get(f"/subjects/{subject}/versions/{number + 1}").body["id"] == made.body["id"]


def test_an_incompatible_schema_is_refused(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, record("!a"))
    refused = registry.register(subject, record("!a", "!b"))
    assert (refused.status, refused.code) == (409, 40901)
    assert refused.body["message"] == (
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'b'}, {oldSchemaVersion: 1}, "
        f"{{oldSchema: '{compact(record('!a'))}'}}, {{validateFields: 'false', compatibility: 'BACKWARD'}}]"
    )
    path = f"/compatibility/subjects/{subject}/versions"
    for version in ("/latest", "/1", ""):
        assert registry.post(path + version, {"schema": compact(record("!a", "b"))}).body == {"is_compatible": True}
        answer = registry.post(f"{path}{version}?verbose=true", {"schema": compact(record("!b"))}).body
        assert answer["is_compatible"] is False
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["messages"][0]
    assert registry.post(f"{path}/7", {"schema": '"int"'}).code == 40402
    assert registry.post("/compatibility/subjects/nobody/versions/latest", {"schema": '"int"'}).body["is_compatible"]
    assert registry.post("/compatibility/subjects/nobody/versions", {"schema": '"int"'}).body["is_compatible"]
    assert registry.post(f"{path}/latest", {"schema": "{"}).code == 42201
    assert registry.post(f"{path}/latest?verbose=true", {"schema": "{"}).body["is_compatible"] is False
    forced = registry.post(f"/subjects/{subject}/versions?force=true", {"schema": compact(record("!b"))})
    assert forced.body["version"] == 2


@pytest.mark.parametrize(
    "schema",
    [
        "", "{", '{"type":"record","name":"R"}', '{"type":"record","name":"R-x","fields":[]}', '["int","int"]',
        '{"type":"fixed","name":"F","size":-1}', '"unknown.Type"', "[" * 100_000, '{"type":"enum","name":"int"}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"string","default":null}]}',
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused(registry: RunningRegistry, subject: str, schema: str) -> None:
    refused = registry.register(subject, schema)
    assert (refused.status, refused.code) == (422, 42201)
    assert len(refused.body["message"]) < 1000
    assert registry.get(f"/subjects/{subject}/versions").code == 40401


def test_deleting_a_version(registry: RunningRegistry, subject: str) -> None:
    for fields in (["!a"], ["!a", "b"], ["!a", "b", "c"]):
        registry.register(subject, record(*fields, name=f"D{subject[8:]}"))
    path = f"/subjects/{subject}/versions"
    assert registry.delete(f"{path}/2?permanent=true").code == 40407
    number = registry.get(f"{path}/2").body["id"]
    assert registry.delete(f"{path}/2").body == 2
    assert registry.delete(f"{path}/2").body == {
        "error_code": 40406,
        "message": f"Subject '{subject}' Version 2 was soft deleted.Set permanent=true to delete permanently",
    }
    assert registry.get(path).body == [1, 3]
    assert registry.get(f"{path}?deleted=true").body == [1, 2, 3]
    assert registry.get(f"{path}?deletedOnly=true").body == [2]
    assert registry.get(f"{path}?deletedAsNegative=true").body == [1, -2, 3]
    assert registry.get(f"{path}/2").body == {"error_code": 40402, "message": "Version 2 not found."}
    assert registry.get(f"{path}/2?deleted=true").body["deleted"] is True
    assert registry.get(f"/schemas/ids/{number}").status == 200, "its id resolves"
    assert registry.delete(f"{path}/2?permanent=true").body == 2
    assert registry.get(f"/schemas/ids/{number}").body["message"] == f"Schema {number} not found"
    assert registry.delete(f"{path}/latest").body == 3
    assert registry.get(f"{path}/latest").body["version"] == 1
    again = registry.register(subject, record("!a", "d", name=f"D{subject[8:]}"))
    assert again.body["version"] == 4
    assert again.body["id"] > number, "no id is given again"


def test_deleting_a_subject(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, record("!a"))
    registry.register(subject, record("!a", "b"))
    registry.put(f"/config/{subject}", {"compatibility": "none"})
    assert registry.delete(f"/subjects/{subject}?permanent=true").code == 40405
    assert registry.delete(f"/subjects/{subject}").body == [1, 2]
    assert registry.delete(f"/subjects/{subject}").code == 40404
    assert subject not in registry.get("/subjects").body
    assert subject in registry.get("/subjects?deleted=true").body
    assert subject in registry.get("/subjects?deletedOnly=true").body
    assert registry.get(f"/subjects/{subject}/versions").body == {
        "error_code": 40401, "message": f"Subject '{subject}' not found.",
    }  # fmt: skip
    assert registry.register(subject, '"int"').body["version"] == 3
    registry.delete(f"/subjects/{subject}")
    assert registry.delete(f"/subjects/{subject}?permanent=true").body == [1, 2, 3]
    assert registry.get(f"/config/{subject}").code == 40408, "the configuration went with the last version"
    assert registry.delete(f"/subjects/{subject}").code == 40401
    assert registry.register(subject, '"int"').body["version"] == 1


def test_references(registry: RunningRegistry, subject: str) -> None:
    inner = record("!x", name="Inner", namespace="n")
    registry.register(f"{subject}-inner", inner)
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "i", "type": "n.Inner"}]}
    reference = {"name": "n.Inner", "subject": f"{subject}-inner", "version": -1}
    missing = registry.register(subject, outer, references=[{**reference, "version": 9}])
    assert missing.code == 42201
    assert registry.register(subject, outer).code == 42201, "the type is not known without the reference"
    made = registry.register(subject, outer, references=[reference])
    assert made.body["references"] == [{**reference, "version": 1}]
    assert registry.get(f"/subjects/{subject}-inner/versions/1/referencedby").body == [made.body["id"]]
    refused = registry.delete(f"/subjects/{subject}-inner/versions/1")
    assert refused.body == {
        "error_code": 42206,
        "message": "One or more references exist to the schema "
        f"{{magic=1,keytype=SCHEMA,subject={subject}-inner,version=1}}.",
    }
    assert registry.delete(f"/subjects/{subject}-inner").code == 42206
    resolved = registry.get(f"/subjects/{subject}/versions/1?format=resolved").body["schema"]
    assert json.loads(resolved)["fields"][0]["type"]["name"] == "Inner"
    whole = json.dumps({**outer, "fields": [{"name": "i", "type": inner}]})
    assert registry.post(f"/subjects/{subject}", {"schema": whole}).body["id"] == made.body["id"]


def test_configuration(registry: RunningRegistry, subject: str) -> None:
    assert registry.get("/config").body == {"compatibilityLevel": "BACKWARD"}
    assert registry.get(f"/config/{subject}").body == {
        "error_code": 40408, "message": f"Subject '{subject}' does not have subject-level compatibility configured",
    }  # fmt: skip
    assert registry.get(f"/config/{subject}?defaultToGlobal=true").body == {"compatibilityLevel": "BACKWARD"}
    changed = registry.put(f"/config/{subject}", {"compatibility": "full_transitive", "normalize": True})
    assert changed.body == {"normalize": True, "compatibility": "FULL_TRANSITIVE"}
    assert registry.put(f"/config/{subject}", {"normalize": None}).body == {"compatibility": "FULL_TRANSITIVE"}
    wrong = registry.put(f"/config/{subject}", {"compatibility": "SOMETIMES"})
    assert (wrong.code, wrong.body["message"].partition(".")[0]) == (42203, "Invalid compatibility level")
    assert registry.delete(f"/config/{subject}").body == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.delete(f"/config/{subject}").code == 40401


def test_modes(registry: RunningRegistry, subject: str) -> None:
    assert registry.get("/mode").body == {"mode": "READWRITE"}
    assert registry.get(f"/mode/{subject}").code == 40409
    assert registry.get(f"/mode/{subject}?defaultToGlobal=true").body == {"mode": "READWRITE"}
    assert registry.put(f"/mode/{subject}", {"mode": "sometimes"}).code == 42204
    assert registry.put(f"/mode/{subject}", {"mode": "READONLY"}).body == {"mode": "READONLY"}
    refused = registry.register(subject, '"int"')
    assert refused.body == {"error_code": 42205, "message": f"Subject {subject} in context . is in read-only mode"}
    assert registry.put(f"/config/{subject}", {"compatibility": "NONE"}).code == 42205
    assert registry.put(f"/mode/{subject}", {"mode": "IMPORT"}).status == 200
    assert registry.register(subject, '"int"').code == 42205, "IMPORT needs an id"
    imported = registry.register(subject, '"int"', id=4711 + int(subject[8:]), version=3)
    assert (imported.body["id"], imported.body["version"]) == (4711 + int(subject[8:]), 3)
    taken = registry.register(subject, '"long"', id=imported.body["id"], version=4)
    assert (taken.code, taken.body["message"]) == (
        42205, f"Overwrite new schema with id {imported.body['id']} in context . is not permitted.",
    )  # fmt: skip
    assert registry.delete(f"/mode/{subject}").body == {"mode": "IMPORT"}
    assert registry.register(subject, '"string"').code == 40901
    assert registry.put(f"/mode/{subject}", {"mode": "IMPORT"}).body["message"].endswith("found existing subjects")


def test_contexts(registry: RunningRegistry, subject: str) -> None:
    context = f".c{subject[8:]}"
    made = registry.register(f":{context}:{subject}", '"int"')
    assert made.body["id"] == 1, "ids are counted in each context"
    assert context in registry.get("/contexts").body
    assert registry.get(f"/contexts/{context}/subjects/{subject}/versions/1").body["id"] == 1
    assert registry.get(f"/contexts/{context}/subjects").body == [f":{context}:{subject}"]
    assert registry.get(f"/schemas/ids/1?subject=:{context}:{subject}").body["schema"] == '"int"'
    assert registry.get(f"/contexts/{context}/schemas/ids/1").body["schema"] == '"int"'
    assert registry.get(f"/subjects/{subject}/versions/1").body["subject"] == f":{context}:{subject}"
    assert registry.delete(f"/contexts/{context}").code == 42211
    registry.delete(f"/subjects/:{context}:{subject}")
    registry.delete(f"/subjects/:{context}:{subject}?permanent=true")
    assert registry.delete(f"/contexts/{context}").status == 204
    assert context not in registry.get("/contexts").body


@pytest.mark.parametrize("name", ["a/b", "a b", "größe", "a+b", "%", "a?b", "a:b"])
def test_subjects_are_one_segment(registry: RunningRegistry, subject: str, name: str) -> None:
    from urllib.parse import quote

    path = f"/subjects/{quote(name + subject, safe='')}"
    assert registry.post(f"{path}/versions", {"schema": '"int"'}).status == 200
    assert registry.get(f"{path}/versions/1").body["subject"] == name + subject
    assert registry.get(f"{path}/versions/").body == [1]


@pytest.mark.parametrize("name", ["%0d%0aX", "a%00", "__GLOBAL", "__EMPTY", ":.__GLOBAL:"])
def test_subjects_that_are_none(registry: RunningRegistry, name: str) -> None:
    refused = registry.post(f"/subjects/{name}/versions", {"schema": '"int"'})
    assert (refused.status, refused.code) == (422, 42208)


@pytest.mark.parametrize("version", ["0", "-2", "2147483648", "one", "1.0", "%201", "9" * 5000])
def test_versions_that_are_none(registry: RunningRegistry, version: str) -> None:
    refused = registry.get(f"/subjects/s/versions/{version}")
    assert refused.code == 42202
    assert registry.get("/schemas/ids/2147483648").status == 404
    assert registry.get("/schemas/ids/-1").status == 404


def test_lists_have_pages(registry: RunningRegistry, subject: str) -> None:
    for number in range(5):
        registry.register(f"{subject}.{number}", '"int"')
    names = [f"{subject}.{number}" for number in range(5)]
    assert registry.get(f"/subjects?subjectPrefix={subject}.").body == names
    assert registry.get(f"/subjects?subjectPrefix={subject}.&offset=1&limit=2").body == names[1:3]
    assert registry.get(f"/subjects?subjectPrefix={subject}.&offset=3&limit=-1").body == names[3:]
    assert [one["subject"] for one in registry.get(f"/schemas?subjectPrefix={subject}.&limit=2").body] == names[:2]
    assert registry.get("/subjects?limit=many").status == 422


def test_an_alias_stands_for_a_subject(registry: RunningRegistry, subject: str) -> None:
    registry.register(subject, '"int"')
    registry.put(f"/config/{subject}-alias", {"alias": subject})
    assert registry.get(f"/subjects/{subject}-alias/versions/1").body["subject"] == subject
    assert registry.get(f"/config/{subject}-alias").body == {"alias": subject}


def test_metadata_and_rules(registry: RunningRegistry, subject: str) -> None:
    metadata = {"properties": {"owner": "us"}, "tags": {"R.a": ["PII"]}}
    rules = {"domainRules": [{"name": "check", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}]}
    made = registry.register(subject, record("!a"), metadata=metadata, ruleSet=rules)
    assert made.body["metadata"] == metadata
    assert made.body["ruleSet"]["domainRules"][0]["expr"] == "true"
    next_one = registry.register(subject, record("!a", "b"))
    assert next_one.body["metadata"] == metadata, "the version before's"
    found = registry.get(f"/subjects/{subject}/metadata?key=owner&value=us").body
    assert found["version"] == 2
    assert registry.get(f"/subjects/{subject}/metadata?key=owner&value=them").code == 40403
    rules["domainRules"][0]["mode"] = "UPGRADE"
    assert registry.register(subject, record("!a", "c"), ruleSet=rules).code == 42210


def test_normalize(registry: RunningRegistry, subject: str) -> None:
    one = '{"type":"record","name":"N","namespace":"n","fields":[{"name":"a","type":"int","b":1,"a":2}]}'
    two = '{"fields":[{"type":{"type":"int"},"a":2,"b":1,"name":"a"}],"name":"n.N","type":"record"}'
    first = registry.post(f"/subjects/{subject}/versions?normalize=True", {"schema": one}).body
    assert registry.post(f"/subjects/{subject}/versions?normalize=true", {"schema": two}).body["id"] == first["id"]
    assert first["schema"].startswith('{"type":"record","name":"N","namespace":"n",')


def test_json_schema(registry: RunningRegistry, subject: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    made = registry.register(subject, schema, schemaType="JSON")
    assert made.body["schemaType"] == "JSON"
    narrowed = {**schema, "properties": {"a": {"type": "integer"}}}
    refused = registry.register(subject, narrowed, schemaType="JSON")
    assert refused.code == 40901
    assert "TYPE_CHANGED" in refused.body["message"]
    assert registry.register(subject, '"int"').body["message"].count("different schema type") == 1
    assert registry.register(subject, '{"type":"nothing"}', schemaType="JSON").code == 42201
    assert registry.register(subject, "x", schemaType="XML").code == 42201
