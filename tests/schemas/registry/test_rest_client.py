"""Requests to a registry: which address is asked, what is asked again, and what each refusal says."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from klamm.core.errors import ConfigError, KlammError, RegistryUnavailableError, SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.options import AvroOptions, RegistryAccess
from klamm.schemas.registry import rest_client
from klamm.schemas.registry.rest import RestRegistry
from klamm.schemas.registry.rest_client import NotRegisteredError, RestClient
from klammtest.ports import free_port
from klammtest.registry_front import Answer, registry_front
from klammtest.tls import self_signed


class Clock:
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def client(*urls: str, timeout_s: float = 10.0, clock: Clock | None = None, **keys: Any) -> RestClient:
    given = {"schema.registry.url": list(urls), **{name.replace("_", "."): value for name, value in keys.items()}}
    time = clock or Clock()
    return RestClient(RegistryAccess.model_validate(given), timeout_s, time, time.sleep)


def error(status: int, code: int | None = None, message: str = "why") -> Answer:
    return status, {"error_code": status if code is None else code, "message": message}


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            error(404, 40403, "Schema 7 not found"),
            NotRegisteredError,
            "Schema 7 not found (status 404, error code 40403)",
        ),
        (error(404, None, "HTTP 404 Not Found"), NotRegisteredError, "HTTP 404 Not Found (status 404)"),
        ((404, b"<html>nginx</html>"), RegistryUnavailableError, "GET /a: status 404, error code None: <html>nginx"),
        (error(409, 40901, "incompatible\nwith 1"), SchemaError, "incompatible with 1 (status 409, error code 40901)"),
        (error(409), SchemaError, "why (status 409)"),
        (error(422, 42201, "Invalid schema"), SchemaError, "Invalid schema (status 422, error code 42201)"),
        (error(401), RegistryUnavailableError, "status 401: why (schema.registry.basic.auth.user.info names the user)"),
        (error(403), RegistryUnavailableError, "GET /a: status 403: why"),
        (error(406), RegistryUnavailableError, "GET /a: status 406: why"),
        ((302, b""), RegistryUnavailableError, "status 302, error code None: no reason is given"),
    ],
)
def test_a_refusal_is_one_line_and_not_asked_again(answer: Answer, kind: type[KlammError], says: str) -> None:
    with registry_front(lambda *_: answer) as front:
        asking = client(front.url)
        with pytest.raises(kind) as caught:
            asking.get("a")
        assert type(caught.value) is kind
        assert str(caught.value).startswith(f"schema registry {front.url}: ")
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(front.requests) == 1
        asking.close()


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"starting"), error(500, 50002), error(429), (200, b"<html>"), (502, b""), (200, b"[" * 10**5),
        (503, b"[" * 10**5),
    ],
)  # fmt: skip
def test_an_address_that_cannot_serve_is_passed_over(answer: Answer) -> None:
    with registry_front(lambda *_: answer) as bad, registry_front(lambda *_: (200, {"id": 7})) as good:
        clock = Clock()
        asking = client(f"http://127.0.0.1:{free_port()}", bad.url, good.url, clock=clock)
        assert asking.get("a") == asking.post({}, "b") == asking.put({}, "c") == {"id": 7}
        assert len(bad.requests) == 1
        assert not clock.waits
        asking.close()


def test_addresses_are_asked_again_until_the_time_is_over() -> None:
    with registry_front(lambda *_: error(503, None, "loading")) as front:
        clock = Clock()
        nobody = f"http://127.0.0.1:{free_port()}"
        asking = client(front.url, nobody, clock=clock)
        with pytest.raises(RegistryUnavailableError) as caught:
            asking.get("subjects", "a/b c", "versions", 1, deleted="true")
        assert str(caught.value).startswith(
            f"no schema registry answers for 10 s: {front.url}: status 503: loading; {nobody}: "
        )
        assert clock.now == pytest.approx(10)
        assert max(clock.waits) <= 3
        assert {*front.requests} == {("GET", "/subjects/a%2Fb%20c/versions/1?deleted=true")}
        asking.close()


def test_a_body_without_an_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "MAX_ANSWER", 100_000)
    with registry_front(lambda *_: (200, b" " * 100_001)) as front:
        asking = client(front.url, clock=Clock())
        with pytest.raises(RegistryUnavailableError, match=f"{front.url}: the answer is longer than 100000 bytes"):
            asking.get("a")
        asking.close()


def test_a_body_that_arrives_too_slowly_is_no_answer() -> None:
    class Slow(Clock):
        def __call__(self) -> float:
            self.now += 4
            return self.now

    with registry_front(lambda *_: (200, b" " * 10**6)) as front:
        asking = client(front.url, clock=Slow())
        with pytest.raises(RegistryUnavailableError, match=f"{front.url}: the answer did not arrive within 10 s"):
            asking.get("a")
        asking.close()


def test_an_outage_ends() -> None:
    clock = Clock()

    def decide(*_: Any) -> Answer:
        return error(503) if clock.now < 5 else (200, [1])

    with registry_front(decide) as front:
        asking = client(front.url, clock=clock)
        assert asking.get("a") == [1]
        assert 5 <= clock.now < 10
        asking.close()


def test_who_asks() -> None:
    seen: list[str | None] = []

    def decide(_method: str, _path: str, headers: Mapping[str, str]) -> Answer:
        seen.append(headers.get("authorization"))
        return 200, {}

    with registry_front(decide) as front:
        for keys in (
            {"schema_registry_basic_auth_user_info": "ann:s:e"},
            {"basic_auth_user_info": "ann:s:e"},
            {"schema_registry_bearer_auth_token": "t0k"},
            {},
        ):
            asking = client(front.url, **keys)
            asking.get("a")
            asking.close()
    basic = f"Basic {base64.b64encode(b'ann:s:e').decode()}"
    assert seen == [basic, basic, "Bearer t0k", None]


def test_tls(tmp_path: Path) -> None:
    contexts = self_signed(tmp_path)
    with registry_front(lambda *_: (200, {"id": 1}), secure=contexts.server) as front:
        asking = client(front.url, schema_registry_ssl_ca_location=str(tmp_path / "certificate.pem"))
        assert asking.get("a") == {"id": 1}
        asking.close()
        clock = Clock()
        asking = client(front.url, clock=clock)
        with pytest.raises(RegistryUnavailableError, match=f"schema registry {front.url}: .*self-signed certificate"):
            asking.get("a")
        assert not clock.waits
        asking.close()
    with pytest.raises(ConfigError, match=r"schema.registry.ssl.ca.location: cannot be read: "):
        client(front.url, schema_registry_ssl_ca_location=str(tmp_path / "none.pem"))


@pytest.mark.parametrize(
    "answer",
    [{}, [], {"schema": 7}, {"schema": "{}", "references": [{}]}, {"schema": "{}", "references": 7}, {"id": "x"}],
)
def test_an_answer_that_is_no_schema_is_one_line(answer: Any) -> None:
    def decide(_method: str, path: str, _headers: Mapping[str, str]) -> Answer:
        return error(404) if path.endswith("/versions") else (200, answer)

    with registry_front(decide) as front:
        registry = RestRegistry(client(front.url))
        with pytest.raises(SchemaError) as caught:
            registry.lookup(SchemaKey(schema_id=7))
        assert "\n" not in str(caught.value)
        registry.close()


def test_a_replica_that_is_behind_is_asked_again() -> None:
    clock, answers = Clock(), iter([error(404, 40403, "Schema 7 not found"), error(404, 40403, "Schema 7 not found")])

    def decide(method: str, path: str, _headers: Mapping[str, str]) -> Answer:
        if path.endswith("/ids/7"):
            return next(answers, (200, {"schema": '"int"'}))
        return (200, {"id": 7}) if method == "POST" else error(404)

    with registry_front(decide) as front:
        registry = RestRegistry(client(front.url, clock=clock))
        assert registry.register("s", '"int"').schema_id == 7
        assert len(clock.waits) == 2
        registry.close()


def test_references_that_go_on_and_on_are_refused() -> None:
    def decide(_method: str, path: str, _headers: Mapping[str, str]) -> Answer:
        number = int(path.partition("?")[0].rpartition("/")[2]) if "/versions/" in path else 0
        if path.endswith("/versions"):
            return error(404)
        reference = {"name": f"R{number}", "subject": "s", "version": number + 1}
        return 200, {"schema": '"int"', "id": number + 100, "version": number, "references": [reference]}

    with registry_front(decide) as front:
        registry = RestRegistry(client(front.url))
        with pytest.raises(SchemaError, match="schema 7: too many references within each other"):
            registry.lookup(SchemaKey(schema_id=7))
        registry.close()


def test_ids_that_were_given_again_are_an_error() -> None:
    texts = iter(['"int"', '"long"'])

    def decide(_method: str, path: str, _headers: Mapping[str, str]) -> Answer:
        if path.endswith("/versions/latest"):
            return 200, {"schema": next(texts), "id": 1, "version": 1, "subject": "s"}
        return error(404)

    with registry_front(decide) as front:
        registry = RestRegistry(client(front.url))
        assert registry.latest("s").text == '"int"'
        with pytest.raises(SchemaError, match="schema 1 was another text before"):
            registry.latest("s")
        registry.close()


def test_a_task_gets_the_client_pickled() -> None:
    with registry_front(lambda *_: (200, {"id": 1})) as front:
        made = client(front.url)
        copy = pickle.loads(pickle.dumps(made))
        assert copy.get("a") == {"id": 1}
        made.close()
        copy.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schema.registry.url": "localhost:8081"}, "expected http://HOST:PORT"),
        ({"schema.registry.url": "http://u:p@h:1"}, "has a user; name it in schema.registry.basic.auth.user.info"),
        ({"schema.registry.url": "http://h:x"}, "expected http://HOST:PORT"),
        ({"basic.auth.user.info": "ann"}, "expected USER:PASSWORD"),
        (
            {"schema.registry.basic.auth.user.info": "a:b", "schema.registry.bearer.auth.token": "t"},
            "excludes schema.registry.basic.auth.user.info",
        ),
        ({"schema.registry.ssl.key.location": "k"}, "needs schema.registry.ssl.certificate.location"),
        ({"use.latest.version": True}, "needs auto.register.schemas: false"),
        ({"value.subject.name.strategy": "Mine"}, "TopicRecordNameStrategy"),
        ({"schema.references": [{"name": "a"}]}, "expected the keys name, subject and version"),
        ({"schema.references": ["a"]}, "expected {name: …, subject: …, version: …}"),
    ],
)
def test_a_mistake_in_the_keys_says_what_is_expected(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AvroOptions.model_validate(given)
    assert says in str(caught.value)
