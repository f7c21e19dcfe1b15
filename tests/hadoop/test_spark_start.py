"""A Spark that does not start: the key of the YAML file, and Spark's reason. No JVM is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

import klamm
from klamm import load_settings
from klamm.core.errors import ConfigError
from klamm.hadoop import session
from klamm.hadoop.session import SparkSettings, start_failure

EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
WHERE = "klamm.yaml: sinks.lake"


def said(reason: str, output: str = "", master: str = "local[2]", memory: str = "1g", **extra: str) -> str:
    given = {name.replace("_", "."): value for name, value in extra.items()}
    return start_failure(SparkSettings("t", master, memory, given, WHERE), reason, output.encode())


def test_what_java_refuses_is_the_memory() -> None:
    output = (
        "WARNING: Using incubator modules: jdk.incubator.vector\nInvalid maximum heap size: -Xmxlots\n"
        "Error: Could not create the Java Virtual Machine.\nError: A fatal exception has occurred. Program will exit.\n"
    )
    line = "Spark did not start: Invalid maximum heap size: -Xmxlots"
    assert said(EXITED, output, memory="lots") == f"{WHERE}.spark.driver.memory: {line}"
    told = said(EXITED, output, spark_driver_memory="lots")
    assert told == f"{WHERE}.spark.config.spark.driver.memory: {line}"


def test_what_spark_submit_refuses_is_the_master() -> None:
    output = (
        'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark\n'
        "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1047)\n"
    )
    assert said(EXITED, output, master="lokal").startswith(f"{WHERE}.spark.master: Spark did not start: Exception in")
    line = "SparkException: Could not parse Master URL: 'local[x]'"
    assert said(line, master="local[x]") == f"{WHERE}.spark.master: Spark did not start: {line}"


def test_a_key_of_spark_config_is_named_by_its_name_or_its_value() -> None:
    line = "IllegalArgumentException: spark.ui.port should be int, but was soon"
    assert said(line, spark_ui_port="soon") == f"{WHERE}.spark.config.spark.ui.port: Spark did not start: {line}"
    line = "NumberFormatException: Size must be specified as bytes (b). Failed to parse byte string: lots"
    assert said(line, spark_broadcast_blockSize="lots", spark_speculation="true") == (
        f"{WHERE}.spark.config.spark.broadcast.blockSize: Spark did not start: {line}"
    )


def test_a_reason_about_no_key_names_none() -> None:
    assert said("BindException: no free port") == "Spark did not start: BindException: no free port"
    assert said(EXITED) == f"Spark did not start: {EXITED}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("spark.master", "lokal"), ("spark.master", "local[x]"), ("spark.master", ""), ("spark.driver.memory", "lots"),
     ("spark.driver.memory", "1.5g"), ("spark.driver.memory", "1gb"), ("spark.driver.memory", 0),
     ("spark.driver.memory", 2048), ("target.file.size", 0)],
)  # fmt: skip
def test_what_spark_would_refuse_is_found_by_config_check(key: str, value: Any) -> None:
    sink = {"plugin": "hadoop", "topics": ["t"], "path": "/tmp/lake", key: value}
    with pytest.raises(ConfigError, match=rf"sinks\.lake\.{key}: (expected|should be) ") as caught:
        load_settings({"sinks": {"lake": sink}})
    assert "\n" not in str(caught.value)


def test_bounds_of_timestamps_in_the_wrong_order_are_one_line() -> None:
    bounds = {"timestamp.min": "2020-01-01", "timestamp.max": "2019-01-01"}
    with pytest.raises(ConfigError, match=r"sinks\.lake\.timestamp\.min: expected an instant before timestamp\.max"):
        load_settings({"sinks": {"lake": {"plugin": "hadoop", "topics": ["t"], "path": "/tmp/lake", **bounds}}})


def test_a_name_that_no_topic_can_have_is_one_line() -> None:
    sink = {"plugin": "hadoop", "topics": ["bad topic"], "path": "/tmp/lake"}
    for document, where in (
        ({"sinks": {"lake": sink}}, "sinks.lake"),
        ({"audit": {"plugin": "klamm", "topics": ["bad topic"]}}, "audit"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(document)
        assert f"{where}.topics: topic name 'bad topic': only letters, digits" in str(caught.value)


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,3]", "spark://a:7077,b:7077", "k8s://https://a", "yarn"]
)
def test_masters_of_spark_are_accepted(master: str) -> None:
    sink = {
        "plugin": "hadoop",
        "topics": ["t"],
        "path": "/tmp/lake",
        "spark.master": master,
        "spark.driver.memory": "2G",
    }
    load_settings({"sinks": {"lake": sink}})


def test_the_jvm_has_a_process_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM to the group of `klamm load --every` must not end the JVM under the running load."""
    found: dict[str, Any] = {}

    def launch(conf: SparkConf, popen: dict[str, Any]) -> None:
        found.update(popen, memory=conf.get("spark.driver.memory"))

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: gateway)
    monkeypatch.setattr(session, "launch_gateway", launch)
    session._ensure_jvm(SparkSettings("t", "local[2]", "1g", {}))
    assert found == {"start_new_session": True, "memory": "1g"}


def test_the_jvms_options_hold_where_the_installation_has_a_space_in_its_path(tmp_path: Path) -> None:
    installed = tmp_path / "a b" / "klamm"
    installed.parent.mkdir()
    installed.symlink_to(Path(klamm.__file__).parent)
    code = (
        "from klamm.hadoop.session import SparkSettings as s\n"
        "print(s('t', 'local[1]', '1g', {}).configuration()['spark.driver.extraJavaOptions'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "/a%20b/klamm/" in done.stdout
    assert all(option.startswith("-") for option in done.stdout.split())
