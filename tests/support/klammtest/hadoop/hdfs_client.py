"""HDFS through the JVM of the test process: a publisher, and an administrator's operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from klamm.hadoop.avro.jar import JARS, find_avro_jar
from klamm.hadoop.publishing.hdfs import REPLICATION_TIMEOUT_S, HdfsPublisher
from klamm.hadoop.session import SparkSettings, hadoop_jvm

_AVRO = {"spark.jars": find_avro_jar()} if JARS.have() else {}
SPARK = SparkSettings("klamm tests", "local[2]", "1g", {"spark.sql.shuffle.partitions": "4", **_AVRO})
"""Settings of the one JVM of a test process."""


def new_publisher(replication_timeout_s: float = REPLICATION_TIMEOUT_S) -> HdfsPublisher:
    return HdfsPublisher(lambda: hadoop_jvm(SPARK), replication_timeout_s=replication_timeout_s)


def jvm_time_s() -> float:
    """Returns the time of the JVM's wall clock, in seconds since the epoch."""
    return int(hadoop_jvm(SPARK).gateway.jvm.java.lang.System.currentTimeMillis()) / 1_000


class Administration:
    """Administration of HDFS by Hadoop's client, as `user` if it is not the user of this process."""

    def __init__(self, root: str, user: str | None = None) -> None:
        hadoop = hadoop_jvm(SPARK)
        jvm = hadoop.gateway.jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._copy = jvm.org.apache.hadoop.fs.FileUtil.copy
        self._configuration = hadoop.configuration
        self._safe_mode = jvm.org.apache.hadoop.fs.SafeModeAction
        who = () if user is None else (user,)
        where = self._path(root).toUri()
        self._files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(where, hadoop.configuration, *who)

    def age(self, path: str, seconds: float) -> None:
        """Sets the file's modification time back by that many seconds."""
        written = self._files.getFileStatus(self._path(path)).getModificationTime()
        self._files.setTimes(self._path(path), int(written - seconds * 1000), -1)

    def copy(self, source: str, target: str) -> None:
        self._copy(self._files, self._path(source), self._files, self._path(target), False, True, self._configuration)

    def replicate(self, path: str, replicas: int) -> None:
        self._files.setReplication(self._path(path), replicas)

    def replications(self, path: str) -> set[int]:
        """Returns the replication factors of the files below a directory."""
        found, rows = set(), self._files.listFiles(self._path(path), True)
        while rows.hasNext():
            found.add(int(rows.next().getReplication()))
        return found

    def names(self, path: str) -> list[str]:
        """Returns all names in a directory."""
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(self._path(path)))

    def limit_names(self, path: str, names: int) -> None:
        """Sets a quota of files and directories."""
        self._files.setQuota(self._path(path), names, 2**63 - 1)

    def set_safe_mode(self, *, on: bool) -> None:
        self._files.setSafeMode(self._safe_mode.ENTER if on else self._safe_mode.LEAVE)

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        self.set_safe_mode(on=True)
        try:
            yield
        finally:
            self.set_safe_mode(on=False)
