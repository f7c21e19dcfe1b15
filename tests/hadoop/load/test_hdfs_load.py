"""Loads into a real HDFS: increments, crashes, races, lost answers, and what an administrator may do meanwhile."""

from __future__ import annotations

import io
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from klamm.core import faults
from klamm.core.errors import KlammError
from klamm.hadoop.hdfs.server import HdfsServer
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.manifest import last_manifest
from klamm.hadoop.load.job import LoadJob, LoadResult, LoadSpec
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.load.staging import LoadConflictError, Staging, sweep
from klamm.hadoop.publishing.hdfs import HadoopJvm, HdfsPublisher
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.session import hadoop_jvm
from klammtest.faulty import fault_hook
from klammtest.hadoop.hdfs_client import SPARK, Administration, new_publisher
from klammtest.hadoop.load_jobs import (
    LOAD_POINTS,
    TOPIC,
    MemoryTopics,
    add_flights,
    coordinates,
    everything,
    filled,
    job,
)
from klammtest.ports import free_port
from klammtest.proxies.lost_answers import AnswerLostProxy, holding
from klammtest.proxies.tcp import TcpProxy


def load(spark: SparkSession, topics: MemoryTopics, root: str, **changes: Any) -> LoadResult | None:
    return job(spark, topics, root, publisher=new_publisher(), **changes).run(TOPIC)


def no_spark() -> NoReturn:
    raise AssertionError("nothing is new: Spark is not wanted")


def test_a_load_an_increment_and_nothing_new(spark: SparkSession, hdfs_root: str) -> None:
    topics = filled(6)
    first = load(spark, topics, hdfs_root)
    assert first is not None
    assert (first.load, first.rows, first.files) == (1, 6, 3)
    add_flights(topics, range(6, 9))
    second = load(spark, topics, hdfs_root)
    assert second is not None
    assert (second.load, second.rows) == (2, 3)
    assert coordinates(spark, hdfs_root) == everything(topics)
    assert {row["load"] for row in spark.read.parquet(f"{hdfs_root}/{TOPIC}").select("load").collect()} == {1, 2}
    files = FileFormat("parquet", ("dt",), 2**27)
    idle = LoadJob(no_spark, topics, new_publisher(), LoadSpec(root=hdfs_root, files=files, owner="lake"))
    assert idle.run(TOPIC) is None


def test_files_are_replicated_as_the_server_says(spark: SparkSession, hdfs_root: str) -> None:
    """No hdfs-site.xml is here: Hadoop's own default would be 3, of which one DataNode holds one."""
    load(spark, filled(4), hdfs_root)
    publisher = new_publisher()
    publisher.sync(f"{hdfs_root}/{TOPIC}/load=000001")
    assert Administration(hdfs_root).replications(f"{hdfs_root}/{TOPIC}/load=000001") == {1}


def test_files_without_their_replicas_are_not_published(hdfs_root: str) -> None:
    publisher, administration = new_publisher(replication_timeout_s=1), Administration(hdfs_root)
    layout = TopicLayout(hdfs_root, TOPIC)
    with Staging(publisher, layout, "a") as staging:
        publisher.write(f"{staging.path}/part", b"x")
        administration.replicate(f"{staging.path}/part", 2)
        with pytest.raises(LakeError, match=r"1 of 2 replicas.*nothing is published"):
            staging.publish(1)
    assert publisher.names(layout.base) == ["_staging"]


def test_a_load_killed_at_any_point_and_run_again_has_each_offset_once(spark: SparkSession, hdfs_root: str) -> None:
    topics, administration, publisher = filled(6), Administration(hdfs_root), new_publisher()
    root = f"{hdfs_root}/lake"
    load(spark, topics, root)
    add_flights(topics, range(6, 12))

    def crash(point: str) -> None:
        if point in LOAD_POINTS:
            administration.copy(root, f"{hdfs_root}/{point}")

    with fault_hook(crash):
        load(spark, topics, root)
    for point in LOAD_POINTS:
        crashed = f"{hdfs_root}/{point}"
        left = publisher.names(f"{crashed}/{TOPIC}/_staging")
        assert (left == []) == (point == "load.planned"), point
        assert len(coordinates(spark, crashed)) == (12 if point == "load.published" else 6), point
        again = load(spark, topics, crashed)
        assert (again is None) == (point == "load.published"), point
        assert coordinates(spark, crashed) == everything(topics), point
        load(spark, topics, crashed, staging_retention_s=-1)
        assert publisher.names(f"{crashed}/{TOPIC}/_staging") == [], point


def test_of_two_jobs_at_once_one_publishes_and_the_other_leaves_nothing(spark: SparkSession, hdfs_root: str) -> None:
    topics = filled(6)
    both = threading.Barrier(2)

    def meet(point: str) -> None:
        if point == "load.staged":
            both.wait(120)

    with fault_hook(meet), ThreadPoolExecutor(2) as pool:
        outcomes: list[Future[Any]] = [pool.submit(load, spark, topics, hdfs_root) for _ in range(2)]
        errors = [outcome.exception() for outcome in outcomes]
    assert [type(error) for error in errors if error is not None] == [LoadConflictError]
    assert coordinates(spark, hdfs_root) == everything(topics)
    assert new_publisher().names(f"{hdfs_root}/{TOPIC}/_staging") == []


def test_a_zombie_that_wakes_after_its_successor_published_publishes_nothing(
    spark: SparkSession, hdfs_root: str
) -> None:
    topics, publisher, layout = filled(4), new_publisher(), TopicLayout(hdfs_root, TOPIC)

    def overtake(point: str) -> None:
        if point == "load.staged":
            faults.install(None)
            (sleeper,) = [n for n in publisher.names(layout.staging_root) if not n.endswith(".alive")]
            Administration(hdfs_root).age(layout.heartbeat(sleeper), 7200)
            assert sweep(publisher, layout, 3600) == [sleeper]
            load(spark, topics, hdfs_root)

    with fault_hook(overtake), pytest.raises(LakeError, match="swept as a dead job's"):
        load(spark, topics, hdfs_root)
    assert coordinates(spark, hdfs_root) == everything(topics)
    assert publisher.names(layout.base) == ["_staging", "load=000001"]


def test_a_rename_whose_answer_is_lost_is_read_back(
    hdfs_server: HdfsServer, hdfs_root: str, spark: SparkSession
) -> None:
    topics, publisher = filled(4), new_publisher()
    layout = TopicLayout(hdfs_root, TOPIC)
    load(spark, topics, hdfs_root)
    manifest = last_manifest(publisher, layout)
    assert manifest is not None
    ours = manifest.model_copy(update={"load": 2, "job_id": "a"})
    staging = Staging(publisher, layout, "a")
    with staging:
        publisher.write(f"{staging.path}/_offsets.json", ours.to_bytes())
        with AnswerLostProxy(hdfs_server.ports.name_node, holding(b"rename2")) as proxy:
            root = hdfs_root.replace(f":{hdfs_server.ports.name_node}/", f":{proxy.port}/")
            through = Staging(new_publisher(), TopicLayout(root, TOPIC), "a")
            through.publish(2)
            assert proxy.lost == 1
    found = last_manifest(publisher, layout)
    assert found is not None
    assert (found.load, found.job_id) == (2, "a")


def test_an_idle_connection_that_the_name_node_closed_is_opened_again(hdfs_server: HdfsServer, hdfs_root: str) -> None:
    """As after a restart of the NameNode between two runs of one driver: Hadoop's client keeps an idle connection for
    10 s, and its next call ends with an EOFException."""
    name_node = hdfs_server.ports.name_node
    port, publisher = free_port(), new_publisher()
    root = hdfs_root.replace(f":{name_node}/", f":{port}/")
    operations: list[Callable[[], object]] = [
        lambda: publisher.read(f"{root}/file"),
        lambda: publisher.names(root),
        lambda: publisher.files(root),
        lambda: publisher.is_file(f"{root}/file"),
        lambda: publisher.age_s(f"{root}/file"),
        lambda: publisher.make(f"{root}/folder"),
        lambda: publisher.write(f"{root}/file", b"again"),
        lambda: publisher.sync(root),
        lambda: publisher.remove(f"{root}/folder"),
    ]
    with TcpProxy(port, name_node):
        publisher.write(f"{root}/file", b"once")
    for operation in operations:
        with TcpProxy(port, name_node):  # its end closes the connection
            operation()
    assert new_publisher().read(f"{hdfs_root}/file") == b"again"
    with pytest.raises(LakeError, match=r"cannot list .*ConnectException.*is the NameNode up"):  # no proxy listens
        publisher.names(root)


def test_a_quota_that_is_exceeded_is_one_line_and_publishes_nothing(spark: SparkSession, hdfs_root: str) -> None:
    topics, publisher, administration = filled(6), new_publisher(), Administration(hdfs_root)
    load(spark, topics, hdfs_root)
    add_flights(topics, range(6, 12))
    used = 1 + len(publisher.files(hdfs_root))
    administration.limit_names(hdfs_root, used + 9)
    with pytest.raises(KlammError, match="quota") as caught:
        load(spark, topics, hdfs_root)
    assert "\n" not in str(caught.value)
    assert len(coordinates(spark, hdfs_root)) == 6
    administration.limit_names(hdfs_root, 10_000)
    load(spark, topics, hdfs_root, staging_retention_s=-1)
    assert coordinates(spark, hdfs_root) == everything(topics)


def test_dead_jobs_are_swept_where_a_quota_leaves_no_name(hdfs_root: str) -> None:
    """The directories of dead jobs may be what uses up the quota."""
    publisher, administration, layout = new_publisher(), Administration(hdfs_root), TopicLayout(hdfs_root, TOPIC)
    for job_id in ("dead", "live"):
        publisher.make(layout.staging(job_id))
        publisher.write(layout.heartbeat(job_id), b"")
        publisher.write(f"{layout.staging(job_id)}/_job.json", b"{}")
    publisher.write(f"{layout.staging_root}/.half.{'0' * 32}", b"")
    for left in (layout.heartbeat("dead"), f"{layout.staging_root}/.half.{'0' * 32}"):
        administration.age(left, 3700)
    administration.limit_names(hdfs_root, 1)
    with pytest.raises(LakeError, match="quota"):
        publisher.make(f"{hdfs_root}/another")
    assert sweep(publisher, layout, 3600) == ["dead"]
    assert publisher.names(layout.staging_root) == ["live", "live.alive"]
    assert administration.names(layout.staging_root) == ["live", "live.alive"]


def test_a_mount_table_in_place_of_hdfs_is_refused_in_one_line(hdfs_server: HdfsServer, hdfs_root: str) -> None:
    hadoop = hadoop_jvm(SPARK)
    mounted = HadoopJvm(hadoop.gateway, hadoop.gateway.jvm.org.apache.hadoop.conf.Configuration(hadoop.configuration))
    settings = {
        "fs.hdfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.hdfs.impl": "org.apache.hadoop.hdfs.DistributedFileSystem",
        "fs.viewfs.mounttable.127.0.0.1.link./mnt": f"{hdfs_server.uri}/elsewhere",
    }
    for name, value in settings.items():
        mounted.configuration.set(name, value)
    with pytest.raises(LakeError, match=r"fs.hdfs.impl is .*ViewFileSystemOverloadScheme") as caught:
        HdfsPublisher(lambda: mounted).names(hdfs_root)
    assert "\n" not in str(caught.value)


def test_safe_mode_is_one_line_and_the_next_run_needs_no_hand(spark: SparkSession, hdfs_root: str) -> None:
    topics, administration = filled(4), Administration(hdfs_root)
    with administration.safe_mode(), pytest.raises(LakeError, match="safe mode") as caught:
        load(spark, topics, hdfs_root)
    assert "\n" not in str(caught.value)
    load(spark, topics, hdfs_root)
    assert coordinates(spark, hdfs_root) == everything(topics)


def test_pyarrow_reads_it_by_webhdfs(spark: SparkSession, hdfs_root: str, hdfs_server: HdfsServer) -> None:
    load(spark, filled(6), hdfs_root)
    path, rows = f"{hdfs_root.removeprefix(hdfs_server.uri)}/{TOPIC}", 0
    for name, size in new_publisher().files(f"{hdfs_root}/{TOPIC}"):
        if name.endswith(".parquet"):
            with urllib.request.urlopen(f"{hdfs_server.web_url}/webhdfs/v1{path}/{name}?op=OPEN", timeout=60) as answer:
                data = answer.read()
            assert len(data) == size
            rows += pq.read_table(io.BytesIO(data)).num_rows
    assert rows == 6
