"""`LakeFiles` on `hdfs:` by WebHDFS: HTTP to the NameNode, which redirects reads to DataNodes.

Requests are retried a few times when the connection fails: all of them only read. The user is `HADOOP_USER_NAME`, else
the process's own, as for Hadoop's clients.
"""

from __future__ import annotations

import getpass
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, BinaryIO, Final, cast

import requests
from hdfs import Client, InsecureClient
from hdfs.util import HdfsError
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from klamm.core.errors import ConfigError

from ..publishing.interface import LakeError, LakeUnavailableError
from .config import webhdfs_urls
from .layout import HALF, hdfs_authority, hdfs_path
from .site import web_addresses

DEFAULT_PORT: Final = 9870
TIMEOUT_S: Final = (10.0, 60.0)
"""Time-outs in seconds: of connecting, and between two packets of a response."""
_RETRIES: Final = Retry(total=3, backoff_factor=0.2, allowed_methods={"GET"}, redirect=5, raise_on_redirect=False)
_BUFFER: Final = 1 << 20
_OTHERWISE: Final = "--webhdfs URL, or webhdfs.url in the sink, names another address"
_NOT_THERE: Final = ("FileNotFoundException", "ParentNotDirectoryException")


def connect(root: str, url: str | None = None) -> WebHdfsFiles:
    """Connects to `url`, or else to the address in Hadoop's configuration, or else to port 9870 of the host in `root`.
    Raises `ConfigError` if none of them names a host.
    """
    chosen = url is not None
    url = url or web_addresses(root)
    host = hdfs_authority(root)
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if url is None and not name:
        raise ConfigError(
            f"{root}: no host; webhdfs.url (or --webhdfs) must name the NameNode's, e.g. http://namenode:9870"
        )
    session = requests.Session()
    for prefix in ("http://", "https://"):
        session.mount(prefix, HTTPAdapter(max_retries=_RETRIES))
    user = os.environ.get("HADOOP_USER_NAME") or _own_name()
    where = url or f"http://{name}:{DEFAULT_PORT}"
    try:
        webhdfs_urls(where)
    except ValueError as error:
        raise ConfigError(f"--webhdfs: {error}") from error
    client = InsecureClient(where, user=user, timeout=TIMEOUT_S, session=session)
    return WebHdfsFiles(client, where if chosen else f"{where}; {_OTHERWISE}")


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container's user may have no name
        raise ConfigError("this user has no name; set HADOOP_USER_NAME to the user who reads HDFS") from error


class WebHdfsFiles:
    """`LakeFiles` by a client of the package `hdfs`. Paths are `hdfs:` URIs; the client determines the file system.
    `where` is its address in error messages."""

    def __init__(self, client: Client, where: str) -> None:
        self._client = client
        self._where = where

    def read(self, path: str) -> bytes | None:
        try:
            with self._translating(f"cannot read {path}"), self._client.read(hdfs_path(path)) as answer:
                return cast("bytes", answer.read())
        except _NotThereError:
            return None

    def names(self, path: str) -> list[str]:
        with suppress(_NotThereError):
            return sorted(self._entries(path))
        return []

    def files(self, path: str) -> list[tuple[str, int]]:
        with suppress(_NotThereError):
            return sorted(self._below(path, ""))
        return []

    def is_file(self, path: str) -> bool:
        with suppress(_NotThereError):
            return str(self._status(path)["type"]) == "FILE"
        return False

    def open(self, path: str) -> BinaryIO:
        try:
            status = self._status(path)
        except _NotThereError as error:
            raise LakeError(f"cannot read {path}: it does not exist") from error
        if status["type"] != "FILE":
            raise LakeError(f"cannot read {path}: it is not a file")
        raw = _RangeFile(self._client, path, int(status["length"]), self._where)
        return cast("BinaryIO", io.BufferedReader(raw, _BUFFER))

    def _below(self, root: str, folder: str) -> Iterator[tuple[str, int]]:
        for name, status in self._entries(f"{root}/{folder}".rstrip("/")).items():
            if status["type"] == "DIRECTORY":
                yield from self._below(root, f"{folder}{name}/")
            else:
                yield f"{folder}{name}", int(status["length"])

    def _entries(self, path: str) -> Mapping[str, Mapping[str, Any]]:
        with self._translating(f"cannot list {path}"):
            found = self._client.list(hdfs_path(path), status=True)
        return {name: status for name, status in found if not HALF.match(name)}

    def _status(self, path: str) -> Mapping[str, Any]:
        with self._translating(f"cannot read {path}"):
            return cast("Mapping[str, Any]", self._client.status(hdfs_path(path)))

    def _translating(self, what: str) -> AbstractContextManager[None]:
        return _translating(what, self._where)


class _RangeFile(io.RawIOBase):
    """A file of a known size; each read is one request for the wanted bytes."""

    def __init__(self, client: Client, path: str, size: int, where: str) -> None:
        self._client = client
        self._path = path
        self._size = size
        self._where = where
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = max(min(len(buffer), self._size - self._position), 0)
        if not wanted:
            return 0
        try:
            with (
                _translating(f"cannot read {self._path}", self._where),
                self._client.read(hdfs_path(self._path), offset=self._position, length=wanted) as answer,
            ):
                data = answer.read()
        except _NotThereError as error:
            raise LakeError(f"cannot read {self._path}: it no longer exists") from error
        if len(data) != wanted:
            raise LakeError(f"cannot read {self._path}: only {len(data)} of {wanted} bytes arrived at {self._position}")
        buffer[:wanted] = data
        self._position += wanted
        return wanted


class _NotThereError(Exception):
    """HDFS has no such path."""


@contextmanager
def _translating(what: str, where: str) -> Iterator[None]:
    try:
        yield
    except HdfsError as error:
        if error.exception is None and error.args and isinstance(error.args[0], bytes):  # another server's page
            raise _no_webhdfs(what, where) from error
        text = str(error).strip().split("\n")[0]
        if text.startswith("Authentication failure"):  # the package's text for status 401
            raise LakeError(
                f"{what}: WebHDFS requires Kerberos, which `klamm lake` does not support; loads do, with the ticket of "
                "kinit (docs/hdfs.md)"
            ) from error
        kind = error.exception
        if kind in _NOT_THERE and "not a file" not in text:
            raise _NotThereError(text) from error
        if kind == "AccessControlException" and "is not a directory" in text:
            raise _NotThereError(text) from error
        raise LakeError(f"{what}: {text}") from error
    except (requests.RequestException, HTTPError) as error:
        shell = error.args[0] if error.args else error  # the package wraps the error of the last attempt
        reason = str(getattr(shell, "reason", None) or error).strip().split("\n")[0]
        raise LakeUnavailableError(f"{what}: WebHDFS does not answer ({reason}) at {where}") from error
    except (KeyError, TypeError) as error:  # JSON of another server
        raise _no_webhdfs(what, where) from error


def _no_webhdfs(what: str, where: str) -> LakeUnavailableError:
    return LakeUnavailableError(f"{what}: the server is not a WebHDFS, at {where}")
