"""A Spark session for loads: started locally, or the one of spark-submit."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import klamm
from klamm.core.errors import ConfigError, KlammError
from klamm.core.spark_jvm import java_options

from .jvm_zone import UTC_OPTION
from .publishing.hdfs import HadoopJvm

NO_JAVA: Final = (
    "Spark needs Java 17 or newer, and none was found: install one (e.g. openjdk-17-jre-headless) or set JAVA_HOME"
)
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.xml').as_uri()}"
"""A URI: Spark splits its JVM's options at spaces, which the installation's path may have."""
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
    "spark.python.daemon.module": "klamm.hadoop.worker_daemon",
}
# The line of a Python worker's traceback with the error.
_PYTHON_ERROR: Final = re.compile(r"^\s*(?:pyspark\.\S+: )?(klamm\.[\w.]+(?:Error|Loss)): (.+)$", re.MULTILINE)
_ANY_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?([\w.]+(?:Error|Exception)): (.+)$", re.MULTILINE)

# Of the output of a JVM that did not start: lines without a reason, and lines that begin with one.
_NOISE: Final = re.compile(
    r"incubator| (WARN|INFO) |^WARNING|^at |^\.\.\. \d+ more|Could not create the Java|fatal exception has occurred"
)
_TOLD: Final = re.compile(r"Error|Invalid|Too small|Exception in thread|Unrecognized|Could not|Caused by")
_EXITED: Final = "JAVA_GATEWAY_EXITED"
_HEAP: Final = re.compile(r"heap|-Xm[sx]|[Ss]ystem memory|object heap|--driver-memory")
_MASTER: Final = re.compile(r"\b[Mm]aster\b|--master|deploy mode")
_TELLING: Final = 4
"""The least length of a value that identifies its key."""


class SparkFailedError(KlammError):
    """A Spark job failed; the message is the line with the cause."""


def require_java() -> None:
    """Raises `ConfigError` in one line if Spark would find no Java."""
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        raise ConfigError(f"JAVA_HOME is {home}, which has no bin/java; {NO_JAVA}" if home else NO_JAVA)


def _local() -> dict[str, str]:
    return {**_LOCAL, "spark.driver.extraJavaOptions": f"{_LOGGING} {UTC_OPTION} {java_options()}"}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings of Spark: `master` and `driver_memory` unless spark-submit sets them, and `extra`. `where`: the
    section of the YAML file."""

    name: str
    master: str
    driver_memory: str
    extra: Mapping[str, str]
    where: str = ""

    def configuration(self) -> dict[str, str]:
        if submitted():
            return dict(self.extra)
        chosen = {"spark.master": self.master, "spark.driver.memory": self.driver_memory}
        return {**chosen, **_QUIET, **(_local() if self._local else {}), **self.extra}

    def prepare(self) -> None:
        """Sets the environment of the JVM and the workers."""
        require_java()
        # Workers must run the driver's Python, whatever the PATH is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not submitted() and self._local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    def key_of(self, reason: str) -> str | None:
        """Returns the key of the YAML file that the reason of a failed start is about: the longest name or the value
        that occurs in it; None if there is none."""
        given = {f"spark.config.{name}": (name, value) for name, value in self.extra.items()}
        if not submitted():
            given["spark.master"] = ("spark.master", self.master)
            given["spark.driver.memory"] = ("spark.driver.memory", self.driver_memory)
        for key, (name, _) in sorted(given.items(), key=lambda each: -len(each[1][0])):
            if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", reason):
                return key
        if "spark.driver.memory" in given and _HEAP.search(reason):
            return "spark.config.spark.driver.memory" if "spark.driver.memory" in self.extra else "spark.driver.memory"
        if "spark.master" in given and _MASTER.search(reason):
            return "spark.config.spark.master" if "spark.master" in self.extra else "spark.master"
        return next((key for key, (_, value) in given.items() if _is_quoted(value, reason)), None)

    @property
    def _local(self) -> bool:
        return self.master.startswith("local")


def _is_quoted(value: str, reason: str) -> bool:
    told = len(value) >= _TELLING and value not in ("true", "false")
    return told and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", reason) is not None


def start_session(settings: SparkSettings) -> SparkSession:
    """Returns the running session, or else a new one. spark-submit's settings override the master; `extra` overrides
    defaults.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings.prepare()
    builder = SparkSession.builder.appName(settings.name)
    for key, value in settings.configuration().items():
        builder = builder.config(key, value)
    with _starting(settings):
        if not submitted():
            _ensure_jvm(settings)
        session = builder.getOrCreate()
    _ship_wheel(session, Path(klamm.__file__))
    if (session.sparkContext.master or "").startswith("local"):
        _no_checksum_files(session)
    return session


def hadoop_jvm(settings: SparkSettings) -> HadoopJvm:
    """Returns Spark's JVM with Hadoop's client: the running one, or else a new one with these settings.

    A new one is started without Spark, which takes a second instead of several; a session that is started later uses
    the same JVM.
    """
    if SparkContext._gateway is None:
        settings.prepare()
        with _starting(settings):
            _ensure_jvm(settings)
    gateway = SparkContext._gateway
    if gateway is None:
        raise SparkFailedError("Spark's JVM did not start")
    running = SparkContext._active_spark_context
    if running is not None:
        return HadoopJvm(gateway, running._jsc.hadoopConfiguration())
    # The configuration as Spark builds it: `spark.hadoop.…` and, through HADOOP_CONF_DIR, the cluster's own files.
    deploy, spark_conf = gateway.jvm.org.apache.spark.deploy, gateway.jvm.org.apache.spark.SparkConf()
    return HadoopJvm(gateway, deploy.SparkHadoopUtil.get().newConfiguration(spark_conf))


def _ensure_jvm(settings: SparkSettings) -> None:
    """Starts Spark's JVM unless there is one. It has a process group of its own: a SIGTERM to this process's group must
    not end the JVM under a load that this process finishes. The JVM ends when its stdin is closed."""
    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False)
        conf.setAll([("spark.app.name", settings.name), *settings.configuration().items()])
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"start_new_session": True}))  # type: ignore[no-untyped-call]


@contextmanager
def _starting(settings: SparkSettings) -> Iterator[None]:
    """Raises `SparkFailedError` in one line, with the key of the YAML file if it is known, if the JVM or Spark does not
    start; hides their output meanwhile."""
    with tempfile.TemporaryFile() as said:
        try:
            with nullcontext() if submitted() else _stderr_to(said.fileno()):
                yield
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            said.seek(0)
            reason = reason_of(error) if isinstance(error, PySparkException | Py4JJavaError) else str(error)
            raise SparkFailedError(start_failure(settings, reason, said.read())) from error


def start_failure(settings: SparkSettings, reason: str, said: bytes) -> str:
    """Returns the line for a Spark that did not start. `said`: the output of its JVM on stderr."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not _NOISE.search(line)]
    told = next((line for line in lines if _TOLD.match(line)), lines[-1] if lines else "")
    reason = _one_line(reason)
    if told and _EXITED in reason:  # the JVM ended before Python could ask it
        reason = told
    key = settings.key_of(reason) or settings.key_of(told)
    where = "" if key is None else f"{settings.where}.{key}: " if settings.where else f"{key}: "
    more = f" {told}" if told and told not in reason else ""
    return f"{where}Spark did not start: {reason}{more}"


def _ship_wheel(session: SparkSession, package: Path) -> None:
    """Ships the wheel to the executors as a zip: `spark-submit --py-files klamm.whl` puts it only on the driver's path,
    and for executors Spark accepts .zip, .egg and .jar.
    """
    wheel = next((parent for parent in package.parents if parent.suffix == ".whl" and parent.is_file()), None)
    if wheel is None:
        return
    shipped = Path(SparkFiles.getRootDirectory(), "shipped", f"{wheel.stem}.zip")
    shipped.parent.mkdir(exist_ok=True)
    shutil.copyfile(wheel, shipped)
    session.sparkContext.addPyFile(str(shipped))


def _no_checksum_files(session: SparkSession) -> None:
    """Switches off checksum files: Hadoop's local file system writes a .crc file for each file, and starts a `chmod`
    process for it. Parquet has its own checksums, and executors of a local Spark share this object.
    """
    context = session.sparkContext
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    local.setWriteChecksum(False)


@contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Redirects the stderr that the JVM inherits: a user cannot act on its warnings."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def submitted() -> bool:
    """Returns True if spark-submit started this process: its JVM already runs, with its configuration."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def reason_of(error: BaseException) -> str:
    """Returns the line with the cause of a failed job: a worker's own error rather than Java's."""
    text = str(error)
    found = _PYTHON_ERROR.findall(text)
    if found:
        return str(found[-1][1]).strip()
    if isinstance(error, Py4JJavaError):  # an error of the driver's own JVM, for instance when a lake exceeds its quota
        java = error.java_exception
        return f"{java.getClass().getSimpleName()}: {_one_line(java.getMessage() or '')}"
    others = _ANY_ERROR.findall(text)
    if others:
        return f"{others[-1][0].rpartition('.')[2]}: {others[-1][1].strip()}"
    return _one_line(text)


def _one_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
