"""The registry as an HTTP server: media types, methods, sizes, what is not there."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from klamm.core.errors import BrokerError, ConfigError, ErrorCode
from klamm.schemas.service.api import RegistryApi
from klamm.schemas.service.app import RegistryApp
from klamm.schemas.service.config import RegistryConfig
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


def test_what_is_not_found_while_the_topic_cannot_be_read_is_asked_again(
    registry: RunningRegistry, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = registry.register(subject, '"int"').body

    def fail() -> None:
        raise BrokerError(ErrorCode.request_timed_out, "no leader")

    monkeypatch.setattr(registry.service._topic, "catch_up", fail)
    assert registry.get(f"/schemas/ids/{made['id']}").body["schema"] == '"int"'
    for method, path, body in (
        ("GET", "/schemas/ids/999999", None),
        ("GET", f"/subjects/{subject}-none/versions", None),
        ("POST", f"/subjects/{subject}-none", {"schema": '"int"'}),
    ):
        answer = registry.call(method, path, body)
        assert (answer.status, answer.code) == (503, 503)
        assert answer.body["message"].startswith("the topic of schemas cannot be read now, and was without it: S")


def test_a_request_that_the_stop_of_the_registry_ends_is_answered() -> None:
    sent: list[Any] = []

    async def run() -> None:
        started = asyncio.Event()

        async def receive() -> Any:
            started.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        app = RegistryApp(
            RegistryApi(cast(Any, None), RegistryConfig()), cast(Any, None), max_body_bytes=9, identity={}
        )
        scope = {
            "type": "http", "method": "POST", "path": "/subjects/s/versions", "raw_path": b"/subjects/s/versions",
            "query_string": b"", "headers": [],
        }  # fmt: skip
        task = asyncio.create_task(app(scope, receive, send))
        await started.wait()
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == 500
    assert b'"error_code":50002' in sent[1]["body"]


@pytest.mark.parametrize(
    "listeners",
    ["http://127.0.0.1:99999", "http://127.0.0.1", "http://a:1,http://b:2", "http://a:1/x", "http://::1:8081"],
)
def test_a_listener_that_is_none(listeners: str) -> None:
    with pytest.raises(ConfigError, match=r"^services\.registry\.listeners: expected host:port"):
        RegistryConfig(listeners=listeners).address()
