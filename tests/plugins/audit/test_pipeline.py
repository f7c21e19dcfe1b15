"""The audit on a real broker: real producers and consumers, killed, replayed and bypassed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm import Consumer, Producer
from klamm.core.cli.main import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.query import AuditQuery, audit_config, completeness_watermark
from klamm.plugins.audit.web import views
from klamm.plugins.audit.web.source import ClusterSource
from klamm.plugins.audit.windows import parse_instant
from klammtest.audits import read_audit_log
from klammtest.broker import RunningBroker, running_broker

TOPIC = "trips"
WAIT_S = "60"
START = parse_instant("2013-01-01")
MINUTE = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(
        tmp_path,
        topics={TOPIC: {"partitions": 3, "config": {"retention.ms": -1}}},
        audit={"plugin": "klamm", "topics": [TOPIC], "publish.interval.ms": 500, "broker.interval.ms": 50},
    ) as running:
        said = running.config_path.read_text()
        clients = "".join(f"{name}:\n  bootstrap.servers: {running.bootstrap}\n" for name in ("producer", "consumer"))
        running.config_path.write_text(said + clients + "  auto.offset.reset: earliest\n  group.protocol: classic\n")
        yield running


def produce(broker: RunningBroker, count: int, begin: int = 0) -> None:
    with Producer(broker.config_path) as producer:
        for n in range(begin, begin + count):
            producer.send(TOPIC, b"value", key=str(n).encode(), timestamp_ms=START + n * MINUTE)


def consume(broker: RunningBroker, count: int, group: str = "readers") -> None:
    seen: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 60
    with Consumer(broker.config_path, group=group, topics=[TOPIC]) as consumer:
        while len(seen) < count and time.monotonic() < deadline:
            seen.update((record.partition, record.offset) for record in consumer.poll(0.2, 1000))
    assert len(seen) == count


def audit(broker: RunningBroker, *options: str, wait: str = WAIT_S) -> tuple[int, dict[str, Any]]:
    command = ["audit", "--config", str(broker.config_path), "--json", "--wait", wait, *options]
    result = CliRunner().invoke(app, command)
    [topic] = json.loads(result.stdout)["topics"]
    return result.exit_code, topic


def kinds(topic: dict[str, Any]) -> list[str]:
    return [problem["kind"] for problem in topic["problems"]]


def test_all_tiers_agree_and_the_watermark_is_the_end(broker: RunningBroker) -> None:
    produce(broker, 100)
    produce(broker, 100, begin=100)
    consume(broker, 200)
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["complete"], topic["lowest"], topic["problems"]) == (0, True, 1.0, [])
    assert len(topic["rows"]) == 20
    assert all(row["tiers"]["producer"]["attempted"] == 10 for row in topic["rows"])
    assert topic["watermark_ms"] == START + 200 * MINUTE
    settings = load_settings(broker.config_path)
    with ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client:
        assert completeness_watermark(client, audit_config(settings), TOPIC) == START + 200 * MINUTE


def test_a_table_is_printed_and_its_windows_can_be_chosen(broker: RunningBroker) -> None:
    produce(broker, 100)
    audit(broker)
    command = ["audit", "--config", str(broker.config_path), "--by", "hour", "--until", "2013-01-01T01:00"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "2013-01-01 00:00" in result.stdout
    assert "2013-01-01 01:00" not in result.stdout
    assert "watermark): 2013-01-01T01:40Z" in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--tier", "tailor"),
        ("--expect", "broker"),
        ("--since", "soon"),
        ("--since", "2013-01-03", "--until", "2013-01-01"),
    ],
)
def test_a_wrong_option_is_one_line(broker: RunningBroker, options: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["audit", "--config", str(broker.config_path), *options])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(options[0])
    assert "\n" not in str(result.exception)


def test_a_tier_that_was_expected_and_has_told_nothing_is_unknown(broker: RunningBroker) -> None:
    produce(broker, 30)
    status, topic = audit(broker, "--expect", "hadoop/lake", wait="0")
    assert status == 1
    assert "absent" in kinds(topic)
    assert topic["lowest"] is None


def test_a_record_of_a_client_that_does_not_audit_is_counted_apart(broker: RunningBroker) -> None:
    produce(broker, 30)
    with ClusterClient(broker.bootstrap, codecs=load_settings(broker.config_path).codec_table()) as client:
        client.produce({TopicPartition(TOPIC, 0): encode_batch([(START, b"0", b"value", ())])})
    deadline = time.monotonic() + 60
    while True:
        status, topic = audit(broker)
        counted = topic["rows"][0]["tiers"]["broker"]
        if counted["not_audited"] == 1:
            break
        assert time.monotonic() < deadline
    assert (status, topic["lowest"], counted["records"]) == (0, 1.0, 11)
    command = ["audit", "--config", str(broker.config_path)]
    assert "not audited" in CliRunner().invoke(app, command).stdout


def test_a_group_that_has_not_read_all_is_late(broker: RunningBroker) -> None:
    produce(broker, 30)
    consume(broker, 30)
    produce(broker, 30, begin=30)
    status, topic = until(broker, "late", rows=6, options=("--expect", "consumer/readers"))
    assert status == 1
    assert [row["state"] for row in topic["rows"]] == ["complete"] * 3 + ["late"] * 3
    status, topic = audit(broker, "--tier", "producer", "--tier", "broker")
    assert (status, topic["complete"]) == (0, True)
    assert list(topic["rows"][0]["tiers"]) == ["producer", "broker"]
    assert audit(broker, "--tier", "producer", "--expect", "mirror", wait="0")[0] == 1
    assert audit(broker, "--tier", "consumer/readers", wait="0")[0] == 1
    assert audit(broker, "--tier", "consumer/nobody", wait="0")[0] == 1
    status, topic = audit(broker)  # nobody expects the group: it is shown, and holds nothing
    assert (status, topic["complete"], topic["watermark_ms"]) == (0, True, START + 60 * MINUTE)
    assert topic["remarks"] == ["consumer/readers is late: it is not expected (audit.expect), so it holds nothing back"]


def klamm(broker: RunningBroker, *command: str) -> Any:
    return CliRunner().invoke(app, [*command, "--config", str(broker.config_path)])


def test_a_group_that_was_deleted_or_retired_is_not_compared_and_a_new_life_is(broker: RunningBroker) -> None:
    produce(broker, 30)
    for group in ("readers", "renamed"):
        consume(broker, 30, group)
    produce(broker, 30, begin=30)
    until(broker, "late", rows=6, options=("--expect", "consumer/readers", "--expect", "consumer/renamed"))
    assert klamm(broker, "groups", "delete", "readers").exit_code == 0
    who = ("--who", "anna", "--why", "now called billing")
    assert klamm(broker, "audit", "retire", "consumer/renamed", *who).exit_code == 0
    status, topic = audit(broker)
    assert (status, list(topic["rows"][0]["tiers"])) == (0, ["producer", "broker"])
    assert {(each["tier"], each["who"], each["why"]) for each in topic["ended"]} == {
        ("consumer/readers", "klamm groups delete", "the group was deleted"),
        ("consumer/renamed", "anna", "now called billing"),
    }
    assert audit(broker, "--expect", "consumer/readers", wait="0")[0] == 1  # absent: it has ended
    consume(broker, 60, "readers")
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["lowest"]) == (0, 1.0)
    unknown = klamm(broker, "audit", "retire", "consumer/raeders", *who)
    assert str(unknown.exception) == (
        "consumer/raeders has counted nothing, so there is nothing to end; did you mean 'consumer/readers'?"
    )


def at_the_end(broker: RunningBroker) -> Consumer:
    """Returns a consumer that has begun at the end of each partition, and commits nothing by itself."""
    settings = load_settings(broker.config_path)
    options = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    latest = settings.with_(consumer=settings.consumer.model_copy(update=options))
    consumer = Consumer(latest, group="latest", topics=[TOPIC])
    deadline = time.monotonic() + 60
    while len(consumer.assignment()) < 3 or None in map(consumer.position, consumer.assignment()):
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    return consumer


def received(consumer: Consumer, count: int) -> None:
    seen, deadline = 0, time.monotonic() + 60
    while seen < count:
        assert time.monotonic() < deadline
        seen += len(consumer.poll(0.2))


def test_a_group_that_begins_at_the_end_makes_no_earlier_window_missing(broker: RunningBroker) -> None:
    """Each of its members tells where it begins before a record is returned, in partitions without new records too."""
    produce(broker, 30)
    with at_the_end(broker) as consumer:
        status, topic = audit(broker, "--expect", "consumer/latest")
        states = {row["tiers"]["consumer/latest"]["state"] for row in topic["rows"]}
        assert (status, states, topic["watermark_ms"]) == (0, {"not compared"}, START + 30 * MINUTE)
        produce(broker, 1, begin=30)
        received(consumer, 1)
        consumer.commit()
        status, topic = audit(broker, "--expect", "consumer/latest")
        assert [row["tiers"]["consumer/latest"]["state"] for row in topic["rows"]][-1] == "complete"
        assert (status, topic["watermark_ms"]) == (0, START + 40 * MINUTE)


def test_what_a_group_received_is_not_complete_where_it_begins_at_the_end_without_a_commit(
    broker: RunningBroker,
) -> None:
    """Its member stored its counts and ended before its commit: nobody is given these records again."""
    with at_the_end(broker) as consumer:
        produce(broker, 30)
        received(consumer, 30)
        consumer._audit.publish({partition: consumer.position(partition) for partition in consumer.assignment()})
        assert audit(broker, "--expect", "consumer/latest")[0] == 0
    with at_the_end(broker):
        status, topic = audit(broker, "--expect", "consumer/latest", wait="0")
        assert (status, {row["tiers"]["consumer/latest"]["state"] for row in topic["rows"]}) == (1, {"unknown"})


def until(
    broker: RunningBroker, state: str, rows: int = 0, options: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """Ask until a row is in this state, and the broker has caught up with so many windows."""
    deadline = time.monotonic() + 60
    while True:
        status, topic = audit(broker, *options, wait="0")
        broker_rows = [row for row in topic["rows"] if row["tiers"]["broker"]["records"]]
        states = [row["state"] for row in topic["rows"]]
        if state in states and "unknown" not in states and len(broker_rows) >= rows:
            return status, topic
        assert time.monotonic() < deadline, states
        time.sleep(0.1)


KILLED = """
import sys, time
from klamm import Producer
producer = Producer(sys.argv[1])
for n in range(50):
    producer.send("trips", b"value", key=b"k", timestamp_ms=1357000000000).result(30)
print("sent", flush=True)
time.sleep(60)
"""


@contextmanager
def sender(broker: RunningBroker) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sends 50 records into the third window and then does nothing."""
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(broker.config_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sent\n"
        yield child
    finally:
        child.kill()
        child.communicate(timeout=60)


def asked_until(broker: RunningBroker, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        topic = audit(broker, wait="0")[1]
        if wanted(topic):
            return topic
        assert time.monotonic() < deadline, topic
        time.sleep(0.1)


def test_a_producer_killed_with_9_is_unknown_where_it_counted_until_it_is_settled(broker: RunningBroker) -> None:
    produce(broker, 30)
    with sender(broker) as child:
        os.kill(child.pid, signal.SIGKILL)
    topic = asked_until(broker, lambda topic: "killed" in kinds(topic) and stored(topic, 2) == 60)
    states = {row["label"]: row["state"] for row in topic["rows"]}
    if states["2013-01-01 00:20"] == "complete":  # it was quiet: what it told is all
        return
    assert [states[f"2013-01-01 00:{tens}0"] for tens in range(3)] == ["complete", "complete", "unknown"]
    said = settle(broker, "--who", "ops", "--why", "nobody has the rest")
    assert said.startswith("settled ")
    status, topic = audit(broker)
    assert (status, topic["problems"]) == (0, [])
    assert [(by["who"], by["why"]) for by in topic["settled"]] == [("ops", "nobody has the rest")]
    assert "killed" in [problem["kind"] for problem in topic["settled_problems"]]
    printed = CliRunner().invoke(app, ["audit", "--config", str(broker.config_path)]).stdout
    assert "settled by ops" in printed
    with pytest.raises(ConfigError, match="nothing to settle"):
        settle(broker, "--who", "ops", "--why", "again")


def stored(topic: dict[str, Any], row: int) -> int:
    rows = topic["rows"]
    return int(rows[row]["tiers"]["broker"]["records"]) if len(rows) > row else 0


def settle(broker: RunningBroker, *options: str) -> str:
    done = CliRunner().invoke(app, ["audit", "settle", TOPIC, "--config", str(broker.config_path), *options])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_topic_that_is_not_there_is_named_with_the_nearest(broker: RunningBroker) -> None:
    produce(broker, 3)
    consume(broker, 3)
    config = ("--config", str(broker.config_path))
    for command in (["audit", "--topic", "tripss"], ["audit", "settle", "tripss", "--who", "x", "--why", "y"]):
        done = CliRunner().invoke(app, [*command, *config])
        assert str(done.exception) == "UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'tripss'; did you mean 'trips'?"
    with ClusterClient(broker.bootstrap, codecs=load_settings(broker.config_path).codec_table()) as client:
        client.delete_topics([TOPIC])
    done = CliRunner().invoke(app, ["audit", "--topic", TOPIC, *config])  # it is gone, and its counts are not
    assert "audit of topic trips" in done.stdout


@pytest.mark.parametrize("tier", ["mirrors", "mirrors/x", "brokers"])
def test_a_tier_that_nobody_counts_is_refused(broker: RunningBroker, tier: str) -> None:
    for option in ("--tier", "--expect"):
        done = CliRunner().invoke(app, ["audit", option, tier, "--config", str(broker.config_path)])
        assert isinstance(done.exception, ConfigError)
        assert f"got {tier!r}" in str(done.exception)


def test_nothing_to_settle_says_so(broker: RunningBroker) -> None:
    produce(broker, 3)
    with pytest.raises(ConfigError, match="trips: nothing has been counted in what was asked for, so there is nothing"):
        settle(broker, "--who", "x", "--why", "y", "--until", "2001-01-01")


@pytest.mark.parametrize("options", [("--who", " ", "--why", "x"), ("--who", "x", "--why", "")])
def test_nothing_is_settled_without_who_and_why(broker: RunningBroker, options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected a text that is not empty"):
        settle(broker, *options)


def test_a_producer_killed_with_9_after_all_was_counted_leaves_nothing_unknown(broker: RunningBroker) -> None:
    produce(broker, 30)
    settings = load_settings(broker.config_path)
    with (
        sender(broker) as child,
        ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client,
    ):
        deadline = time.monotonic() + 60
        while not any(told.quiet for told in read_audit_log(client, audit_config(settings).topic).events):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(child.pid, signal.SIGKILL)
    topic = asked_until(broker, lambda topic: not topic["live_producers"] and stored(topic, 2) == 60)
    assert (topic["complete"], topic["lowest"], topic["problems"]) == (True, 1.0, [])


def test_a_topic_created_again_is_counted_by_itself(broker: RunningBroker) -> None:
    produce(broker, 30)
    consume(broker, 30)
    assert audit(broker, "--expect", "consumer/readers")[0] == 0
    with ClusterClient(broker.bootstrap, codecs=load_settings(broker.config_path).codec_table()) as client:
        client.delete_topics([TOPIC])
        client.create_topics({TOPIC: NewTopic(3, configs={"retention.ms": "-1"})})
    produce(broker, 60)
    consume(broker, 60)
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["lowest"], len(topic["topic_ids"])) == (0, 1.0, 2)
    assert [row["tiers"]["consumer/readers"]["records"] for row in topic["rows"][:3]] == [20, 20, 20]
    printed = CliRunner().invoke(app, ["audit", "--config", str(broker.config_path)]).stdout
    assert "was deleted and created again" in " ".join(printed.split())


def test_a_broker_killed_with_9_goes_on_counting_where_it_stopped(broker: RunningBroker) -> None:
    produce(broker, 100)
    broker.kill()
    broker.start()
    produce(broker, 100, begin=100)
    consume(broker, 200)
    status, topic = audit(broker)
    assert (status, topic["problems"]) == (0, [])


def test_reading_again_after_a_seek_back_is_not_summed(broker: RunningBroker) -> None:
    produce(broker, 90)
    seen = 0
    with Consumer(broker.config_path, group="readers", topics=[TOPIC]) as consumer:
        deadline = time.monotonic() + 60
        while seen < 90 and time.monotonic() < deadline:
            seen += len(consumer.poll(0.2, 1000))
        consumer.commit()
        for partition in consumer.assignment():
            consumer.seek(partition, 0)
        while seen < 180 and time.monotonic() < deadline:
            seen += len(consumer.poll(0.2, 1000))
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["lowest"]) == (0, 1.0)


def test_a_seek_back_before_the_first_poll_is_a_replay_too(broker: RunningBroker) -> None:
    """A group that is rewound by a new process: what it had committed is not counted again, wherever ranges ended."""
    produce(broker, 60)
    consume(broker, 60)
    produce(broker, 60, begin=60)
    consume(broker, 60)
    rewound: set[TopicPartition] = set()
    seen = 0
    with Consumer(broker.config_path, group="readers", topics=[TOPIC]) as consumer:
        deadline = time.monotonic() + 60
        while len(rewound) < 3 and time.monotonic() < deadline:
            for partition in consumer.assignment() - rewound:
                consumer.seek(partition, 5)
                rewound.add(partition)
        while seen < 105 and time.monotonic() < deadline:
            seen += len(consumer.poll(0.2, 1000))
    assert seen == 105
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["problems"], topic["lowest"]) == (0, [], 1.0)


def test_where_the_broker_stamps_records_all_tiers_count_by_its_time(broker: RunningBroker) -> None:
    with ClusterClient(broker.bootstrap, codecs=load_settings(broker.config_path).codec_table()) as client:
        client.alter_configs(TOPIC, {"message.timestamp.type": "LogAppendTime"})
    produce(broker, 30)
    consume(broker, 30)
    status, topic = audit(broker, "--expect", "consumer/readers")
    assert (status, topic["lowest"]) == (0, 1.0)
    stamped = [row for row in topic["rows"] if row["tiers"]["broker"]["records"]]
    assert sum(row["tiers"]["producer"]["records"] for row in stamped) == 30


def test_the_pages_source_follows_a_live_topic_and_outlives_the_broker(broker: RunningBroker) -> None:
    settings = load_settings(broker.config_path)
    config = audit_config(settings)

    def connect() -> ClusterClient:
        return ClusterClient(broker.bootstrap, codecs=settings.codec_table(), request_timeout_s=30)

    source = ClusterSource(connect, config, AuditQuery(), max_age_s=0)
    try:
        for total in (100, 200):
            produce(broker, 100, begin=total - 100)
            deadline = time.monotonic() + 300
            while not (said := source.answer()).complete and time.monotonic() < deadline:
                time.sleep(0.1)
            [entry] = views.overview(said)["topics"]
            assert (entry["state"], entry["lag"]) == ("complete", {"broker": 0})
            [row] = views.producers(said, TOPIC, views.Filters(), None, None)["applications"]
            assert (row["acknowledged"], row["stored"], row["missing"]) == (total, total, 0)
        broker.stop()
        with pytest.raises(KlammError):
            source.answer()
        broker.restart()
        assert source.answer().complete
    finally:
        source.close()
