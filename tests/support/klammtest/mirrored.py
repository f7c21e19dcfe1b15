"""Two clusters of one broker each, of which one mirrors topics of the other."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from typer.testing import CliRunner

from klamm.core.cli.mirror.commands import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker
from klammtest.logs import batch
from klammtest.waiting import eventually

LARGE = b"x" * 600_000
"""A record of which a fetch takes one: with a second one, an answer would exceed `max.partition.fetch.bytes`."""


class Clusters:
    """The source, and the target with the link `berlin` to it."""

    def __init__(self, source: RunningBroker, target: RunningBroker, codecs: CodecTable, stack: ExitStack) -> None:
        self.target_broker = target
        self.codecs = codecs
        self.source = stack.enter_context(ClusterClient(source.bootstrap, codecs=codecs))
        self.target = stack.enter_context(ClusterClient(target.bootstrap, codecs=codecs))

    def mirror(self, *arguments: str, fails: bool = False) -> str:
        """Runs `klamm mirror`; returns what it prints, or its error."""
        config = ("--config", str(self.target_broker.config_path))
        result = CliRunner().invoke(app, [*arguments, *config])
        if fails:
            assert result.exception is not None, result.output
            return str(result.exception)
        if result.exception is not None:
            raise result.exception
        return result.output

    def printed(self, *arguments: str) -> str:
        """Runs `klamm mirror`; returns what it prints, whether it fails or not."""
        return CliRunner().invoke(app, [*arguments, "--config", str(self.target_broker.config_path)]).output

    def status(self, topic: str, link: str = "berlin") -> dict[str, Any]:
        config = ("--config", str(self.target_broker.config_path))
        found: dict[str, Any] = json.loads(CliRunner().invoke(app, ["status", link, "--json", *config]).stdout)
        found["partitions"] = [row for row in found["partitions"] if row["topic"] == topic]
        return found

    def row(self, topic: str, number: int = 0, link: str = "berlin") -> dict[str, Any]:
        rows = [row for row in self.status(topic, link)["partitions"] if row["partition"] == number]
        return rows[0] if rows else {"status": "", "end": -1, "source_end": -1}

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        keys = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        self.source.create_topics({topic: NewTopic(partitions, 1, keys)})

    def write(self, topic: str, *values: bytes, number: int = 0) -> None:
        for value in values:
            self.source.produce({TopicPartition(topic, number): batch([value])})

    def follows(self, topic: str, end: int, number: int = 0, link: str = "berlin") -> None:
        """Waits until the mirror has everything up to `end`."""

        def reached() -> bool:
            row = self.row(topic, number, link)
            return (row["status"], row["end"]) == ("FOLLOWING", end)

        eventually(reached, f"{topic} follows to {end}")

    def same(self, topic: str, number: int = 0) -> None:
        self.shows_all(topic, number)
        assert stored(self.target, topic, number) == stored(self.source, topic, number)

    def shows_all(self, topic: str, number: int = 0) -> None:
        """Waits until consumers see as many records of the target as of the source: a mirror that is FOLLOWING raises
        its high watermark only before its next fetch."""
        tp = TopicPartition(topic, number)

        def end(client: ClusterClient) -> int:
            ((found, _),) = client.list_offsets({tp: -1}).values()
            return found

        eventually(lambda: end(self.target) == end(self.source), f"consumers see all of {tp}")


def stored(client: ClusterClient, topic: str, number: int = 0, offset: int = 0) -> bytes:
    """Returns all batches as the broker sends them."""
    tp = TopicPartition(topic, number)
    client.metadata([topic])
    ((node, _),) = client.by_leader([tp]).items()
    return client.fetch(node, {tp: offset}, max_wait_ms=0, partition_max_bytes=1 << 24)[tp].records
