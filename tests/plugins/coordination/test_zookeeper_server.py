"""The development server of ZooKeeper, and what it needs. See also `test_local_servers.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from klamm.core.java import find_java
from klamm.plugins.coordination.zookeeper import jars
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.ports import free_port

KLAMM = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]


def test_the_command_says_that_java_is_missing(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = subprocess.run(
        [*KLAMM, "zookeeper", "--data-dir", str(tmp_path / "data")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no Java found: install Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_pyspark_and_maven_the_command_says_what_to_install(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "java").symlink_to(find_java())
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    env |= {"PATH": str(tools), jars.VARIABLE: str(tmp_path / "none")}
    done = subprocess.run([*KLAMM, "zookeeper"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("klamm: ZooKeeper's jars are missing, and Maven, which fetches them, is not inst")
    assert done.stderr.count("\n") == 1


def test_a_folder_with_jars_is_used_in_the_place_of_pysparks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `pom.xml` requires the jars that are taken from PySpark, in the same versions."""
    pyspark = [Path(path) for path in jars.find_class_path().split(os.pathsep)]
    pom = Path(jars.__file__).with_name("pom.xml").read_text().replace("${zookeeper.version}", "3.9.5")
    for jar in pyspark:
        artifact, _, version = jar.stem.rpartition("-")
        assert re.search(rf"<artifactId>{artifact}</artifactId><version>{version}</version>", pom), jar.name
        (tmp_path / jar.name).symlink_to(jar)
    (tmp_path / "pom.sha256").write_text(sha256(Path(jars.__file__).with_name("pom.xml").read_bytes()).hexdigest())
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path))
    assert jars.announcement() is None
    with ZooKeeperServer(tmp_path / "data", free_port()) as server:
        assert server.answers()


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert find_java() != str(java)


def test_it_listens_on_loopback_only(zookeeper_server: ZooKeeperServer) -> None:
    listening = [c.laddr for c in psutil.Process(zookeeper_server.pid).net_connections() if c.status == "LISTEN"]
    assert [(a.ip.removeprefix("::ffff:"), a.port) for a in listening] == [("127.0.0.1", zookeeper_server.port)]
