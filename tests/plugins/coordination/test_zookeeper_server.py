"""The development server of ZooKeeper, and what it needs. See also `test_local_servers.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from klamm.core.errors import ConfigError
from klamm.core.java import find_java
from klamm.plugins.coordination.zookeeper import jars
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer

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


def test_pyspark_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'klamm\[spark\]'"):
        jars.find_class_path()


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
