"""The keys of the `zookeeper` coordination."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from klamm.core.plugins import plugin_host
from klamm.plugins.coordination.zookeeper.config import ZooKeeperConfig


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("127.0.0.1:2181", "127.0.0.1:2181", ""),
        ("127.0.0.1:2181/", "127.0.0.1:2181", ""),
        ("a:1,b:2/klamm", "a:1,b:2", "/klamm"),
        ("a:1/klamm/test", "a:1", "/klamm/test"),
        ("[::1]:2181", "[::1]:2181", ""),
        (" a:1 , [::1]:2/k ", "a:1,[::1]:2", "/k"),
    ],
)
def test_connect(connect: str, hosts: str, chroot: str) -> None:
    config = ZooKeeperConfig.model_validate({"zookeeper.connect": connect})
    assert (config.hosts, config.chroot) == (hosts, chroot)


@pytest.mark.parametrize(
    ("connect", "problem"),
    [
        ("a:2181/k,b:2181/k", "the chroot follows the last server, once for all of them: write a:2181,b:2181/k"),
        ("a:2181/k,", "the chroot follows the last server, once for all of them: write a:2181/k"),
        ("a:2181/k,b:2181", "the chroot follows the last server, once for all of them: write a:2181,b:2181/k"),
        (
            "a:2181/k, b:2181/k/x",
            "the chroot follows the last server, once for all of them: write a:2181,b:2181/CHROOT",
        ),
        ("a:2181,b:2181/ k", "the chroot '/ k' has white space: write a:2181,b:2181/k"),
        ("a:2181/k\t/x", r"the chroot '/k\t/x' has white space: write a:2181/k/x"),
        ("a:2181,,b:2181/k", "expected host:port with a port up to 65535, got '' in host:port,host:port/chroot"),
        ("a:2181,b:2181,/k", "expected host:port with a port up to 65535, got '' in host:port,host:port/chroot"),
        ("a:2181 b:2181", "expected host:port with a port up to 65535, got 'a:2181 b:2181' in"),
        ("a b:2181", "expected host:port with a port up to 65535, got 'a b:2181' in"),
        ("a:2181;b:2181", "expected host:port with a port up to 65535, got 'a:2181;b:2181' in"),
        ("a:65536", "expected host:port with a port up to 65535, got 'a:65536' in"),
        ("a:0/k", "expected host:port, got 'a:0' in"),
        ("a:２１８１", "expected host:port with a port up to 65535, got 'a:２１８１' in"),
        ("::1:2181", "expected host:port with an IPv6 address in brackets, as in [::1]:9092, got '::1:2181' in"),
        ("http://a:2181", "expected host:port with a port up to 65535, got 'http:' in"),
    ],
)
def test_connect_that_is_wrong_is_refused_with_what_would_be_right(connect: str, problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ZooKeeperConfig.model_validate({"zookeeper.connect": connect})
    assert caught.value.errors()[0]["msg"].startswith(f"Value error, {problem}")


@pytest.mark.parametrize("connect", ["", "host", "host:", ":2181", "host:0", "host:70000", "a:1,", "a:1/x/", "a:1//x"])
def test_connect_that_is_wrong(connect: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ZooKeeperConfig.model_validate({"zookeeper.connect": connect})
    assert caught.value.errors()[0]["loc"] == ("zookeeper.connect",)


def test_a_call_waits_for_a_session_time_out_unless_told_otherwise() -> None:
    assert ZooKeeperConfig.model_validate({"zookeeper.session.timeout.ms": 9000}).request_timeout_s == 9.0
    assert ZooKeeperConfig.model_validate({"zookeeper.connection.timeout.ms": 1500}).request_timeout_s == 1.5


def test_both_are_offered_by_name() -> None:
    assert {"zookeeper", "embedded"} <= set(plugin_host().coordinations.names())
    made = plugin_host().coordinations.create("zookeeper", {"zookeeper.connect": "a:1/x"})
    assert made.session_id == 0
