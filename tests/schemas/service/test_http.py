"""The registry as an HTTP server: media types, methods, sizes, what is not there."""

from __future__ import annotations

import socket

import pytest

from klammtest.registry import TYPE, RunningRegistry


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", TYPE), ("*/*", TYPE), ("application/json", "application/json"), (f"{TYPE}, */*", TYPE),
        ("text/html, image/gif, image/jpeg, */*; q=0.2", TYPE), ("application/json; q=0.5", "application/json"),
        ("application/vnd.schemaregistry+json", "application/vnd.schemaregistry+json"),
    ],
)  # fmt: skip
def test_the_media_type_is_one_that_the_client_accepts(registry: RunningRegistry, accept: str, media: str) -> None:
    assert registry.get("/subjects", Accept=accept).media == media
    assert registry.get("/schemas/ids/999999", Accept=accept).media == media, "of errors too"


def test_media_types_that_are_refused(registry: RunningRegistry) -> None:
    assert registry.get("/subjects", Accept="text/html").status == 406
    assert registry.get("/", Accept="text/html").body == {}
    refused = registry.call("POST", "/subjects/s/versions", b"{}", Content_Type="text/plain")
    assert refused.status == 415
    assert registry.get("/subjects", Content_Type="text/plain").status == 200, "Java sends one without a body"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422), (b"{", 400), (b"[]", 422), (b'{"schema": 1}', 422), (b"[" * 100_000, 400), (b"\xff", 400),
        (b'{"schema": "\\"int\\"", "references": 7}', 422), (b'{"schema": "\\"int\\"", "id": "seven"}', 422),
        (b'{"schema": "' + b" " * 2_000_000 + b'"}', 413),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(registry: RunningRegistry, body: bytes, status: int) -> None:
    refused = registry.call("POST", "/subjects/bodies/versions", body)
    assert refused.status == status
    assert set(refused.body) == {"error_code", "message"}


def test_paths_and_methods(registry: RunningRegistry) -> None:
    assert registry.get("/nothing").body == {"error_code": 404, "message": "HTTP 404 Not Found"}
    assert registry.get("/associations/resources/a/b").status == 404, "confluent-kafka asks here first"
    assert registry.call("PATCH", "/subjects").status == 405
    assert registry.put("/subjects", {}).status == 405
    assert registry.get("/subjects/../../x").status == 404
    assert registry.get("/subjects/%ff/versions").status == 404
    assert registry.get("/contexts/none/subjects").status == 404


def test_what_the_registry_says_of_itself(registry: RunningRegistry) -> None:
    assert registry.get("/").body == {}
    assert registry.get("/schemas/types").body == ["JSON", "PROTOBUF", "AVRO"]
    assert registry.get("/v1/metadata/id").body["scope"]["clusters"]["schema-registry-cluster"] == "schema-registry"
    assert registry.get("/v1/metadata/version").body["version"]
    assert registry.get("/master_available").body == {"master_available": True}
    assert registry.get("/health", Accept="text/plain").body == {"status": "ok"}
    assert registry.service.health() is None
    named = {metric.name for metric in registry.service.metrics()}
    assert {"registry_requests", "registry_writes", "registry_subjects", "registry_stray_records"} <= named


def test_a_request_of_two_lengths_is_refused(registry: RunningRegistry) -> None:
    with socket.create_connection((registry.address.host, registry.address.port), 30) as wire:
        wire.sendall(
            b"POST /subjects/s/versions HTTP/1.1\r\nHost: r\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /subjects HTTP/1.1\r\nHost: r\r\n\r\n"
        )
        answer = wire.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
