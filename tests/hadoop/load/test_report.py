"""`--json` and the exit statuses: what an orchestrator is told of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pyspark.sql import SparkSession

from klamm.core.client.consumer.sink_runner import SinkRunner
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.load.cli import EMPTY, load
from klammtest.brokers.served import KEPT, T0, Served, served
from klammtest.native.batches import unopenable

UNOPENABLE = unopenable([(1_000_000, None, b"lost", ())] * 4)


@pytest.fixture
def at(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


def config(at: Served, *topics: str, **options: Any) -> Path:
    sink = {"plugin": "hadoop", "topics": [*topics], "path": f"{at.folder}/lake", **options}
    path = at.folder / "klamm.yaml"
    path.write_text(yaml.safe_dump({"consumer": {"bootstrap.servers": at.bootstrap}, "sinks": {"lake": sink}}))
    return path


def by_pattern(at: Served, pattern: str) -> Path:
    path = config(at)
    said = yaml.safe_load(path.read_text())
    del said["sinks"]["lake"]["topics"]
    said["sinks"]["lake"]["topics.regex"] = pattern
    path.write_text(yaml.safe_dump(said))
    return path


def object_of(text: str) -> dict[str, Any]:
    """Stdout holds this object and nothing else; without the times."""
    (line,) = text.splitlines()
    said: dict[str, Any] = json.loads(line)
    for part in (said, *said["topics"]):
        assert part.pop("seconds") >= 0
    assert said.pop("started").endswith("+00:00")
    return said


def test_a_run_is_one_object_and_one_exit_status(at: Served, capsys: pytest.CaptureFixture[str]) -> None:
    at.produce(range(100))
    at.client.delete_records({T0: 60})
    at.client.produce({T0: UNOPENABLE})
    options = {"on.bad.record": "quarantine", "auto.offset.reset": "earliest"}
    with pytest.raises(KlammError, match="1 of 2 topics not loaded: nowhere"):
        load(config=config(at, "nowhere", "t", **options), as_json=True, fail_if_empty=True)
    said = object_of(capsys.readouterr().out)
    failed, loaded = said.pop("topics")
    assert said == {"sink": "lake", "status": "failed", "error": "1 of 2 topics not loaded: nowhere"}
    assert failed.pop("error").startswith("UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nowhere'")
    assert failed == {
        "topic": "nowhere", "status": "failed", "load": None, "loads": 0, "records": 0, "bytes": 0, "files": 0,
        "more": False, "quarantined": 0, "partitions": [], "gap": [],
    }  # fmt: skip
    assert loaded.pop("bytes") > 0
    assert loaded == {
        "topic": "t", "status": "loaded", "load": 1, "loads": 1, "records": 40, "files": 2, "quarantined": 1,
        "partitions": [{"partition": 0, "from": 0, "to": 104}], "gap": [{"partition": 0, "from": 0, "to": 60}],
        "more": False, "error": None,
    }  # fmt: skip

    load(config=config(at, "t", **options), as_json=True)
    empty = object_of(capsys.readouterr().out)
    assert (empty["status"], empty["error"], empty["topics"][0]["status"]) == ("empty", None, "empty")
    with pytest.raises(typer.Exit) as ended:
        load(config=config(at, "t", **options), fail_if_empty=True)
    assert ended.value.exit_code == EMPTY
    assert capsys.readouterr().out == "load topic=t rows=0: nothing new\n"


def test_topics_by_a_pattern_with_one_that_fails(at: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Internal topics and names that match in part are not taken; a topic that is made later is, by the next run."""
    with pytest.raises(KlammError, match=r"sinks.lake.topics.regex: no topic matches 'nowhere.\*'"):
        load(config=by_pattern(at, "nowhere.*"), as_json=True)
    assert object_of(capsys.readouterr().out)["status"] == "failed"
    at.client.create_topics(dict.fromkeys(("t1", "t2", "xt", "_t"), KEPT))
    at.produce(range(10))
    for name in ("t2", "xt", "_t"):
        at.client.produce({TopicPartition(name, 0): encode_batch([(1_000_000, None, b"v", ())])})
    (at.folder / "lake" / "t1" / "load=000001").mkdir(parents=True)
    with pytest.raises(KlammError, match="1 of 3 topics not loaded: t1"):
        load(config=by_pattern(at, "_?t[0-9]?"), as_json=True)
    topics = object_of(capsys.readouterr().out)["topics"]
    assert [(t["topic"], t["status"], t["records"]) for t in topics] == [
        ("t", "loaded", 10), ("t1", "failed", 0), ("t2", "loaded", 1)
    ]  # fmt: skip
    assert "no load wrote it" in topics[1]["error"]
    with pytest.raises(ConfigError, match=r"sinks.lake.topics.regex: 'xt' does not match it"):
        load(config=by_pattern(at, "t.*"), topic=["xt"])
    sink = {"plugin": "files", "topics.regex": "t.*", "path": f"{at.folder}/files"}
    with pytest.raises(ConfigError, match=r"sinks.f.topics.regex: `klamm load` takes a pattern"):
        SinkRunner(load_settings({"sinks": {"f": sink}}), "f")
