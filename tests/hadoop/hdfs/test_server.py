"""The development HDFS and `klamm hdfs`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from klamm.core.errors import ConfigError, KlammError
from klamm.hadoop.hdfs import jars
from klamm.hadoop.hdfs.server import HdfsPorts, HdfsServer
from klammtest.hadoop.hdfs import new_server

KLAMM = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]


def request(url: str, method: str, data: bytes | None = None) -> bytes:
    """WebHDFS; a redirect to the DataNode is followed by hand, since urllib does so for GET only."""
    asked = urllib.request.Request(url, data=data, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def test_the_command_says_when_it_is_ready_and_its_data_outlives_it(tmp_path: Path) -> None:
    ports = new_server(tmp_path).ports
    command = [
        *KLAMM, "hdfs", "--data-dir", str(tmp_path / "data"), "--port", str(ports.name_node), "--http-port",
        str(ports.name_node_http), "--data-port", str(ports.data_node), "--data-http-port", str(ports.data_node_http),
        "--data-ipc-port", str(ports.data_node_ipc),
    ]  # fmt: skip
    web = f"http://127.0.0.1:{ports.name_node_http}/webhdfs/v1"
    for life in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert f"klamm hdfs ready: hdfs://127.0.0.1:{ports.name_node}, " in ready
        if life == 0:
            where = json.loads(request(f"{web}/a?op=CREATE&noredirect=true&user.name=root", "PUT"))["Location"]
            request(where, "PUT", b"kept")
        assert request(f"{web}/a?op=OPEN", "GET") == b"kept"
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=90)
        assert (process.returncode, out, err) == (0, "HDFS has stopped\n", "")
        assert psutil.wait_procs(children, timeout=90)[1] == []


def test_it_listens_on_loopback_only(hdfs_server: HdfsServer) -> None:
    ports = set()
    for process in (hdfs_server.name_node, hdfs_server.data_node):
        assert process is not None
        found = [c.laddr for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
        assert {a.ip.removeprefix("::ffff:") for a in found} == {"127.0.0.1"}
        ports |= {a.port for a in found}
    p = hdfs_server.ports
    assert {p.name_node, p.name_node_http, p.data_node, p.data_node_http, p.data_node_ipc} <= ports


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    server = new_server(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.ports.data_node))
        taken.listen()
        with pytest.raises(KlammError, match=f"cannot listen on 127.0.0.1:{server.ports.data_node}") as caught:
            server.start()
    assert str(caught.value).endswith("or give another --data-port")
    assert "\n" not in str(caught.value)


def test_equal_ports_are_one_line_with_both_options() -> None:
    with pytest.raises(ConfigError) as caught:
        HdfsPorts(name_node=9870)
    assert str(caught.value) == "--http-port: 9870 is the port of --port too; each server needs a port of its own"


def test_a_machine_without_jars_and_maven_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install maven"):
        jars.find_class_path()


def test_what_maven_cannot_fetch_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] no route to host'\necho '[ERROR] and more'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=os.pathsep)
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path / "cache" / "jars"))
    with pytest.raises(ConfigError, match="no route to host") as caught:
        jars.find_class_path()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []
