"""A topic that is deleted and created again between two images of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.core.broker.replication import roles
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.cluster.tree import paths
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.brokers.inprocess import broker_thread
from klammtest.guarantees import guarantee
from klammtest.waiting import PATIENCE_S, eventually

TOPIC, OTHER = "again", "other"
FIRST = TopicPartition(TOPIC, 0)


class Gates:
    """Logs are opened when their topic's gate is open."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = {TOPIC: threading.Event(), OTHER: threading.Event()}
        self.reached = {TOPIC: threading.Event(), OTHER: threading.Event()}
        self.passed: set[UUID] = set()
        create = LogManager.create

        def gated(
            logs: LogManager, tp: TopicPartition, topic_id: UUID, config: TopicConfig, *, durable: bool = True
        ) -> PartitionLog:
            if topic_id not in self.passed:
                self.reached[tp.topic].set()
                assert self.open[tp.topic].wait(PATIENCE_S)
                self.passed.add(topic_id)
            return create(logs, tp, topic_id, config, durable=durable)

        patch.setattr(LogManager, "create", gated)


@contextmanager
def created_again(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[ClusterClient, Gates, UUID]]:
    """A broker that knows of the new topic, and has not made its log; with the old topic's id."""
    gates, tree, codecs = Gates(patch), folder / "tree.db", load_settings({}).codec_table()
    coordination = EmbeddedCoordination(EmbeddedConfig(path=tree))
    with ThreadPoolExecutor() as others, broker_thread(folder, {"plugin": "embedded", "path": str(tree)}) as broker:
        own = broker.advertised[0]

        def asked(what: Callable[[ClusterClient], Any]) -> Future[Any]:
            def ask() -> Any:
                with ClusterClient(f"{own.host}:{own.port}", codecs=codecs, request_timeout_s=PATIENCE_S) as client:
                    return what(client)

            return others.submit(ask)

        coordination.start()
        try:
            with ClusterClient(f"{own.host}:{own.port}", codecs=codecs) as client:
                gates.open[TOPIC].set()
                client.create_topics({TOPIC: NewTopic(1)})
                gates.open[TOPIC].clear()
                gates.reached[TOPIC].clear()
                client.produce({FIRST: encode_batch([(1, None, b"old", ())] * 5)})
                old = client.topic_ids([TOPIC])[TOPIC]
                waiting = [asked(lambda c: c.create_topics({OTHER: NewTopic(1)}))]
                assert gates.reached[OTHER].wait(PATIENCE_S)
                waiting.append(asked(lambda c: c.delete_topics([TOPIC])))
                eventually(lambda: coordination.exists(paths.topic(TOPIC)) is None, "it is deleted")
                waiting.append(asked(lambda c: c.create_topics({TOPIC: NewTopic(1)})))
                eventually(lambda: coordination.exists(paths.topic(TOPIC)) is not None, "it is there again")
                gates.open[OTHER].set()
                assert gates.reached[TOPIC].wait(PATIENCE_S)
                try:
                    yield client, gates, old
                finally:
                    gates.open[TOPIC].set()
                    for each in waiting:
                        each.result(PATIENCE_S)
        finally:
            for gate in gates.open.values():
                gate.set()
            coordination.close()


def by_name_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roles, "_is_kept", lambda _, wanted: wanted is not None)


@guarantee("A2", "no broker gives a topic's new id with the records of the old one", plant=by_name_alone)
def test_a_new_topic_id_never_comes_with_the_old_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with created_again(tmp_path, monkeypatch) as (client, gates, old):
        eventually(lambda: client.topic_ids([TOPIC]).get(TOPIC, old) != old, "the new id")
        answer = client.fetch(0, {FIRST: 0})[FIRST]
        assert (answer.error, answer.records) == (ErrorCode.not_leader_or_follower, b"")
        gates.open[TOPIC].set()
        eventually(lambda: client.fetch(0, {FIRST: 0})[FIRST].error is ErrorCode.none, "the new log")
        assert client.fetch(0, {FIRST: 0})[FIRST].high_watermark == 0
