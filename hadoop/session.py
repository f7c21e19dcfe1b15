"""A Spark session for loads: started locally, or the one that spark-submit gave."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from klamm.core.errors import ConfigError, KlammError

NO_JAVA: Final = (
    "Spark needs Java 17 or newer, and there is none: install one (e.g. openjdk-17-jre-headless) or set JAVA_HOME"
)
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
}
_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.xml")
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
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in {
            **_QUIET,
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG}",
        }.items():
            builder = builder.config(key, value)
    for key, value in extra.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise SparkFailedError(f"Spark did not start: {_one_line(str(error))}") from error
    return session


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
