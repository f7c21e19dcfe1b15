"""Processes registering the same and different schemas at once, on a real broker, with either coordination."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.typed import SharedCoordination
from klamm.core.config.settings import load_settings
from klamm.core.interfaces.envelope import SchemaKey
from klamm.core.records.partition import TopicPartition
from klamm.schemas.registry.log import TopicSchemaLog
from klamm.schemas.registry.registry import LogRegistry
from klammtest.broker import RunningBroker, running_broker

PROCESSES = 3
COUNT = 5


@pytest.fixture(params=["embedded", "zookeeper"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    coordination: dict[str, Any] | None = None
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper_server")
        coordination = {"plugin": "zookeeper", "zookeeper.connect": f"{server.connect}/schemas-{uuid4().hex}"}
    with running_broker(tmp_path, coordination=coordination) as running:
        yield running


def register_at_once(broker: RunningBroker) -> list[dict[str, tuple[int, str]]]:
    """Returns the result that each process received."""
    program = str(Path(__file__).with_name("registrar.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, program, str(broker.config_path), broker.bootstrap, str(number), str(COUNT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [{name: (got[0], got[1]) for name, got in json.loads(answer).items()} for answer in answers]


def test_processes_at_once_agree(broker: RunningBroker) -> None:
    """… on ids and texts; the topic holds them all, and still does after kill -9 of the broker."""
    answers = register_at_once(broker)
    told = {item for answer in answers for item in answer.items()}
    names = {name for name, _ in told}
    assert len(told) == len(names) == COUNT * (PROCESSES + 1)
    assert sorted(schema_id for _, (schema_id, _) in told) == list(range(1, len(told) + 1))

    broker.kill()
    broker.start()
    settings = load_settings(broker.config_path)
    coordination = SharedCoordination(settings)
    client = ClusterClient(broker.bootstrap, codecs=settings.codec_table())
    registry = LogRegistry(TopicSchemaLog(client), coordination)
    for name, (schema_id, md5) in told:
        found = registry.lookup(SchemaKey(schema_id=schema_id))
        assert (json.loads(found.text)["name"], found.md5.hex()) == (name, md5)
        assert registry.lookup(SchemaKey(fingerprint=found.fingerprint)) == found
    registry.close()
    coordination.close()

    with ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client:
        log = TopicSchemaLog(client)
        entries = list(log.read().schemas())
        assert list(log.read().schemas()) == entries
        assert client.partitions("_schemas") == [TopicPartition("_schemas", 0)]
        configs = client.describe_configs("_schemas")
        assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("compact", "-1")
    written = {entry.subject.removesuffix("-value"): entry.schema_id for entry in entries}
    assert written == {name: schema_id for name, (schema_id, _) in told}
