"""A real HDFS for tests, one for each test process that uses it; each test gets its own directory.

`tests/conftest.py` registers the fixtures. Without Maven or its registry, `KLAMM_NO_HDFS=1` skips these tests.
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
# A killed process loses no data that the kernel has; only a machine that loses power does.
_OPTIONS = {"dfs.namenode.edits.noeditlogchannelflush": "true"}


def new_server(folder: Path) -> HdfsServer:
    """Returns a server that is not started; skips the test if HDFS is disabled."""
    if os.environ.get(NO_HDFS) == "1":
        pytest.skip(f"{NO_HDFS}=1: no HDFS here")
    ports = HdfsPorts(*(free_port() for _ in range(5)))
    return HdfsServer(folder, ports, options=_OPTIONS, ends_with_parent=True)


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """A server shared by all tests that do not stop it."""
    with new_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def hdfs_root(hdfs_server: HdfsServer) -> str:
    """The URI of a directory that does not exist yet, for this test only."""
    return f"{hdfs_server.uri}/test-{uuid4().hex[:12]}"
