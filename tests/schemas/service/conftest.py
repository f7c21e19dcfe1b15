"""Two registries on one topic of one broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from klammtest.broker import RunningBroker, running_broker
from klammtest.registry import RunningRegistry, running_registry

_NUMBER = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def registry(broker: RunningBroker) -> Iterator[RunningRegistry]:
    with running_registry(broker.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def other(broker: RunningBroker) -> Iterator[RunningRegistry]:
    with running_registry(broker.bootstrap) as running:
        yield running


@pytest.fixture
def subject() -> str:
    """A name that no test has used."""
    return f"subject-{next(_NUMBER)}"
