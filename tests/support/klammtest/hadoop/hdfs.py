"""A real HDFS for tests, one for each process of tests that asks for it; each test gets a directory of its own.

`tests/conftest.py` makes the fixtures known. Without Maven or its registry, `KLAMM_NO_HDFS=1` skips these tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.hadoop.hdfs.server import HdfsPorts, HdfsServer
from klammtest.ports import free_port

NO_HDFS = "KLAMM_NO_HDFS"
# A killed process loses nothing that it gave to the kernel; only a machine that loses its power does.
_OPTIONS = {"dfs.namenode.edits.noeditlogchannelflush": "true"}


def new_server(folder: Path) -> HdfsServer:
    """Not started; skips the test where HDFS is not wanted."""
    if os.environ.get(NO_HDFS) == "1":
        pytest.skip(f"{NO_HDFS}=1: no HDFS here")
    ports = HdfsPorts(*(free_port() for _ in range(5)))
    return HdfsServer(folder, ports, options=_OPTIONS, ends_with_parent=True)


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """One server for all tests that do not stop it."""
    with new_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def hdfs_root(hdfs_server: HdfsServer) -> str:
    """The URI of a directory that is not there yet, the test's own."""
    return f"{hdfs_server.uri}/test-{uuid4().hex[:12]}"
