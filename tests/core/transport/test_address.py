"""`host:port` as text in both directions, and sockets that listen on IPv6 and IPv4."""

from __future__ import annotations

import socket

import pytest
from pydantic import ValidationError

from klamm.core.config.address import parse_listeners
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.transport.address import Address, listen, plain_host


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("[::1]:9092", "::1", 9092),
        ("[2001:db8::ff00:42:8329]:1", "2001:db8::ff00:42:8329", 1),
        ("[::]:0", "::", 0),
        (":9092", "", 9092),
        ("broker-1.example:65535", "broker-1.example", 65535),
    ],
)
def test_an_address_is_the_same_as_text(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "same_as"),
    [("[::0]:1", "[::]:1"), ("[0:0:0:0:0:0:0:0]:1", "[::]:1"), ("0:1", "0.0.0.0:1"), ("0.0:1", "0.0.0.0:1")],
)
def test_an_address_of_every_interface_has_one_form(text: str, same_as: str) -> None:
    """`[::0]` took no IPv4, and was given to clients as the broker's address."""
    assert Address.parse(text) == Address.parse(same_as)
    assert str(Address.parse(text)) == same_as


@pytest.mark.parametrize("host", ["[::0]", "0"])
def test_an_address_of_every_interface_is_none_for_clients(host: str) -> None:
    with pytest.raises(ValidationError, match="clients cannot connect to"):
        BrokerConfig.model_validate({"listeners": f"PLAINTEXT://{host}:9092"})


@pytest.mark.parametrize(
    "text", ["", "a", "a:", "a:b", "a:65536", "a:-1", "a b:1", "a:1/x", "[::1]", "[::1:1", "[a]:1x"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Address.parse(text)


def test_an_ipv6_address_without_brackets_is_refused_with_the_right_form() -> None:
    with pytest.raises(ValueError, match=r"in brackets, as in \[::1\]:9092, got '::1:9092'"):
        Address.parse("::1:9092")


@pytest.mark.parametrize("host", ["1:2:3:4:5:6:7:8:9", ":", "127.0.0.1", "fe80:::1"])
def test_what_is_in_brackets_is_an_ipv6_address(host: str) -> None:
    with pytest.raises(ValueError, match="is no IPv6 address"):
        Address.parse(f"[{host}]:9092")


def test_listeners_are_printed_as_they_are_written() -> None:
    text = "PLAINTEXT://[::1]:9092,INTERNAL://:9093,OTHER://10.0.0.1:9094"
    names = dict.fromkeys(("PLAINTEXT", "INTERNAL", "OTHER"), "PLAINTEXT")
    assert ",".join(map(str, parse_listeners(text, names))) == text


@pytest.mark.parametrize("host", ["", "::"])
def test_no_host_is_every_interface_of_both_protocols(host: str) -> None:
    with listen(Address(host, 0)) as listening:
        port = listening.getsockname()[1]
        for loopback, seen in (("127.0.0.1", "127.0.0.1"), ("::1", "::1")):
            with socket.create_connection((loopback, port)) as client:
                accepted, peer = listening.accept()
                accepted.close()
                assert plain_host(peer[0]) == seen == client.getsockname()[0]


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("0.0.0.0", "::1"), ("::1", "127.0.0.1")])
def test_a_host_is_only_itself(host: str, other: str) -> None:
    with listen(Address(host, 0)) as listening, pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, listening.getsockname()[1]))


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_host_can_have_is_an_error_of_the_system(host: str) -> None:
    """The codec that `getaddrinfo` uses for texts raises `UnicodeError`."""
    with pytest.raises(socket.gaierror):
        listen(Address(host, 0))


@pytest.mark.parametrize("host", ["", "::"])
def test_a_host_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen(Address(host, 0)) as listening:
        assert listening.family is socket.AF_INET
