"""The fixtures for pytest: `klamm_broker`, `klamm_broker_process` and `klamm_config`.

pytest imports this module in every run where Klamm is installed, so it imports nothing else of Klamm before a fixture
is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from klamm.testing.broker import KlammBroker

__all__ = ["klamm_broker", "klamm_broker_process", "klamm_config"]

# the asserts of the suites say what they compared, also where Klamm is installed from a folder (`pip install -e`)
pytest.register_assert_rewrite("klamm.testing.contracts")


@pytest.fixture(scope="session")
def klamm_config() -> dict[str, Any]:
    """The keyword arguments of the session's `KlammBroker`: override it in `conftest.py` to declare topics and to set
    keys, as `{"topics": {"orders": 3}, "broker": {"auto.create.topics.enable": False}}`.
    """
    return {}


@pytest.fixture(scope="session")
def klamm_broker_process(
    klamm_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KlammBroker]:
    """One broker for the whole run, or for each worker of pytest-xdist. Tests share its content."""
    from klamm.testing.broker import KlammBroker

    with KlammBroker(**{"folder": tmp_path_factory.mktemp("klamm"), **klamm_config}) as broker:
        yield broker


@pytest.fixture
def klamm_broker(klamm_broker_process: KlammBroker) -> Iterator[KlammBroker]:
    """The session's broker, as new: after the test its topics, schemas and groups are deleted, its faults end, and it
    serves again if the test has stopped it.
    """
    yield klamm_broker_process
    klamm_broker_process.reset()
