"""The configurations of several brokers of one host, from one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from klamm.core.config.host_brokers import check_host, nth_broker
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError


def config(**keys: object) -> BrokerConfig:
    return load_settings({"broker": {name.replace("_", "."): value for name, value in keys.items()}}).broker


def test_the_first_is_the_files_own_and_the_others_count_up(tmp_path: Path) -> None:
    file = config(
        broker_id=5,
        listeners="PLAINTEXT://:9092,OTHER://[::1]:9192,FREE://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,FREE:PLAINTEXT",
        advertised_listeners="PLAINTEXT://example.org:9092,OTHER://[::1]:9192,FREE://127.0.0.1:0",
        log_dirs=str(tmp_path / "data"),
        metrics_port=9308,
        num_partitions=7,
    )
    check_host(file, 3)
    assert nth_broker(file, 0) is file
    third = nth_broker(file, 2)
    assert (third.broker_id, third.metrics_port, third.num_partitions) == (7, 9310, 7)
    assert [address.port for address in third.bound()] == [9094, 9194, 0]
    assert str(third.advertised()[0]) == "PLAINTEXT://example.org:9094"
    assert third.bound()[1].host == "::1"
    assert third.log_dirs == tmp_path / "data-7"


def test_defaults_count_up_too() -> None:
    second = nth_broker(BrokerConfig(), 1)
    assert (second.broker_id, second.listeners, second.metrics_port) == (1, "PLAINTEXT://127.0.0.1:9093", -1)
    assert second.log_dirs.name == "data-1"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {
                "listeners": "A://:9092,B://:9093",
                "advertised_listeners": "A://x:9092,B://x:9093",
                "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT",
            },
            "--brokers 3: listener A of broker 1 would have the port 9093, which listener B of broker 0 has; each "
            "listener needs 3 ports in a row",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:65534"},
            "--brokers 3: listener PLAINTEXT of broker 2 would have the port 65536; the last is 65535",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092", "metrics_port": 9094},
            "--brokers 3: listener PLAINTEXT of broker 2 would have the port 9094, which metrics.port of broker 0 has",
        ),
    ],
)
def test_ports_that_do_not_suffice(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_host(config(**keys), 3)


def test_one_broker_s_ports_are_the_file_s_own_matter() -> None:
    """`--brokers 1` was named where nobody had given it."""
    with pytest.raises(ConfigError) as caught:
        check_host(config(listeners="PLAINTEXT://127.0.0.1:9092", metrics_port=9092), 1)
    assert str(caught.value) == (
        "metrics.port of broker 0 would have the port 9092, which listener PLAINTEXT of broker 0 has; each listener "
        "needs a port of its own"
    )
