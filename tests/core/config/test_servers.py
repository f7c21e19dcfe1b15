"""The address in a file: alone where producers have a valid one, else of the validated file."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.servers import servers_in, servers_of
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("producer: {bootstrap.servers: 'a:1, b:2'}\nconsumer: {bootstrap.servers: 'c:3'}", "a:1,b:2"),
        ("producer: {bootstrap.servers: [a:1, '[::1]:2']}", "a:1,[::1]:2"),
        ("consumer: {bootstrap.servers: 'c:3'}\nproducer: {acks: all}", "c:3"),
        ("broker: {listeners: 'PLAINTEXT://127.0.0.1:19'}", "127.0.0.1:19"),
    ],
)
def test_the_address_is_that_of_the_settings(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "klamm.yaml"
    file.write_text(text)
    assert servers_in(file) == servers_of(load_settings(file)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("producer: {bootstrap.servers: 'a'}", "klamm.yaml:1: producer.bootstrap.servers: expected host:port"),
        ("producer: {bootstrap.server: 'a:1'}", "klamm.yaml:1: producer.bootstrap.server: unknown key; did you mean"),
        ("producer: a:1", "klamm.yaml:1: producer: expected keys with values"),
        ("a: [", "klamm.yaml:1: not YAML"),
        (
            "producer: {bootstrap.servers: 'a:1', client.id: '${KLAMM_NOT_SET}'}",
            "klamm.yaml:1: producer.client.id: environment variable KLAMM_NOT_SET is not set",
        ),
    ],
)
def test_an_address_that_is_wrong_or_missing_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "klamm.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        servers_in(file)
    assert str(raised.value).startswith(message)
