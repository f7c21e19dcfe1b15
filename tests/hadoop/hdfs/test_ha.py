"""A lake on a name service: two NameNodes, of which the active one dies. And what Hadoop's configuration says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from klamm.core.errors import ConfigError
from klamm.hadoop.hdfs.server import HdfsServer, hadoop_xml
from klamm.hadoop.lake.cli import app
from klamm.hadoop.lake.site import VARIABLE, web_addresses
from klamm.hadoop.session import hadoop_jvm
from klammtest.faulty import fault_hook
from klammtest.hadoop.ha_hdfs import HdfsPair
from klammtest.hadoop.hdfs import new_server
from klammtest.hadoop.hdfs_client import SPARK, new_publisher
from klammtest.hadoop.load_jobs import TOPIC, add_flights, coordinates, everything, filled, job

KLAMM = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]
ROOT = "hdfs://pair/lake"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[HdfsPair]:
    new_server(tmp_path)  # skips where no HDFS is wanted
    with HdfsPair(tmp_path / "pair") as made:
        yield made


def loads(root: str, *options: str) -> int:
    """Returns how many loads `klamm lake ls` finds."""
    said = CliRunner().invoke(app, ["ls", root, "--json", *options])
    assert said.exit_code == 0, said.output
    found: int = json.loads(said.output)["loads"]
    return found


def test_a_load_goes_on_when_the_active_name_node_dies(
    spark: SparkSession, pair: HdfsPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop = hadoop_jvm(SPARK)
    for name, value in pair.client_settings().items():
        hadoop.configuration.set(name, value)
    pair.activate("a", hadoop)
    topics = filled(6)
    first = job(spark, topics, ROOT, publisher=new_publisher()).run(TOPIC)
    add_flights(topics, range(6, 12))

    def take_over(point: str) -> None:
        if point == "load.written":
            pair.name_nodes["a"].kill()
            pair.activate("b", hadoop)

    with fault_hook(take_over):
        second = job(spark, topics, ROOT, publisher=new_publisher()).run(TOPIC)
    assert [result and result.load for result in (first, second)] == [1, 2]
    assert coordinates(spark, ROOT) == everything(topics)

    both = ["--webhdfs", pair.web_urls]  # the first address is that of the dead one
    assert loads(ROOT, *both) == 2
    proof = CliRunner().invoke(app, ["verify", "--lake", ROOT, *both])
    assert proof.output.startswith(f"intact topic={TOPIC} loads=2 files="), proof.output

    # Another process knows what the folder says, and nothing else.
    environment = {**os.environ, VARIABLE: str(pair.conf_dir)}
    compacted = subprocess.run(
        [*KLAMM, "lake", "compact", TOPIC, "--lake", "hdfs:///lake"],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert f"compact topic={TOPIC} generation=1 loads=1-2 rows=12" in compacted.stdout, compacted.stderr
    monkeypatch.setenv(VARIABLE, str(pair.conf_dir))
    assert loads(ROOT) == loads("hdfs:///lake") == 2


def test_the_configuration_says_where_webhdfs_is(tmp_path: Path) -> None:
    environment = {VARIABLE: str(tmp_path)}

    def said(root: str, **site: str) -> str | None:
        values = {"fs.defaultFS": "hdfs://pair", "dfs.nameservices": "pair, other", **site}
        (tmp_path / "hdfs-site.xml").write_text(hadoop_xml(values))
        return web_addresses(root, environment)

    ha = {
        "dfs.ha.namenodes.pair": "a, b",
        "dfs.namenode.http-address.pair.a": "one:9870",
        "dfs.namenode.http-address.pair.b": "two:9870",
    }
    assert said("hdfs://pair/lake", **ha) == said("hdfs:///lake", **ha) == "http://one:9870;http://two:9870"
    assert said("hdfs://other/lake", **ha) is None
    assert said("hdfs://elsewhere:8020/lake", **ha) is None
    secure = {"dfs.http.policy": "HTTPS_ONLY", "dfs.namenode.https-address.pair": "one:9871"}
    assert said("hdfs://pair/lake", **secure) == "https://one:9871"
    alone = {"fs.defaultFS": "hdfs://one:8020", "dfs.namenode.http-address": "one:9871"}
    assert said("hdfs:///lake", **alone) == said("hdfs://one:8020/lake", **alone) == "http://one:9871"
    assert said("hdfs://two:8020/lake", **alone) is None
    assert said("hdfs:///lake", **{**alone, "dfs.namenode.http-address": "0.0.0.0:9870"}) is None
    assert web_addresses("hdfs:///lake", {}) is None
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"HADOOP_CONF_DIR: .*hdfs-site.xml cannot be read") as caught:
        web_addresses("hdfs:///lake", environment)
    assert "\n" not in str(caught.value)


def test_the_folder_that_klamm_hdfs_writes_is_enough(
    hdfs_server: HdfsServer, hdfs_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_publisher().make(f"{hdfs_root}/{TOPIC}/_staging")
    monkeypatch.setenv(VARIABLE, str(hdfs_server.conf_dir))
    assert loads(f"hdfs://{hdfs_root.removeprefix(hdfs_server.uri)}") == 0
