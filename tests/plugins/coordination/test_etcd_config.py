"""The keys of the `etcd` coordination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from klamm.core.config.settings import load_settings
from klamm.core.plugins import plugin_host
from klamm.plugins.coordination.etcd.config import EtcdConfig


def test_several_endpoints() -> None:
    config = EtcdConfig.model_validate({"etcd.endpoints": "http://a:2379, https://[::1]:2379/"})
    assert config.etcd_endpoints == ("http://a:2379", "https://[::1]:2379")


@pytest.mark.parametrize(
    ("keys", "at", "message"),
    [
        ({"etcd.endpoints": ""}, "etcd.endpoints", "no endpoint"),
        ({"etcd.endpoints": "a:2379"}, "etcd.endpoints", "'a:2379' is not an endpoint; expected http://host:port"),
        ({"etcd.endpoints": "http://a"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:99999"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:1/v3"}, "etcd.endpoints", "the beginning of all keys is etcd.prefix: /v3"),
        ({"etcd.endpoints": "http://a:0"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a b:1"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:1 http://b:1"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:1;http://b:1"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://::1:2379"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://a:1#x"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": "http://:p@a:1"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.endpoints": ["http://a:1", ""]}, "etcd.endpoints", "'' is not an endpoint"),
        ({"etcd.endpoints": "http://u:p@a:1"}, "etcd.endpoints", "not an endpoint"),
        ({"etcd.prefix": "klamm"}, "etcd.prefix", "must begin with '/'"),
        ({"etcd.prefix": "/"}, "etcd.prefix", "expected a path such as /klamm"),
        ({"etcd.session.timeout.ms": 500}, "etcd.session.timeout.ms", "greater than or equal to 1000"),
        ({"etcd.username": "u"}, "etcd.username", "given together"),
        ({"etcd.ssl.key": __file__}, "etcd.ssl.key", "needs etcd.ssl.certificate"),
        ({"etcd.ssl.ca": __file__}, "etcd.ssl.ca", "no URL in etcd.endpoints begins with https://"),
        ({"etcd.endpoints": "https://a:1", "etcd.ssl.ca": "/none.pem"}, "etcd.ssl.ca", "/none.pem is not a file"),
        ({"etcd.endpoint": "http://a:1"}, "etcd.endpoint", "Extra inputs"),
    ],
    ids=str,
)
def test_keys_that_are_wrong(keys: dict[str, Any], at: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EtcdConfig.model_validate(keys)
    (error,) = caught.value.errors()
    assert error.get("ctx", {}).get("key", error["loc"][-1] if error["loc"] else None) == at
    assert message in error["msg"]


def test_a_call_waits_for_a_session_time_out_unless_told_otherwise() -> None:
    assert EtcdConfig.model_validate({"etcd.session.timeout.ms": 9000}).request_timeout_s == 9.0
    assert EtcdConfig.model_validate({"etcd.request.timeout.ms": 1500}).request_timeout_s == 1.5


def test_the_password_is_not_shown() -> None:
    config = EtcdConfig.model_validate({"etcd.username": "klamm", "etcd.password": "very-secret"})
    assert "very-secret" not in f"{config} {config!r} {config.model_dump()}"


def test_the_example_is_valid() -> None:
    settings = load_settings(Path(__file__).parents[3] / "examples" / "etcd.yaml")
    assert settings.coordination.plugin == "etcd"
    assert settings.make_coordination().session_timeout_s == 6.0


def test_it_is_offered_by_name() -> None:
    made = plugin_host().coordinations.create("etcd", {"etcd.endpoints": "http://a:1"})
    assert made.session_id == 0
    assert made.session_timeout_s == 6.0
