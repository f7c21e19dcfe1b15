"""confluent-kafka, kafka-python, aiokafka and kcat, unchanged, with each codec, by hand and as a group.

`make clients` does the same with 100,000 records each, against ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core.records.header import iter_headers
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.foreign import CLIENTS, CODECS, ForeignClient

CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RECORDS = 300
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    topics = {f"{client}-{codec}": {"partitions": 1} for client in CLIENTS for codec in CODECS}
    with running_broker(tmp_path_factory.mktemp("broker"), topics=topics) as running:
        yield running
        assert " ERROR " not in running.log()


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's own imports
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_a_client_produces_and_consumes(broker: RunningBroker, client: ForeignClient, codec: str) -> None:
    topic = f"{client.name}-{codec}"
    # Smaller even as a batch of one: kafka-python stores as it is what compression does not make smaller.
    values = [b"%08d%s" % (i, b" again" * 12) for i in range(RECORDS)]
    client.produce(broker.bootstrap, topic, codec, values)
    for group in (None, f"group-{topic}"):
        got = client.consume(broker.bootstrap, topic, RECORDS, group, TIMEOUT_S)
        assert got == list(enumerate(values))
    segments = (broker.log_dir / f"{topic}-0").glob("*.log")
    assert {h.codec_id for s in segments for _, h in iter_headers(s.read_bytes())} == {CODEC_IDS[codec]}


def test_librdkafka_lists_all_topics(tmp_path: Path) -> None:
    """Its request for all topics (Metadata v9) has one byte too many at the end; Kafka's brokers do not mind."""
    from confluent_kafka import Producer

    with running_broker(tmp_path, topics={"t": {"partitions": 2}}) as broker:
        listed = Producer({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60)
        assert {name: len(topic.partitions) for name, topic in listed.topics.items()} == {"t": 2}
