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
    ],
)
def test_connect(connect: str, hosts: str, chroot: str) -> None:
    config = ZooKeeperConfig.model_validate({"zookeeper.connect": connect})
    assert (config.hosts, config.chroot) == (hosts, chroot)


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
