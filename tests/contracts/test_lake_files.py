"""The contract of reading a lake's files: `file:` by the kernel, `hdfs:` by WebHDFS."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import LakeFiles, lake_files
from klamm.hadoop.publishing.interface import LakeError, LakeUnavailableError
from klammtest.hadoop.lakes import SCHEMES, Put, put_local, put_on_hdfs

Lake = tuple[LakeFiles, str, Put]


def _local(request: pytest.FixtureRequest, tmp: Path) -> Lake:
    return lake_files(root := f"file://{tmp}/lake"), root, put_local


def _hdfs(request: pytest.FixtureRequest, tmp: Path) -> Lake:
    server, root = request.getfixturevalue("hdfs_server"), request.getfixturevalue("hdfs_root")
    return lake_files(root, server.web_url), root, put_on_hdfs(server.web_url)


IMPLEMENTATIONS: dict[str, Callable[[pytest.FixtureRequest, Path], Lake]] = {"file": _local, "hdfs": _hdfs}


@pytest.fixture(params=SCHEMES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return IMPLEMENTATIONS[request.param](request, tmp_path)


def test_what_is_there_is_listed_and_read(lake: Lake) -> None:
    files, root, put = lake
    half = f".a.{'0f' * 16}"
    put(root, {"a": b"1", "load=000001/dt=2013-01-01/b c%20": b"22", half: b"half", "load=000001/_SUCCESS": b""})
    assert files.names(root) == ["a", "load=000001"]
    assert files.files(root) == [("a", 1), ("load=000001/_SUCCESS", 0), ("load=000001/dt=2013-01-01/b c%20", 2)]
    assert files.names(f"{root}/load=000001/dt=2013-01-01") == ["b c%20"]
    assert files.read(f"{root}/a") == b"1"
    assert files.read(f"{root}/load=000001/_SUCCESS") == b""
    assert files.read(f"{root}/load=000001/dt=2013-01-01/b c%20") == b"22"


def test_what_is_not_there_is_empty_or_none(lake: Lake) -> None:
    files, root, put = lake
    put(root, {"a": b"1"})
    assert files.read(f"{root}/gone") is None
    assert files.read(f"{root}/a/below") is None
    assert files.names(f"{root}/gone") == []
    assert files.files(f"{root}/gone") == []
    with pytest.raises(LakeError, match="gone"):
        files.open(f"{root}/gone")


def test_a_directory_is_no_file_and_a_file_no_directory(lake: Lake) -> None:
    files, root, put = lake
    put(root, {"folder/a": b"1"})
    for wrong in (
        lambda: files.open(f"{root}/folder"),
        lambda: files.read(f"{root}/folder"),
        lambda: files.names(f"{root}/folder/a"),
    ):
        with pytest.raises(LakeError, match="folder") as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_a_file_is_told_from_a_directory_and_from_nothing(lake: Lake) -> None:
    files, root, put = lake
    put(root, {"folder/a": b"1"})
    paths = ("folder", "folder/a", "folder/gone", "folder/a/below", "folder/a/below/it")
    assert [files.is_file(f"{root}/{path}") for path in paths] == [False, True, False, False, False]


def test_parts_of_a_file_are_read(lake: Lake) -> None:
    files, root, put = lake
    data = bytes(range(256)) * 12_000  # more than the buffer of an opened file
    put(root, {"a": data, "empty": b""})
    with files.open(f"{root}/a") as file:
        assert file.seek(-4, io.SEEK_END) == len(data) - 4
        assert file.read() == data[-4:]
        assert file.read() == b""
        file.seek(1000)
        assert file.read(3) == data[1000:1003]
        assert file.tell() == 1003
        file.seek(0)
        assert file.read() == data
        file.seek(len(data) + 5)
        assert file.read(1) == b""
    with files.open(f"{root}/empty") as file:
        assert file.read() == b""


def test_pyarrow_reads_an_opened_file(lake: Lake) -> None:
    files, root, put = lake
    table = pa.table({"n": list(range(1000))})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    put(root, {"a.parquet": sink.getvalue()})
    with files.open(f"{root}/a.parquet") as file:
        assert parquet.ParquetFile(file).read() == table


def test_a_file_system_that_does_not_answer_is_one_line() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        files = lake_files("hdfs://127.0.0.1:1/lake", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(LakeUnavailableError, match="cannot list hdfs:") as caught:
            files.names("hdfs://127.0.0.1:1/lake")
    assert "\n" not in str(caught.value)


class AsksForKerberos(BaseHTTPRequestHandler):
    """As a NameNode of a secure cluster answers who brings no ticket."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Negotiate")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_cluster_with_kerberos_is_refused_in_one_line() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), AsksForKerberos) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            files = lake_files("hdfs://secure/lake", f"http://127.0.0.1:{server.server_port}")
            with pytest.raises(LakeError, match="cannot list hdfs://secure/lake: WebHDFS requires Kerberos") as caught:
                files.names("hdfs://secure/lake")
        finally:
            server.shutdown()
            thread.join()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("root", "words"),
    [("s3a://bucket/lake", "cannot be read"), ("hdfs:///lake", "webhdfs.url"), ("viewfs:///lake", "cannot be read")],
)
def test_what_cannot_be_read_is_refused_in_one_line(root: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        lake_files(root)
    assert "\n" not in str(caught.value)
