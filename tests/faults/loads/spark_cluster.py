"""A Spark standalone cluster of two workers with one core each. Their hosts differ, because Spark runs a task's
speculative attempt on another host only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyspark

from klammtest.ports import free_port
from klammtest.waiting import eventually

HOSTS: Final = ("127.0.0.2", "127.0.0.3")
START_S: Final = 300.0
_HOME: Final = Path(pyspark.__file__).parent


@contextmanager
def spark_cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Starts the cluster below `folder`; yields its master's URL. Executors have the environment too."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    log = folder / "cluster.log"
    env = {**environment, "SPARK_HOME": str(_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(folder)}
    with ExitStack() as stack:
        _start(stack, log, env, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for host in HOSTS:
            work = ("--work-dir", str(folder / f"work-{host}"), "--webui-port", "0")
            _start(stack, log, env, "worker.Worker", "--host", host, "--cores", "1", "--memory", "512m", *work, master)
        eventually(
            lambda: log.read_text(errors="replace").count("Registering worker ") == len(HOSTS),
            "the workers of the Spark cluster register",
            START_S,
        )
        yield master


def _start(stack: ExitStack, log: Path, environment: Mapping[str, str], name: str, *arguments: str) -> None:
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    stack.callback(kill_family, process)


def kill_family(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it has started."""
    try:
        root = psutil.Process(process.pid)
        for one in (*root.children(recursive=True), root):
            one.kill()
    except psutil.NoSuchProcess:
        pass
    process.wait()
