"""A running producer and a running consumer move to the mirror ("Move a running Kafka cluster to Klamm" in
docs/mirror.md; `bench/move_from_kafka.py` does the same from Apache Kafka)."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from klamm.core.cli.mirror.commands import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klammtest.broker import running_broker
from klammtest.clients.moving import move
from klammtest.logs import codec_table


def test_running_clients_move_without_a_lost_or_doubled_record(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "old") as old,
        ClusterClient(old.bootstrap, codecs=codec_table()) as source,
    ):
        link = {
            "bootstrap.servers": old.bootstrap,
            "topics.regex": ".*",
            "groups.regex": ".*",
            "groups.interval.ms": 100,
            "fetch.max.wait.ms": 100,
        }
        with (
            running_broker(tmp_path / "new", mirrors={"old": link}) as new,
            ClusterClient(new.bootstrap, codecs=codec_table()) as target,
        ):

            def run(*arguments: str) -> None:
                result = CliRunner().invoke(app, [*arguments, "--config", str(new.config_path)])
                if result.exception is not None:
                    raise result.exception

            def copied() -> bool:
                there, here = source.fetch_offsets("load.moving"), target.fetch_offsets("load.moving")
                return {tp: each.offset for tp, each in there.items()} == {tp: each.offset for tp, each in here.items()}

            source.create_topics({"orders": NewTopic(3, 1)})
            run("create", "old")
            run("status", "old", "--wait", "60s")
            moved = move(
                old.bootstrap,
                new.bootstrap,
                "orders",
                copied,
                lambda: run("promote", "old", "--drain", "--quiet", "1s"),
            )
    print(f"pauses: consumer {moved.consumer_pause_s:.2f} s, producer {moved.producer_pause_s:.2f} s")
    assert not moved.problems
