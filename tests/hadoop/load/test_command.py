"""`klamm load` as users run it: real broker, typed records, a kill -9, the audit's event, spark-submit with a wheel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from rich.console import Console

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.producer.producer import Producer
from klamm.core.config.settings import load_settings
from klamm.core.errors import KlammError
from klamm.hadoop.load.cli import load
from klamm.hadoop.load.loader import Loader
from klamm.plugins.audit.query import AuditQuery, ask, audit_config, completeness_watermark
from klammtest.broker import RunningBroker, running_broker
from klammtest.hadoop.hdfs_client import Administration
from klammtest.ports import free_port
from klammtest.suite.wheel import build_wheel
from klammtest.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
DAY_MS = 86_400_000
TRIP = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes", "default": ""},
    ],
}
TWINS = {"type": "record", "name": "Twins", "fields": [{"name": name, "type": "int"} for name in ("id", "ID")]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("load")
    (folder / "trip.avsc").write_text(json.dumps(TRIP))
    (folder / "twins.avsc").write_text(json.dumps(TWINS))
    kept = {"partitions": 2, "config": {"retention.ms": -1}}
    sections: dict[str, Any] = {
        "topics": {
            "trips": {**kept, "schema": "trip.avsc"},
            "raw": dict(kept),
            "late": {**kept, "schema": "trip.avsc"},
            "far": {**kept, "schema": "trip.avsc"},
            "twins": {**kept, "schema": "twins.avsc"},
            "plain": dict(kept),
        },
        "audit": {"plugin": "klamm", "topics": ["trips"]},
        "sinks": {
            "lake": {"plugin": "hadoop", "topics": ["trips", "raw"], "path": "./lake"},
            "other": {"plugin": "hadoop", "topics": ["late"], "path": "file:other"},
            "mixed": {"plugin": "hadoop", "topics": ["twins", "plain"], "path": "./mixed"},
            "archive": {"plugin": "files", "topics": ["trips"], "path": "./archive"},
        },
    }
    with running_broker(folder, **sections) as running:
        config = yaml.safe_load(running.config_path.read_text())
        config["producer"] = config["consumer"] = {"bootstrap.servers": running.bootstrap}
        running.config_path.write_text(yaml.safe_dump(config))
        yield running


def send(broker: RunningBroker, topic: str, ids: range) -> None:
    with Producer(broker.config_path) as producer:
        done = [
            producer.send(topic, {"id": n, "note": f"n{n}", "raw": b"\xff"}, key=str(n), timestamp_ms=n % 4 * DAY_MS)
            if topic != "raw"
            else producer.send(topic, str(n).encode(), timestamp_ms=n % 4 * DAY_MS)
            for n in ids
        ]
    for future in done:
        future.result(30)


def klamm_load(broker: RunningBroker, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "klamm", "load", "--config", broker.config_path, *more],
        env={**os.environ, **environment}, cwd="/", text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip


def ids(spark: SparkSession, broker: RunningBroker, lake: str, topic: str) -> list[int]:
    return sorted(row["id"] for row in spark.read.parquet(f"{broker.folder}/{lake}/{topic}").select("id").collect())


def test_a_load_by_the_command(broker: RunningBroker, spark: SparkSession) -> None:
    send(broker, "trips", range(100))
    send(broker, "raw", range(10))
    done = klamm_load(broker, "lake")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("load topic=trips load=1 rows=100 files=4 ")
    assert lines[1].startswith("load topic=raw load=1 rows=10 files=4 ")
    assert ids(spark, broker, "lake", "trips") == list(range(100))
    row = spark.read.parquet(f"{broker.folder}/lake/trips").where("id = 7").collect()[0]
    assert (row["note"], row["raw"], row["_key"], str(row["dt"]), row["load"]) == ("n7", b"\xff", b"7", "1970-01-04", 1)
    nothing = klamm_load(broker, "lake", "--topic", "trips")
    assert nothing.stdout == "load topic=trips rows=0: nothing new\n"


def test_a_record_type_that_no_lake_can_hold_is_a_line_and_the_next_topic_is_loaded(broker: RunningBroker) -> None:
    with Producer(broker.config_path) as producer:
        producer.send("twins", {"id": 1, "ID": 2}).result(30)
        producer.send("plain", b"x").result(30)
    with Loader(load_settings(broker.config_path), "mixed", Console(stderr=True)) as loader:
        twins, plain = loader.run().topics
    assert twins.error == (
        "topic twins: field ID: differs only in case from id, which Spark takes for the same; rename one; "
        "nothing is loaded"
    )
    assert [load.rows for load in plain.loads] == [1]
    assert not list((broker.folder / "mixed" / "twins").glob("load=*"))


def test_increments_and_their_audit_events(broker: RunningBroker, spark: SparkSession) -> None:
    """After the test above: two loads of trips, whose counts are in the audit topic."""
    send(broker, "trips", range(100, 130))
    settings = load_settings(broker.config_path)
    with ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client:
        told = AuditQuery(topics=("trips",), tiers=("producer", "broker"))
        eventually(lambda: ask(client, audit_config(settings), told).complete, "the broker tier has counted all", 60)
    with Loader(load_settings(broker.config_path), "lake", Console(stderr=True)) as loader:
        (line,) = loader.load("trips").lines()
    assert line.startswith("load topic=trips load=2 rows=30 ")
    assert ids(spark, broker, "lake", "trips") == list(range(130))
    assert sorted(os.listdir(broker.folder / "lake" / "trips" / "_audited")) == ["000001", "000002"]  # noqa: PTH208
    shown = subprocess.run(
        [BIN / "klamm", "audit", "--config", broker.config_path, "--topic", "trips"],
        text=True, capture_output=True, timeout=180, check=False,
    )  # fmt: skip
    (total,) = [line for line in shown.stdout.splitlines() if line.strip("│ ").startswith("all")]
    assert total.count("130") >= 3, shown.stdout
    # The load's own watermark is the one that the audit has now that it was told of the load.
    counts = json.loads((broker.folder / "lake" / "trips" / "load=000002" / "_audit.json").read_text())
    with ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client:
        assert counts["watermark_ms"] == completeness_watermark(client, audit_config(settings), "trips")
    assert counts["watermark_ms"] > 3 * DAY_MS


def test_a_load_into_hdfs_killed_and_run_again(broker: RunningBroker, spark: SparkSession, hdfs_root: str) -> None:
    """Before the rename; into `file:`, at every point: `test_crashes.py`."""
    send(broker, "far", range(50))
    config = yaml.safe_load(broker.config_path.read_text())
    config["sinks"] = {"far": {"plugin": "hadoop", "topics": ["far"], "path": f"{hdfs_root}/lake"}}
    there = broker.config_path.with_name("far.yaml")
    there.write_text(yaml.safe_dump(config))
    killed = klamm_load(broker, "--config", str(there), KLAMM_FAULTS="load.staged=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert Administration(hdfs_root).names(f"{hdfs_root}/lake/far") == ["_staging"]
    again = klamm_load(broker, "--config", str(there))
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("load topic=far load=1 rows=50 ")
    read = spark.read.parquet(f"{hdfs_root}/lake/far")
    assert sorted(row["id"] for row in read.select("id").collect()) == list(range(50))
    nothing = klamm_load(broker, "--config", str(there))
    assert (nothing.stdout, nothing.stderr) == ("load topic=far rows=0: nothing new\n", "")


def test_a_lake_on_an_hdfs_that_is_away_is_one_line(broker: RunningBroker) -> None:
    config = yaml.safe_load(broker.config_path.read_text())
    path = f"hdfs://127.0.0.1:{free_port()}/lake"
    quick = {"spark.hadoop.ipc.client.connect.max.retries": "1"}
    config["sinks"] = {"far": {"plugin": "hadoop", "topics": ["late"], "path": path, "spark.config": quick}}
    there = broker.config_path.with_name("away.yaml")
    there.write_text(yaml.safe_dump(config))
    done = klamm_load(broker, "--config", str(there))
    assert (done.returncode, done.stdout) == (1, "")
    first, last = done.stderr.splitlines()
    assert first.startswith("klamm: load of late: cannot ")
    assert "onnect" in first
    assert last.startswith("klamm: 1 of 1 topics not loaded: late")


def test_spark_submit_runs_the_wheel(broker: RunningBroker, spark: SparkSession, tmp_path: Path) -> None:
    send(broker, "late", range(20))
    wheel = build_wheel(tmp_path)
    script = tmp_path / "where.py"
    script.write_text(
        "import runpy, klamm\n"
        "from pyspark.sql import SparkSession\n"
        "try:\n"
        "    runpy.run_module('klamm.hadoop.load_main', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "context = SparkSession.builder.getOrCreate().sparkContext\n"
        "def where(_):\n"
        "    import klamm.hadoop.load.rows\n"
        "    return klamm.hadoop.load.rows.__file__\n"
        "print('WHERE', klamm.__file__, context.parallelize([0], 1).map(where).collect()[0])\n"
    )
    done = subprocess.run(
        [BIN / "spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false",
         "--driver-java-options", "-XX:TieredStopAtLevel=1", "--py-files", wheel, script,
         "--config", broker.config_path, "other"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable}, cwd=tmp_path,
        text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("load topic=late load=1 rows=20 files=4 ")
    where = lines[-1].split()
    assert where[0] == "WHERE"
    assert all(f"/{wheel.stem}." in path for path in where[1:]), where
    assert ids(spark, broker, "other", "late") == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "why"),
    [
        ((), {}, 2, "sinks: name the one to be loaded (there are: lake, mixed, other)"),
        (("lakes",), {}, 2, "sinks.lakes: there is no such sink (there are: archive, lake, mixed, other)"),
        (("archive",), {}, 2, "sinks.archive: `klamm load` fills sinks with `plugin: hadoop` only"),
        (("lake", "--topic", "x"), {}, 2, "sinks.lake.topics: there is no 'x' (there are: trips, raw)"),
        (("lake",), {"JAVA_HOME": "/nowhere"}, 2, "JAVA_HOME is /nowhere, which has no bin/java"),
        (("lake",), {"PATH": "/nowhere", "JAVA_HOME": ""}, 2, "Spark needs Java 17 or newer, and none was found"),
    ],
)
def test_wrong_use_is_one_line(
    broker: RunningBroker, arguments: tuple[str, ...], environment: dict[str, str], status: int, why: str
) -> None:
    done = klamm_load(broker, *arguments, **environment)
    assert done.returncode == status
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_topic_that_cannot_be_loaded_does_not_keep_the_others(
    broker: RunningBroker, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(broker.config_path.read_text())
    config["sinks"] = {"third": {"plugin": "hadoop", "topics": ["nowhere", "raw"], "path": "./third"}}
    changed = broker.folder / "third.yaml"
    changed.write_text(yaml.safe_dump(config))
    with pytest.raises(KlammError, match="1 of 2 topics not loaded: nowhere"):
        load(config=changed)
    said = capsys.readouterr()
    assert said.out.startswith("load topic=raw load=1 rows=10 ")
    assert said.err.startswith("klamm: load of nowhere: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nowhere'")
    assert said.err.count("\n") == 1


def test_ctrl_c_ends_a_load_with_one_line_and_leaves_nothing_visible(broker: RunningBroker) -> None:
    send(broker, "raw", range(100))
    config = yaml.safe_load(broker.config_path.read_text())
    config["sinks"] = {"fifth": {"plugin": "hadoop", "topics": ["raw"], "path": "./fifth"}}
    changed = broker.folder / "fifth.yaml"
    changed.write_text(yaml.safe_dump(config))
    staging = broker.folder / "fifth" / "raw" / "_staging"
    command = [BIN / "klamm", "load", "--config", changed]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as load:
        while not staging.exists() and load.poll() is None:
            threading.Event().wait(0.01)
        load.send_signal(signal.SIGINT)
        said = load.communicate(timeout=300)
    interrupted = "klamm: interrupted; a load that was not yet published has published nothing\n"
    assert (load.returncode, *said) == (130, "", interrupted)
    assert [path.name for path in staging.parent.iterdir()] == ["_staging"]
