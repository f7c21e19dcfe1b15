"""The development server and `klamm zookeeper`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from klamm.core.errors import ConfigError, CoordinationError
from klamm.core.java import find_java
from klamm.plugins.coordination import zookeeper_jars
from klamm.plugins.coordination.zookeeper_server import ZooKeeperServer, answers
from klammtest.ports import free_port

KLAMM = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]


def test_the_command_says_when_it_is_ready_and_stops_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [*KLAMM, "zookeeper", "--port", str(port), "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert f"klamm zookeeper ready: 127.0.0.1:{port}" in ready
    assert answers("127.0.0.1", port)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out, err) == (0, "ZooKeeper has stopped\n", "")
    assert not answers("127.0.0.1", port)


def test_no_server_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*KLAMM, "zookeeper", "--port", str(free_port()), "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    (server,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=90)
    assert psutil.wait_procs([server], timeout=90)[1] == []


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
    monkeypatch.setattr(zookeeper_jars.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'klamm\[spark\]'"):
        zookeeper_jars.find_class_path()


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert find_java() != str(java)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CoordinationError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            ZooKeeperServer(tmp_path, port).start()


def test_a_data_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CoordinationError, match="--data-dir"):
        ZooKeeperServer(tmp_path / "file" / "data", free_port()).start()


def test_it_listens_on_loopback_only(zookeeper_server: ZooKeeperServer) -> None:
    listening = [c.laddr for c in psutil.Process(zookeeper_server.pid).net_connections() if c.status == "LISTEN"]
    assert [(a.ip.removeprefix("::ffff:"), a.port) for a in listening] == [("127.0.0.1", zookeeper_server.port)]


def test_stop_and_kill_may_be_repeated(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, free_port())
    server.stop()
    server.kill()
    with pytest.raises(CoordinationError, match="not been started"):
        server.wait()
    server.start()
    with pytest.raises(CoordinationError, match="started already"):
        server.start()
    server.stop()
    assert server.pid is None
