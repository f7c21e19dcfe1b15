"""The read-only files of a lake, without a JVM: on `file:` by system calls, on `hdfs:` by WebHDFS.

Both implementations pass the contract suite `tests/contracts/test_lake_files.py`. This module writes nothing.
"""

from __future__ import annotations

from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from klamm.core.errors import ConfigError
from klamm.core.extras import importing

from ..publishing.interface import LakeReader
from ..publishing.local import LocalFiles, local_path


class LakeFiles(LakeReader, Protocol):
    """A `LakeReader` that also opens files for reading parts of them."""

    def open(self, path: str) -> BinaryIO:
        """Opens the file, seekable; fetches only the parts that are read. Raises `LakeError` if it is missing or
        unreadable.
        """
        ...


def lake_files(root: str, webhdfs_url: str | None = None) -> LakeFiles:
    """Returns the files of the lake at `root`, by its scheme. `webhdfs_url`: the NameNode's WebHDFS address, if it is
    not port 9870 of the host in `root`.
    """
    scheme = urlsplit(root).scheme
    if scheme in ("", "file"):
        local_path(root)
        return LocalFiles()
    if scheme == "hdfs":
        with importing("a lake on hdfs:", "klamm[lake]"):
            from .webhdfs import connect

        return connect(root, webhdfs_url)
    if scheme == "webhdfs":
        other = f"write hdfs:, and --webhdfs (or webhdfs_url=) http://{urlsplit(root).netloc}"
    else:
        other = f'Spark itself reads the schemes that it has a connector for: spark.read.parquet("{root}/TOPIC")'
    read = "`klamm lake` and read_lake read file:, and hdfs: by WebHDFS"
    raise ConfigError(f"a lake on {scheme}: ({root}) cannot be read: {read}; {other}")
