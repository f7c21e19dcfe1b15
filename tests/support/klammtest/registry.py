"""A running schema registry, and requests to it as they are on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.codecs import CodecTable
from klamm.core.transport.address import Address
from klamm.schemas.registry.log import LastIds
from klamm.schemas.service.config import RegistryConfig
from klamm.schemas.service.service import RegistryService
from klamm.schemas.service.topic import REQUEST_S, SchemaTopic

TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Answered:
    status: int
    body: Any
    media: str

    @property
    def code(self) -> int:
        """The error's code; 0 if it is none."""
        return int(self.body["error_code"]) if self.status >= 400 else 0


@dataclass(frozen=True)
class RunningRegistry:
    service: RegistryService
    address: Address

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        """`body`: an object to be sent as JSON, or bytes as they are. A header's `_` is a `-`."""
        connection = HTTPConnection(self.address.host, self.address.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": TYPE} if data is not None else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of the body was sent
                connection.request(method, path, data, given)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        media = response.headers.get("content-type", "")
        return Answered(response.status, json.loads(text) if text else None, media)

    def get(self, path: str, **headers: str) -> Answered:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any) -> Answered:
        return self.call("POST", path, body)

    def put(self, path: str, body: Any) -> Answered:
        return self.call("PUT", path, body)

    def delete(self, path: str) -> Answered:
        return self.call("DELETE", path)

    def register(self, subject: str, schema: Any, **more: Any) -> Answered:
        """`schema`: the text, or what it is as JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.post(f"/subjects/{subject}/versions", {"schema": text, **more})


@contextmanager
def running_registry(bootstrap: str, last_ids: LastIds | None = None, **config: Any) -> Iterator[RunningRegistry]:
    client = ClusterClient(bootstrap, codecs=CodecTable(), client_id="registry", request_timeout_s=REQUEST_S)
    options = RegistryConfig(listeners="http://127.0.0.1:0", **config)
    topic = SchemaTopic(client, options.kafkastore_topic, last_ids=last_ids)
    service = RegistryService(options, topic)
    service.start()
    try:
        yield RunningRegistry(service, Address.parse(service.url.removeprefix("http://").rstrip("/")))
    finally:
        service.stop()
        topic.close()
