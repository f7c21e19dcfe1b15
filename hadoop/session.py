"""A Spark session for loads: started locally, or the one that spark-submit gave."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import klamm
from klamm.core.errors import ConfigError, KlammError

NO_JAVA: Final = (
    "Spark needs Java 17 or newer, and there is none: install one (e.g. openjdk-17-jre-headless) or set JAVA_HOME"
)
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
# A local Spark lives for one load: compiling its code well costs more than it saves (measured: 45 s of processor time
# for a year of flights, 23 s with the first compiler alone).
_JAVA_OPTIONS: Final = (
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.xml')} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
}
# Of the lines of a Python worker's traceback, the one that says what happened.
_PYTHON_ERROR: Final = re.compile(r"^\s*(?:pyspark\.\S+: )?(klamm\.[\w.]+(?:Error|Loss)): (.+)$", re.MULTILINE)
_ANY_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?([\w.]+(?:Error|Exception)): (.+)$", re.MULTILINE)


class SparkFailedError(KlammError):
    """A Spark job failed; the message is the line that matters."""


def require_java(environment: Mapping[str, str] = os.environ) -> None:
    """`ConfigError` in one line when Spark would find no Java."""
    home = environment.get("JAVA_HOME")
    found = (
        Path(home, "bin", "java").exists() if home else shutil.which("java", path=environment.get("PATH")) is not None
    )
    if not found:
        raise ConfigError(f"JAVA_HOME is {home}, where there is no bin/java; {NO_JAVA}" if home else NO_JAVA)


def start_session(name: str, master: str, driver_memory: str, extra: Mapping[str, str]) -> SparkSession:
    """The running session, else a new one. What spark-submit set wins over `master`; `extra` over the defaults."""
    require_java()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    # Workers must be of the same Python as the driver, wherever the PATH leads.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if not _submitted():
        builder = builder.master(master).config("spark.driver.memory", driver_memory)
        local = master.startswith("local")
        if local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in {**_QUIET, **(_LOCAL if local else {})}.items():
            builder = builder.config(key, value)
    for key, value in extra.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as said:
        try:
            with nullcontext() if _submitted() else _stderr_to(said.fileno()):
                session = builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            said.seek(0)
            reason = reason_of(error) if isinstance(error, PySparkException) else str(error)
            raise SparkFailedError(f"Spark did not start: {_one_line(reason)} {_last(said.read())}".rstrip()) from error
    _ship_wheel(session, Path(klamm.__file__))
    if (session.sparkContext.master or "").startswith("local"):
        _no_checksum_files(session)
    return session


def _ship_wheel(session: SparkSession, package: Path) -> None:
    """`spark-submit --py-files klamm.whl` puts the wheel on the driver's path alone: for executors Spark knows .zip,
    .egg and .jar. A wheel is a zip."""
    wheel = next((parent for parent in package.parents if parent.suffix == ".whl" and parent.is_file()), None)
    if wheel is None:
        return
    shipped = Path(SparkFiles.getRootDirectory(), "shipped", f"{wheel.stem}.zip")
    shipped.parent.mkdir(exist_ok=True)
    shutil.copyfile(wheel, shipped)
    session.sparkContext.addPyFile(str(shipped))


def _no_checksum_files(session: SparkSession) -> None:
    """Hadoop's local file system writes a .crc beside each file, and forks a `chmod` for it; Parquet has its own
    checksums, and executors of a local Spark share this object."""
    context = session.sparkContext
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    local.setWriteChecksum(False)


@contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """The JVM keeps the stderr that it was started with: its warnings are nothing that a user can act on."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _last(said: bytes) -> str:
    """What the JVM said last, for an error."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if "incubator" not in line]
    return next((line for line in reversed(lines) if line), "")


def _submitted() -> bool:
    """Whether spark-submit started this process: the JVM is there already, with its configuration."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def reason_of(error: BaseException) -> str:
    """The one line of a failed job that says why: a worker's own error before Java's."""
    text = str(error)
    found = _PYTHON_ERROR.findall(text)
    if found:
        return str(found[-1][1]).strip()
    others = _ANY_ERROR.findall(text)
    if others:
        return f"{others[-1][0].rpartition('.')[2]}: {others[-1][1].strip()}"
    return _one_line(text)


def _one_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
