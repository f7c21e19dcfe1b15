"""Servers of etcd set up otherwise: small limits, users, TLS, a full database. See also `test_local_servers.py`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import CoordinationUnavailableError, Create, Set
from klamm.plugins.coordination.etcd.config import EtcdConfig
from klamm.plugins.coordination.etcd.gateway import EtcdGateway
from klamm.plugins.coordination.etcd.nodes import encoded
from klamm.plugins.coordination.etcd.server import EtcdServer
from klammtest.etcd import EtcdCase, needs_etcd
from klammtest.ports import free_port
from klammtest.tls import self_signed
from klammtest.waiting import PATIENCE_S

KLAMM = [sys.executable, "-c", "from klamm.core.cli.main import main; main()"]
pytestmark = needs_etcd


def test_the_command_says_that_etcd_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KLAMM, "etcd", "--data-dir", str(tmp_path / "data")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no etcd found: install etcd 3.4 or newer (for example `apt-get install etcd-server`)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_with_its_default_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it takes is found out at the start, and a larger transaction is refused before it is sent."""
    flags = ("--max-txn-ops=128", "--max-request-bytes=1572864")
    with EtcdServer(tmp_path, free_port(), flags=flags) as server:
        case = EtcdCase(server)
        coordination = case.open()
        assert coordination.most_operations == 63
        assert "takes 128 operations in one transaction" in caplog.text
        assert "--max-txn-ops=8192" in caplog.text
        coordination.transaction([Create(f"/{number}") for number in range(63)])
        with pytest.raises(CoordinationError, match="64 operations are over the limit of 63"):
            coordination.transaction([Create(f"/more-{number}") for number in range(64)])
        assert len(coordination.get_many([f"/{number}" for number in range(2000)])) == 2000
        case.close()


def test_a_transaction_over_the_servers_size_is_refused_in_one_line(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, free_port(), flags=("--max-request-bytes=100000",)) as server:
        case = EtcdCase(server)
        coordination = case.open()
        for size in (150_000, 900_000):
            with pytest.raises(CoordinationError, match="start it with --max-request-bytes=4194304") as caught:
                coordination.create("/a", bytes(size))
            assert "\n" not in str(caught.value)
        assert coordination.children("/") == []
        case.close()


def test_a_full_database_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, free_port(), flags=("--quota-backend-bytes=4000000",)) as server:
        case = EtcdCase(server)
        coordination = case.open()
        coordination.create("/a")

        def fill() -> None:
            for _ in range(20):
                coordination.set("/a", bytes(900_000))

        with pytest.raises(CoordinationUnavailableError, match="is full: compact and defragment it") as caught:
            fill()
        assert "\n" not in str(caught.value)
        assert coordination.exists("/a") is not None
        assert coordination.session_id != 0
        case.close()


def test_a_key_that_klamm_has_not_written(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, free_port()) as server:
        case = EtcdCase(server, more={"etcd.prefix": "/app"})
        coordination = case.open()
        config = EtcdConfig.model_validate({"etcd.endpoints": server.url})
        EtcdGateway(config).call("kv/put", {"key": encoded(b"/app/1/foreign"), "value": encoded(b"text")}, "test")
        with pytest.raises(CoordinationError, match="/foreign: its key in etcd was not written by Klamm") as caught:
            coordination.get("/foreign")
        assert "another `etcd.prefix`" in str(caught.value)
        assert coordination.get("/")[0] == b""
        case.close()


def test_what_is_no_etcd_is_said_so(tmp_path: Path) -> None:
    import http.server

    web = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        server = EtcdServer(tmp_path, web.server_port)
        with pytest.raises(CoordinationError, match="etcd") as caught:
            EtcdCase(server).make().start(timeout_s=1.0)
        assert "\n" not in str(caught.value)
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def test_an_answer_that_ends_within_its_first_line_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTT")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        gateway = EtcdGateway(EtcdConfig.model_validate({"etcd.endpoints": url}))
        with pytest.raises(CoordinationUnavailableError, match="HTT"):
            gateway.open_stream("watch", {}, "watches", 0.05)


@pytest.fixture
def with_users(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server with authentication and a user `klamm` who may use the keys below /klamm."""
    with EtcdServer(tmp_path, free_port()) as server:
        gateway = EtcdGateway(EtcdConfig.model_validate({"etcd.endpoints": server.url}))
        permission = {"permType": "READWRITE", "key": encoded(b"/klamm/"), "range_end": encoded(b"/klamm0")}
        for method, body in (
            ("auth/user/add", {"name": "root", "password": "r"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/user/add", {"name": "klamm", "password": "secret"}),
            ("auth/role/add", {"name": "brokers"}),
            ("auth/role/grant", {"name": "brokers", "perm": permission}),
            ("auth/user/grant", {"user": "klamm", "role": "brokers"}),
            ("auth/enable", {}),
        ):
            gateway.call(method, body, "test")
        yield server


def test_a_user_with_a_password(with_users: EtcdServer) -> None:
    user = {"etcd.prefix": "/klamm", "etcd.username": "klamm", "etcd.password": "secret"}
    case = EtcdCase(with_users, more=user)
    coordination = case.open(session_timeout_ms=20_000)
    coordination.create("/a", b"1", ephemeral=True)
    coordination.transaction([Set("/a", b"2"), Create("/b")])
    assert coordination.children("/") == ["a", "b"]
    with_users.restart()  # tokens are kept in its memory
    assert coordination.get("/a")[0] == b"2"
    coordination.delete("/b", recursive=True)
    case.close()


def test_a_user_where_there_are_none(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, free_port()) as server:
        coordination = EtcdCase(server, more={"etcd.username": "klamm", "etcd.password": "secret"}).make()
        with pytest.raises(CoordinationError, match="authentication is not enabled"):
            coordination.start(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"etcd.username": "klamm", "etcd.password": "wrong"},
        {"etcd.prefix": "/elsewhere", "etcd.username": "klamm", "etcd.password": "secret"},
    ],
    ids=["none", "wrong password", "other prefix"],
)
def test_a_user_who_may_not(with_users: EtcdServer, user: dict[str, Any]) -> None:
    coordination = EtcdCase(with_users, more={"etcd.prefix": "/klamm", **user}).make()
    with pytest.raises(CoordinationError, match=r"refuses.*`etcd\.username`") as caught:
        coordination.start(timeout_s=PATIENCE_S)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    self_signed(tmp_path)
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    port, plain = free_port(), free_port()
    flags = (
        f"--listen-client-urls=http://127.0.0.1:{plain},https://127.0.0.1:{port}",
        f"--cert-file={certificate}", f"--key-file={key}", f"--trusted-ca-file={certificate}", "--client-cert-auth",
    )  # fmt: skip
    with EtcdServer(tmp_path / "etcd", plain, flags=flags) as server:
        secure = f"https://127.0.0.1:{port}"
        keys = {"etcd.ssl.ca": certificate, "etcd.ssl.certificate": certificate, "etcd.ssl.key": key}
        case = EtcdCase(server, secure, keys)
        coordination = case.open()
        coordination.create("/a", b"1", ephemeral=True)
        assert coordination.get("/a")[0] == b"1"
        case.close()
        untrusted = {name: path for name, path in keys.items() if name != "etcd.ssl.ca"}
        for some, reason in ((untrusted, ".*certificate verify failed"), ({"etcd.ssl.ca": certificate}, "")):
            with pytest.raises(CoordinationUnavailableError, match=f"no etcd responds at {secure}{reason}") as caught:
                EtcdCase(server, secure, some).make().start(timeout_s=3.0)
            assert "\n" not in str(caught.value)
        for wrong, name in (
            ({"etcd.ssl.ca": key}, "etcd.ssl.ca"),
            ({"etcd.ssl.certificate": certificate}, "etcd.ssl.certificate"),
            ({"etcd.ssl.certificate": key, "etcd.ssl.key": key}, "etcd.ssl.certificate"),
        ):
            with pytest.raises(CoordinationError, match=f"{name}: .* in PEM"):
                EtcdCase(server, secure, wrong).make().start(timeout_s=PATIENCE_S)


def test_the_question_for_the_size_of_transactions_reads_nothing(tmp_path: Path) -> None:
    """Each start asks it. A comparison for each of the 8,192 operations held up a busy etcd for seconds."""

    def ranges() -> float:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("etcd_debugging_mvcc_range_total "))

    with EtcdServer(tmp_path, free_port()) as server:
        before = ranges()
        assert EtcdCase(server).open().most_operations >= 1010
        assert 0 < ranges() - before < 100
