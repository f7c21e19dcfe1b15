"""The example jobs, each a Spark of its own: from files to a topic and from a topic to files, and killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyarrow import parquet

from klamm.core.faults import VARIABLE
from klamm.core.spark_jvm import java_options
from klammtest.clients.numbered import Topics, number_topics

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = 8000
"""Lines of a file: enough for several batches in each partition."""
PADDING = "x" * 200
END_S = 600.0
"""A job's end, which is a matter of seconds on an idle machine."""


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with number_topics(tmp_path_factory.mktemp("jobs")) as made:
        yield made


class Job:
    """`files_to_topic.py` on one topic, folder and checkpoint."""

    def __init__(self, topics: Topics, folder: Path, topic: str) -> None:
        self._topics = topics
        self._folder = folder
        self._topic = topic
        self._given = 0
        (folder / "in").mkdir()

    def give(self) -> None:
        """One more file."""
        numbers = range(self._given, self._given + LINES)
        text = "".join(f"{number} {PADDING}\n" for number in numbers)
        path = self._folder / "in" / f"{self._given}.txt"
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)
        self._given += LINES

    def start(self, faults: str = "") -> subprocess.Popen[bytes]:
        return start(
            "files_to_topic.py",
            faults,
            bootstrap=self._topics.bootstrap,
            topic=self._topic,
            input=f"{self._folder}/in/*.txt",
            checkpoint=f"{self._folder}/checkpoint",
        )

    def stored(self) -> list[int]:
        return sorted(int((record.value or b"").split()[0]) for _, record in self._topics.records(self._topic))

    def is_complete(self) -> bool:
        return self.stored() == list(range(self._given))

    def kill_driver(self, point: str) -> None:
        """Runs until the worker has stopped at that point of the sink, and kills the driver with its JVM."""
        driver = self.start(f"{point}=stop")
        deadline = time.monotonic() + END_S
        while not any(is_stopped(process) for process in psutil.Process(driver.pid).children(recursive=True)):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def start(job: str, faults: str = "", **options: str) -> subprocess.Popen[bytes]:
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    own = {
        "PYSPARK_SUBMIT_ARGS": (
            f"--master local[2] --driver-memory 1g --driver-java-options '{java_options()}' "
            "--conf spark.ui.enabled=false pyspark-shell"
        ),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        VARIABLE: faults,
    }
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / job), *arguments], env={**os.environ, **own}, start_new_session=True
    )


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(3000)
def test_a_job_that_is_killed_again_and_again_stores_each_line_once(topics: Topics, tmp_path: Path) -> None:
    """The driver is killed when its worker has sent a part of the micro-batch; then the worker that commits it.
    tests/hadoop/spark/test_sink.py kills workers, `make faults-load` at the other points.
    """
    topics.create("lines", 2)
    job = Job(topics, tmp_path, "lines")
    job.give()
    job.kill_driver("sink.produced")
    assert job.stored()
    assert not job.is_complete()
    job.give()  # for the micro-batch after the one that is done again
    assert ended(job.start("sink.commit=kill")) != 0  # a worker of Spark's, which ends the query
    assert len(job.stored()) == len(set(job.stored()))
    assert ended(job.start()) == 0
    assert job.is_complete()


@pytest.mark.timeout(900)
def test_a_job_stores_a_topic_in_files(topics: Topics, tmp_path: Path) -> None:
    topics.create("records", 2)
    topics.produce("records", 0, range(50))
    topics.produce("records", 1, range(50, 80))
    given = {
        "bootstrap": topics.bootstrap,
        "topic": "records",
        "output": f"{tmp_path}/out",
        "checkpoint": f"{tmp_path}/checkpoint",
    }
    assert ended(start("topic_to_parquet.py", **given)) == 0
    found = parquet.read_table(tmp_path / "out")
    assert sorted(int(value) for value in found["value"].to_pylist()) == list(range(80))
