"""Fixtures that several parts of the tests share live in `tests/support/klammtest`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from klammtest.broker import SPAWNED

pytest_plugins = [
    "klammtest.etcd",
    "klammtest.zookeeper",
    "klammtest.zookeeper_ensemble",
    "klammtest.hadoop.hdfs",
    "klammtest.guarantees",
    "klammtest.suite.scheduling",
    "klammtest.suite.sockets",
    "pytester",
]


settings.register_profile(
    "klamm",
    deadline=None,  # no test asserts a time
    suppress_health_check=[HealthCheck.too_slow],  # nor do those who draw examples
    derandomize="KLAMM_FUZZ" not in os.environ,  # a run that has passed passes again; see `klammtest.fuzz`
)
settings.load_profile("klamm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def environment_of_spawned_processes() -> Iterator[None]:
    """Processes that tests start do not import hypothesis (see `tests/support/spawned`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SPAWNED, prepend=os.pathsep)
        yield
