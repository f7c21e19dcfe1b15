from __future__ import annotations

from collections.abc import Iterator

import pytest

from klammtest.broker import RunningBroker, running_broker
from klammtest.wire import WireClient

TOPICS = {"events": {"partitions": 3}, "small": {"partitions": 1, "config": {"max.message.bytes": 1000}}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests of a module, which must not leave a traceback in its log."""
    with running_broker(tmp_path_factory.mktemp("broker"), topics=TOPICS) as running:
        yield running
        assert "Traceback" not in running.log()
        assert " ERROR " not in running.log()


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        yield client
