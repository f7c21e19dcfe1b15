from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.records.codecs import CodecTable
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.producing import topic_name


@pytest.fixture(scope="session")
def codecs() -> CodecTable:
    return load_settings({}).codec_table()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker, codecs: CodecTable) -> Iterator[ClusterClient]:
    with ClusterClient(broker.bootstrap, codecs=codecs) as opened:
        yield opened


@pytest.fixture
def topic(client: ClusterClient, request: pytest.FixtureRequest) -> str:
    """A topic of 3 partitions, for one test."""
    name = topic_name(request)
    client.create_topics({name: NewTopic(3, 1, {"retention.ms": "-1"})})
    return name
