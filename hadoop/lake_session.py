"""The Spark session of the jobs that write a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .publishing.interface import Publisher
from .session import SparkFailedError, reason_of

# The part of Spark's configuration that a job depends on; set on a separate session.
_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


@dataclass
class LakeSession:
    """A session of its own on the caller's Spark, so that the caller's SQL configuration stays unchanged. `more` are
    settings besides those that every job needs. It is created on first use: starting Spark takes seconds.
    """

    spark: Callable[[], SparkSession]
    publisher: Publisher
    root: str
    target_size: int
    more: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _session(self) -> SparkSession:
        lake = self.publisher.spark_settings(self.root)
        return configured_session(self.spark(), self.target_size, {**lake, **self.more})

    @contextmanager
    def running(self) -> Iterator[SparkSession]:
        """A context with the session, for Spark jobs of this thread. Spark's errors become `SparkFailedError` in one
        line; afterwards the thread's active session is the same as before."""
        with _failing():
            session = self._session
            with _active_session_kept(session):
                yield session

    @contextmanager
    def as_it_is(self) -> Iterator[SparkSession]:
        """A context with the caller's session, for jobs without SQL: no SQL configuration affects them, and creating
        an SQL session takes a second. Spark's errors become `SparkFailedError` here too."""
        with _failing():
            yield self.spark()


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SparkFailedError(reason_of(error)) from error


def configured_session(spark: SparkSession, target_size: int, more: Mapping[str, str]) -> SparkSession:
    """Returns a new session of the same Spark, with the settings that jobs of a lake need."""
    session = spark.newSession()
    target = {"spark.sql.adaptive.advisoryPartitionSizeInBytes": str(target_size)}
    for key, value in {**_NEEDED, **target, **more}.items():
        session.conf.set(key, value)
    return session


@contextmanager
def _active_session_kept(session: SparkSession) -> Iterator[None]:
    """Restores the thread's active session at the end: Spark makes a session active when it runs a query or
    `createDataFrame`, PySpark and its JVM each store it, and an application that asks for the active session must get
    its own.
    """
    jvm_sessions = SparkSession._get_j_spark_session_class(session._jvm)
    python, java = SparkSession._activeSession, jvm_sessions.getActiveSession()
    try:
        yield
    finally:
        SparkSession._activeSession = python
        with suppress(Py4JError):  # a JVM that has exited has no session; the error that ended it must be reported
            if java.isDefined():
                jvm_sessions.setActiveSession(java.get())
            else:
                jvm_sessions.clearActiveSession()
