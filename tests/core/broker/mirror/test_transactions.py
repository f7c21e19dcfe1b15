"""Transactions whose markers the source has deleted before they were copied (docs/mirror.md, M7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.server import Broker
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.brokers.inprocess import broker_thread
from klammtest.kafka_transactions import by_librdkafka, led
from klammtest.mirrored import LARGE, Clusters
from klammtest.transactional_logs import add, end, transactional
from klammtest.waiting import eventually


class Transactional(Clusters):
    source_broker: Broker
    target_broker: RunningBroker

    def committed(self, tp: TopicPartition) -> list[str]:
        """Returns the small values that a reader of committed records gets at the target."""
        rows = by_librdkafka(self.target_broker.bootstrap, tp, "read_committed")
        return [value for _, _, value in rows if len(value) < len(LARGE)]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Transactional]:
    coordination = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    with ExitStack() as stack:
        source: Any = stack.enter_context(broker_thread(tmp_path / "source", coordination))
        source.bootstrap = f"127.0.0.1:{source.advertised[0].port}"
        link = {
            "bootstrap.servers": source.bootstrap,
            "topics.regex": r"trips\..*",
            "retention": "own",
            "metadata.interval.ms": 100,
            "fetch.max.wait.ms": 100,
        }
        target = stack.enter_context(running_broker(tmp_path / "target", mirrors={"berlin": link}))
        found = Transactional(source, target, load_settings({}).codec_table(), stack)
        found.source_broker = source
        found.mirror("create", "berlin")
        yield found


def test_readers_of_committed_records_go_on_behind_a_gap(clusters: Transactional) -> None:
    topic, tp = "trips.gap", TopicPartition("trips.gap", 0)
    clusters.create(topic)
    log = led(clusters.source_broker, tp).log
    add(log, transactional([b"first"], producer=(7, 0, 0)))
    end(log, 7, commit=True)
    add(log, transactional([b"open"], producer=(7, 0, 1)))
    clusters.follows(topic, 3)
    clusters.mirror("pause", "berlin", "--topic", topic)
    eventually(lambda: clusters.row(topic)["status"] == "PAUSED", "the pause")
    clusters.write(topic, LARGE, LARGE)  # the fetch that was under way at the pause takes one of them at most
    end(log, 7, commit=True)
    clusters.write(topic, b"deleted")
    clusters.source.delete_records({tp: 7})
    add(log, transactional([b"second"], producer=(7, 0, 2)))
    end(log, 7, commit=True)
    clusters.write(topic, b"last")
    clusters.mirror("resume", "berlin", "--topic", topic)
    clusters.follows(topic, 10)
    clusters.shows_all(topic)
    assert clusters.committed(tp) == ["first", "second", "last"]
    clusters.target_broker.kill()
    clusters.target_broker.start()
    clusters.follows(topic, 10)
    clusters.shows_all(topic)
    assert clusters.committed(tp) == ["first", "second", "last"]
    clusters.mirror("promote", "berlin", "--topic", topic)
    assert clusters.committed(tp) == ["first", "second", "last"]
