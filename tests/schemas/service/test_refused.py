"""What must be refused, case by case.

| case | test |
|---|---|
| a body over the limit, declared or sent; a slow body | `test_a_long_body_…`, `test_a_slow_body_…` |
| a head that does not end, a connection without a request | `tests/core/test_http_service.py` |
| deep JSON (10^5 levels), as a body and as a schema; 10^5 branches; an Avro name of 1 MB; an Avro default within \
itself; nested messages (10^5); import loops; `$ref` to a file or an address; an import of a file | \
`test_a_hostile_schema_…`, `test_a_hostile_reference_…`, `tests/schemas/test_hostile_texts.py`, \
`json_schema/test_json_schema.py`, `protobuf/test_protobuf_schema.py` |
| a regular expression that explodes: never run | `test_a_pattern_is_never_run` here and of `json_schema` |
| subjects: `../../x`, `%00`, CR and LF in the path, the answer's head and the log | `test_subjects_…`, \
`test_endpoints.py::test_subjects_that_are_none` |
| two lengths in one request | `test_http.py::test_a_request_of_two_lengths_is_refused` |
| ids and versions: 2^31, negative, 0, -2, no number | `test_numbers_…`, `test_numbers_in_a_body_…` |
| text that is no UTF-8, members of another type | `test_members_…` |
| an id that is another's, a version that is another's, in IMPORT | `test_import_does_not_overwrite` |

The registry knows no users yet, so what one without a right must not see or do is not among them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.codecs import CodecTable
from klamm.schemas.service.api import RegistryApi
from klamm.schemas.service.app import RegistryApp
from klamm.schemas.service.config import RegistryConfig
from klamm.schemas.service.topic import SchemaTopic
from klammtest.broker import RunningBroker
from klammtest.registry import TYPE, RunningRegistry

HEAD = 'syntax = "proto3"; '
BACK = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["R", "null"], "default": {}}]}
HOSTILE: dict[str, tuple[str, str]] = {
    "lists": ("AVRO", "[" * 100_000),
    "branches": ("AVRO", "[" + '"int",' * 100_000 + "null]"),
    "a long name": ("AVRO", f'{{"type":"fixed","name":"{"x" * 1_000_000}","size":1}}'),
    "a default within itself": ("AVRO", json.dumps(BACK)),
    "surrogates": ("AVRO", '{"type":"record","name":"A","doc":"\\ud800","fields":[]}'),
    "objects": ("JSON", '{"not":' * 100_000 + "{}" + "}" * 100_000),
    "combinations": ("JSON", f'{{"oneOf":[{"{}," * 100_000}{{}}]}}'),
    "a file": ("JSON", '{"$ref":"file:///etc/passwd"}'),
    "an address": ("JSON", '{"$ref":"http://169.254.169.254/"}'),
    "messages": ("PROTOBUF", HEAD + "message A {" * 40_000 + "}" * 40_000),
    "an imported file": ("PROTOBUF", f'{HEAD}import "/etc/passwd";'),
    "an import of itself": ("PROTOBUF", f'{HEAD}import "schema.proto";'),
    "no type": ("XML", "<schema/>"),
}


@pytest.mark.parametrize(("kind", "text"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_one_line(registry: RunningRegistry, kind: str, text: str) -> None:
    body = {"schema": text, "schemaType": kind}
    refused = registry.post("/subjects/hostile/versions", body)
    assert (refused.status, refused.code) == (422, 42201)
    assert len(refused.body["message"]) < 1_000
    assert "\n" not in refused.body["message"]
    assert registry.post("/subjects/hostile", body).code in (42201, 40401)
    verbose = registry.post("/compatibility/subjects/hostile/versions?verbose=true", body).body
    assert verbose["is_compatible"] is False
    assert registry.get("/subjects/hostile/versions").code == 40401


def test_a_hostile_reference_is_one_line(registry: RunningRegistry, subject: str) -> None:
    made = registry.register(f"{subject}-a", f"{HEAD}message A {{}}", schemaType="PROTOBUF")
    assert made.status == 200
    for name in ("../../etc/passwd", "/etc/passwd", "a\nb.proto", "x" * 2_000, "a/" * 500):
        reference = {"name": name, "subject": f"{subject}-a", "version": 1}
        refused = registry.register(subject, f"{HEAD}message B {{}}", schemaType="PROTOBUF", references=[reference])
        assert refused.code == 42201
        assert "\n" not in refused.body["message"]
    own = {"name": "R", "subject": subject, "version": 1}
    assert registry.register(subject, '"R"', references=[own]).code == 42201, "a schema cannot refer to itself"


def test_a_pattern_is_never_run(registry: RunningRegistry, subject: str) -> None:
    exploding = {"type": "string", "pattern": "^(a+)+$", "default": "a" * 10_000 + "!"}
    assert registry.register(subject, exploding, schemaType="JSON").body["version"] == 1
    assert registry.register(subject, {**exploding, "title": "t"}, schemaType="JSON").body["version"] == 2


@pytest.mark.parametrize("length", [b"3000000000", b"9" * 400])
def test_a_long_body_is_refused_before_it_is_sent(registry: RunningRegistry, length: bytes) -> None:
    with socket.create_connection((registry.address.host, registry.address.port), 30) as wire:
        wire.sendall(
            b"POST /subjects/s/versions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nContent-Length: "
            + length
            + b"\r\n\r\n"
        )
        answer = b"".join(iter(lambda: wire.recv(65536), b""))
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))
    assert b"connection: close" in answer


def test_a_slow_body_is_ended(broker: RunningBroker) -> None:
    client = ClusterClient(broker.bootstrap, codecs=CodecTable(), client_id="slow", request_timeout_s=3)
    topic = SchemaTopic(client, "_schemas")
    app = RegistryApp(RegistryApi(topic, RegistryConfig()), topic, max_body_bytes=100, identity={}, body_s=0.01)
    sent: list[Any] = []

    async def receive() -> Any:
        if not sent:
            sent.append(None)
            return {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.Event().wait()
        return None

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/subjects/s/versions", "raw_path": b"/subjects/s/versions",
        "query_string": b"", "headers": [(b"content-type", TYPE.encode())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    topic.close()
    assert sent[1]["status"] == 408
    assert (b"connection", b"close") in sent[1]["headers"]
    assert json.loads(sent[2]["body"])["message"] == "the body did not arrive within 0.01 s"


@pytest.mark.parametrize("name", ["a%0d%0aX-Injected:%201", "%00", "%0a", "%7f", "%c2%85", "__GLOBAL", ":.__GLOBAL:s"])
def test_subjects_that_are_none(registry: RunningRegistry, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for path in (f"/subjects/{name}/versions", f"/subjects/{name}", f"/compatibility/subjects/{name}/versions"):
            refused = registry.post(path, {"schema": '"int"'})
            assert refused.code == 42208, refused.body
        assert registry.get(f"/subjects/{name}/versions").code == 42208
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_subjects_that_look_like_paths(registry: RunningRegistry) -> None:
    for name in ("..%2F..%2Fx", "%2E%2E%2F%2E%2E%2Fx", "a%2Fversions%2F1"):
        made = registry.post(f"/subjects/{name}/versions", {"schema": '"int"'})
        assert made.status == 200
        assert registry.get(f"/subjects/{name}/versions").body == [made.body["version"]]
        assert registry.delete(f"/subjects/{name}").body == [made.body["version"]]
    assert registry.get("/subjects/../../x").status == 404
    assert registry.get("/subjects/%ff/versions").status == 404
    for context in (".a:b", "a", ":.a:b:", ".%00"):
        assert registry.get(f"/contexts/{context}/subjects/s/versions").status == 404


@pytest.mark.parametrize(
    "number",
    [
        "0", "-2", "2147483648", "9" * 4_000, "0" * 12 + "9" * 5_000, "1.0", "+1", "1e0", "%D9%A3", "%201", "LATEST",
        "null", "-1e400",
    ],
)  # fmt: skip
def test_numbers_that_are_none(registry: RunningRegistry, subject: str, number: str) -> None:
    registry.register(subject, '"int"')
    for path in (f"/subjects/{subject}/versions/{number}", f"/subjects/{subject}/versions/{number}/referencedby"):
        assert registry.get(path).code == 42202
    assert registry.delete(f"/subjects/{subject}/versions/{number}").code == 42202
    assert registry.post(f"/compatibility/subjects/{subject}/versions/{number}", {"schema": '"int"'}).code == 42202
    assert registry.get(f"/schemas/ids/{number}").status == 404
    if number not in ("0", "-2", "2147483648", "+1"):
        assert registry.get(f"/subjects?offset={number}").status == 422
        assert registry.get(f"/schemas?limit={number}").status == 422


@pytest.mark.parametrize("value", [-2, 2**31, 10**30, 1.0, 1.5, True, "1", [], {}])
def test_numbers_in_a_body_that_are_none(registry: RunningRegistry, subject: str, value: Any) -> None:
    for name in ("version", "id"):
        assert registry.register(subject, '"int"', **{name: value}).code == 422
    reference = {"name": "R", "subject": subject, "version": value}
    assert registry.register(subject, '"int"', references=[reference]).code in (422, 42201)
    assert registry.get(f"/subjects/{subject}/versions").code == 40401


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"references": [None]}, 422, "a reference is None, not an object"),
        ({"references": {"a": 1}}, 422, "references is not a list"),
        ({"references": [{"name": "x"}]}, 422, "'subject' is missing"),
        ({"metadata": []}, 422, "metadata is [], not an object"),
        ({"metadata": {"properties": {"a": 1}}}, 422, "a is 1, not text"),
        ({"metadata": {"tags": {"a": "b"}}}, 422, "tags.a is 'b', not a list of text"),
        ({"ruleSet": "x"}, 422, "ruleSet is 'x', not an object"),
        ({"ruleSet": {"domainRules": [7]}}, 422, "domainRules is [7], not a list of rules"),
        ({"ruleSet": {"domainRules": [{}]}}, 42210, "Invalid rule set: rule name ''"),
        ({"schemaType": 7}, 422, "schema and schemaType are text"),
        ({"metadata": {"properties": {"\ud800": "x"}}}, 400, "the body has half of a surrogate pair"),
        ({"unknown": "\udfff"}, 400, "the body has half of a surrogate pair"),
    ],
)  # fmt: skip
def test_members_of_another_type(registry: RunningRegistry, body: dict[str, Any], code: int, message: str) -> None:
    refused = registry.register("members", '"int"', **body)
    assert refused.code == code
    assert refused.body["message"].startswith(message)


@pytest.mark.parametrize(
    "body",
    [
        {"compatibility": 7}, {"compatibility": "sometimes"}, {"normalize": "true"}, {"alias": 7}, {"alias": "\ud800"},
        {"compatibilityPolicy": "x"}, {"compatibilityGroup": []}, {"defaultMetadata": 7},
        {"overrideRuleSet": {"domainRules": [{"name": "1"}]}},
    ],
)  # fmt: skip
def test_configuration_that_is_none(registry: RunningRegistry, subject: str, body: dict[str, Any]) -> None:
    assert registry.put(f"/config/{subject}", body).status in (400, 422)
    assert registry.get(f"/config/{subject}").code == 40408


def test_import_does_not_overwrite(registry: RunningRegistry, subject: str) -> None:
    name = f":.import-{subject}:s"
    registry.put(f"/mode/:.import-{subject}:", {"mode": "IMPORT"})
    assert registry.register(name, '"int"', id=500, version=9).status == 200
    assert registry.register(name, '"int"', id=500, version=9).status == 200, "it may be repeated"
    assert registry.register(name, '"long"', id=500, version=10).code == 42205, "an id that is another schema's"
    refused = registry.register(name, '"int"', id=501, version=9)
    assert (refused.code, refused.body["message"]) == (
        42205, "Overwrite version 9, which has id 500, is not permitted.",
    )  # fmt: skip
    assert registry.get(f"/schemas/ids/500?subject={name}").body["version"] == 9
