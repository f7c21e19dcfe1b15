"""The development servers, `klamm zookeeper` and `klamm etcd`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from klamm.core.errors import CoordinationError
from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.local_server import LocalServer
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.etcd import needs_etcd
from klammtest.ports import free_port

SERVERS = [pytest.param(ZooKeeperServer, id="zookeeper"), pytest.param(EtcdServer, id="etcd", marks=needs_etcd)]
pytestmark = pytest.mark.parametrize("kind", SERVERS)


def command(server: LocalServer) -> subprocess.Popen[str]:
    """Starts the command that runs such a server, and waits until it is ready."""
    klamm = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]
    where = ["--port", str(server.port), "--data-dir", str(server.data_dir)]
    process = subprocess.Popen(
        [*klamm, server.product.lower(), *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert f"klamm {server.product.lower()} ready: {server.address}, data in " in process.stdout.readline()
    return process


def test_the_command_says_when_it_is_ready_and_stops_on_sigterm(kind: type[LocalServer], tmp_path: Path) -> None:
    server = kind(tmp_path / "data", free_port())
    process = command(server)
    assert server.answers()
    (child,) = psutil.Process(process.pid).children()
    listening = {c.laddr.ip for c in child.net_connections() if c.status == "LISTEN"}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out, err) == (0, f"{server.product} has stopped\n", "")
    assert not server.answers()


def test_no_server_is_left_when_the_command_is_killed(kind: type[LocalServer], tmp_path: Path) -> None:
    process = command(kind(tmp_path / "data", free_port()))
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=90)
    assert psutil.wait_procs([child], timeout=90)[1] == []


def test_a_server_that_ends_by_itself_is_one_line(kind: type[LocalServer], tmp_path: Path) -> None:
    process = command(server := kind(tmp_path / "data", free_port()))
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    _, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (1, f"{server.product} ended by itself with status -9; see {server.log}\n")


def test_a_port_in_use_is_one_line(kind: type[LocalServer], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CoordinationError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            kind(tmp_path, port).start()


def test_a_data_directory_that_cannot_be_made_is_one_line(kind: type[LocalServer], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CoordinationError, match=r"cannot write .*file/data: .*; give another --data-dir"):
        kind(tmp_path / "file" / "data", free_port()).start()


def test_stop_and_kill_may_be_repeated(kind: type[LocalServer], tmp_path: Path) -> None:
    server = kind(tmp_path, free_port())
    server.stop()
    server.kill()
    with pytest.raises(CoordinationError, match="not been started"):
        server.wait()
    server.start()
    with pytest.raises(CoordinationError, match="started already"):
        server.start()
    server.stop()
    assert server.pid is None
