"""Publishing on `hdfs:`: `FileContext.rename` with `Rename.NONE`, which the NameNode refuses where the target exists.

`FileSystem.rename` is unsuitable: it moves into an existing directory, and returns true (design D11).

Rules.
- A rename is one operation of the NameNode, in its edit log before it responds: no reader sees half of it, and a
  restart keeps it. Any result other than success or "it exists" means that the outcome is unknown, and the caller reads
  the target.
- Files are durable before they are published: `write` ends with hsync, and `sync` waits until every file below a
  directory is closed and each of its blocks is on as many DataNodes as the file's replication requires.
- Ages are measured by the NameNode's clock, which also stamps the files: the driver's may be wrong by a day.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError

from ..lake.layout import HALF, hdfs_path
from .interface import LakeError, TargetExistsError, remove_halves

REPLICATION_TIMEOUT_S: Final = 60.0
"""Seconds that a load waits until its blocks have their replicas."""
_POLL_S: Final = 0.2
_REPLICATION: Final = "dfs.replication"
# A file is closed when its DataNodes have reported its last block to the NameNode, some milliseconds after they
# acknowledged it to the client. Hadoop's default polls too early and then sleeps 0.4 s and more, for each file.
_CLOSING: Final = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
    "dfs.client.block.write.locateFollowingBlock.retries": "12",
}
_CLIENT: Final = "org.apache.hadoop.hdfs.DistributedFileSystem"
_DEFAULTS: Final = ("hdfs-default.xml", "core-default.xml")
_NO_NAME_LEFT: Final = "NSQuotaExceededException"
_GONE: Final = frozenset({"FileNotFoundException", "ParentNotDirectoryException", "PathIsNotDirectoryException"})
_LOST: Final = frozenset({"EOFException", "SocketException", "ClosedChannelException"})
_HINTS: Final = {
    "ConnectException": "; is the NameNode up, and is this the address of its RPC (fs.defaultFS)?",
    "RpcException": "; this is not the RPC port of a NameNode (is it the port of its web pages?)",
    "EOFException": "; the NameNode closed the connection, or another service listens there",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HadoopJvm:
    """A JVM with Hadoop's client on its class path, as Py4J shows it, and the `configuration` of its file systems."""

    gateway: Any
    configuration: Any


class _Hdfs:
    """An open file system, with the Java names that each call needs (each lookup costs a round trip)."""

    def __init__(self, hadoop: HadoopJvm, uri: str) -> None:
        jvm = hadoop.gateway.jvm
        fs = jvm.org.apache.hadoop.fs
        self._new_path = fs.Path
        self.read_all = jvm.org.apache.commons.io.IOUtils.toByteArray
        where = self._new_path(uri).toUri()
        self.configuration = jvm.org.apache.hadoop.conf.Configuration(hadoop.configuration)
        # Always a separate instance: a shared one would keep the configuration of its first user.
        self.files = fs.FileSystem.newInstance(where, self.configuration)
        if (kind := str(self.files.getClass().getName())) != _CLIENT:
            raise LakeError(
                f"{uri}: fs.hdfs.impl is {kind}, whose translation of paths the rename of a load would bypass; "
                f"publishing needs {_CLIENT}"
            )
        self.settings = self._find_settings()
        for name, value in self.settings.items():
            self.configuration.set(name, value)
        if self.settings:
            self.files.close()
            self.files = fs.FileSystem.newInstance(where, self.configuration)
        # A FileSystem takes `hdfs:///` as the default file system, a FileContext refuses it.
        self.context = fs.FileContext.getFileContext(self.files.getUri(), self.configuration)
        kind = getattr(fs, "Options$Rename")
        self._options = {name: hadoop.gateway.new_array(kind, 1) for name in ("NONE", "OVERWRITE")}
        for name, options in self._options.items():
            options[0] = getattr(kind, name)

    def _find_settings(self) -> dict[str, str]:
        """Returns defaults of settings that the user has not set. Without an hdfs-site.xml the client would request
        three replicas of each block, however many DataNodes there are: the server's own default is used.
        """
        chosen = {name: value for name, value in _CLOSING.items() if _is_default(self.configuration, name)}
        if _is_default(self.configuration, _REPLICATION):
            chosen[_REPLICATION] = str(self.files.getServerDefaults(self._new_path("/")).getReplication())
        return chosen

    def path(self, path: str) -> Any:
        """Returns the path without scheme and authority, which `hdfs:///lake` leaves to the configuration."""
        return self._new_path(hdfs_path(path))

    def local(self, path: Path) -> Any:
        """Returns the path of a file of this machine."""
        return self._new_path(f"file://{path.absolute()}")

    def rename(self, source: str, target: str, option: str) -> None:
        self.context.rename(self.path(source), self.path(target), self._options[option])


@dataclass(eq=False)
class HdfsPublisher:
    """See `interface.Publisher`. `hadoop` is called at the first use: it may start a JVM."""

    hadoop: Callable[[], HadoopJvm]
    replication_timeout_s: float = REPLICATION_TIMEOUT_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[str, _Hdfs] = {}

    def publish(self, staging: str, target: str) -> None:
        self.sync(staging)
        with _translating(f"cannot publish {target}"):
            hdfs = self._at(target)
            try:
                hdfs.rename(staging, target, "NONE")
            except Py4JJavaError as error:
                # A target that is a file is refused with another error. If both exist, nothing was renamed.
                taken = _class_of(error) == "FileAlreadyExistsException" or (
                    hdfs.files.exists(hdfs.path(target)) and hdfs.files.exists(hdfs.path(staging))
                )
                if taken:
                    raise TargetExistsError(f"{target} already exists") from error
                raise

    def write(self, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")

        def write(hdfs: _Hdfs) -> None:
            half = f"{folder}/.{name}.{uuid.uuid4().hex}"  # a separate name for each attempt
            out = hdfs.files.create(hdfs.path(half), True)
            try:
                if data:
                    out.write(data)
                    out.hsync()
            finally:
                out.close()
            hdfs.rename(half, path, "OVERWRITE")

        self._repeatable(f"cannot write {path}", path, write)

    def tidy(self, path: str, older_than_s: float) -> None:
        remove_halves(self, path, self._names(path), older_than_s)

    def read(self, path: str) -> bytes | None:
        def read(hdfs: _Hdfs) -> bytes:
            source = hdfs.files.open(hdfs.path(path))
            try:
                return bytes(hdfs.read_all(source))
            finally:
                source.close()

        return self._if_there(f"cannot read {path}", path, read)

    def names(self, path: str) -> list[str]:
        return sorted(name for name in self._names(path) if not HALF.match(name))

    def files(self, path: str) -> list[tuple[str, int]]:
        def below(hdfs: _Hdfs) -> list[tuple[str, int]]:
            root = str(hdfs.path(path).toUri().getPath()).rstrip("/") + "/"
            found = [(str(s.getPath().toUri().getPath()), int(s.getLen())) for s in _below(hdfs, path)]
            return [(name.removeprefix(root), size) for name, size in found]

        named = self._if_there(f"cannot list {path}", path, below) or []
        return sorted((name, size) for name, size in named if not HALF.match(name.rpartition("/")[2]))

    def is_file(self, path: str) -> bool:
        return bool(
            self._if_there(
                f"cannot read {path}", path, lambda hdfs: bool(hdfs.files.getFileStatus(hdfs.path(path)).isFile())
            )
        )

    def make(self, path: str) -> None:
        self._repeatable(
            f"cannot make the directory {path}", path, lambda hdfs: bool(hdfs.files.mkdirs(hdfs.path(path)))
        )

    def age_s(self, path: str) -> float | None:
        what = f"cannot read {path}"
        written_ms = self._if_there(
            what, path, lambda hdfs: int(hdfs.files.getFileStatus(hdfs.path(path)).getModificationTime())
        )
        if written_ms is None:
            return None
        return float(self._repeatable(what, path, lambda hdfs: _now_ms(hdfs, path)) - written_ms) / 1000

    def move(self, source: str, target: str) -> bool:
        with _translating(f"cannot rename {source} to {target}"):
            try:
                self._at(source).rename(source, target, "NONE")
            except Py4JJavaError as error:
                if _class_of(error) == "FileNotFoundException":
                    return False
                raise
        return True

    def remove(self, path: str) -> None:
        self._repeatable(f"cannot remove {path}", path, lambda hdfs: bool(hdfs.files.delete(hdfs.path(path), True)))

    def sync(self, path: str) -> None:
        """Raises `LakeError` if a file stays open, or a block short of replicas, for longer than the time-out."""
        deadline = self.clock() + self.replication_timeout_s
        while short := self._repeatable(f"cannot sync {path}", path, lambda hdfs: _not_durable(hdfs, path)):
            if self.clock() > deadline:
                raise LakeError(
                    f"cannot sync {path}: {short} for {self.replication_timeout_s:g} s; nothing is published (are "
                    "there as many live DataNodes as dfs.replication requires?)"
                )
            self.sleep(_POLL_S)

    def folder(self, path: str) -> Path | None:
        del path
        return None

    def put(self, source: Path, path: str) -> None:
        with _translating(f"cannot write {path}"):
            hdfs = self._at(path)
            hdfs.files.copyFromLocalFile(False, False, hdfs.local(source), hdfs.path(path))

    def spark_settings(self, path: str) -> Mapping[str, str]:
        return self._repeatable(f"cannot open {path}", path, lambda hdfs: hdfs.settings)

    def _names(self, path: str) -> list[str]:
        def names(hdfs: _Hdfs) -> list[str]:
            return [str(status.getPath().getName()) for status in hdfs.files.listStatus(hdfs.path(path))]

        return self._if_there(f"cannot list {path}", path, names) or []

    def _if_there(self, what: str, path: str, do: Callable[[_Hdfs], T]) -> T | None:
        """Runs an operation as `_repeatable` does; returns None if the path does not exist."""

        def found(hdfs: _Hdfs) -> T | None:
            try:
                return do(hdfs)
            except Py4JJavaError as error:
                if _class_of(error) in _GONE:
                    return None
                raise

        return self._repeatable(what, path, found)

    def _repeatable(self, what: str, path: str, do: Callable[[_Hdfs], T]) -> T:
        """Runs an operation that may be carried out twice. It is repeated once if the connection is lost.

        Hadoop's client keeps an idle connection for some seconds and does not notice that a NameNode was restarted
        meanwhile; without high availability it does not retry.
        """
        with _translating(what):
            try:
                return do(self._at(path))
            except Py4JJavaError as error:
                if not _lost_connection(error):
                    raise
            return do(self._at(path))

    def _at(self, path: str) -> _Hdfs:
        parts = urlsplit(path)
        uri = f"{parts.scheme}://{parts.netloc}/"
        with self._lock:
            found = self._opened.get(uri)
            if found is None:
                found = self._opened[uri] = _Hdfs(self.hadoop(), uri)
            return found


def _is_default(configuration: Any, name: str) -> bool:
    sources = configuration.getPropertySources(name)
    return sources is None or all(source in _DEFAULTS for source in sources)


def _not_durable(hdfs: _Hdfs, path: str) -> str | None:
    """Returns the reason for the first file that is not durable; None if all are."""
    for status in _below(hdfs, path):
        name = status.getPath()
        if not hdfs.files.isFileClosed(name):
            return f"{name} is still open"
        wanted = int(status.getReplication())
        for block in status.getBlockLocations():
            if (there := len(block.getNames())) < wanted:
                return f"a block of {name} has {there} of {wanted} replicas"
    return None


def _below(hdfs: _Hdfs, path: str) -> Iterator[Any]:
    """Yields the status of every file below a directory, with the locations of its blocks."""
    rows = hdfs.files.listFiles(hdfs.path(path), True)
    while rows.hasNext():
        yield rows.next()


def _now_ms(hdfs: _Hdfs, path: str) -> int:
    """Returns the time of the NameNode's clock: that of a file created now beside `path`.

    If a quota allows no further name, it is the time of the last heartbeat of a DataNode that holds a block nearby:
    some seconds too early, or more if that DataNode is down. Ages are then too low, and nothing is removed too early.
    """
    folder = path.rpartition("/")[0]
    probe = hdfs.path(f"{folder}/.now.{uuid.uuid4().hex}")
    try:
        hdfs.files.create(probe, True).close()
    except Py4JJavaError as error:
        told = _last_heartbeat_ms(hdfs, folder.rpartition("/")[0]) if _class_of(error) == _NO_NAME_LEFT else None
        if told is None:
            raise
        return told
    try:
        return int(hdfs.files.getFileStatus(probe).getModificationTime())
    finally:
        hdfs.files.delete(probe, False)


def _last_heartbeat_ms(hdfs: _Hdfs, path: str) -> int | None:
    """Returns the last heartbeat, by the NameNode's clock, of the DataNodes that hold the first block found below a
    directory; None without one.
    """
    for status in _below(hdfs, path):
        for block in hdfs.files.getFileBlockLocations(status.getPath(), 0, status.getLen()):
            if told := [int(node.getLastUpdate()) for node in block.getLocatedBlock().getLocations()]:
                return max(told)
    return None


@contextmanager
def _translating(what: str) -> Iterator[None]:
    """Translates every error of Hadoop's client to `LakeError`: the attempted operation, and the first line of Java's
    message.
    """
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        said = (java.getMessage() or "").strip().splitlines() or ["no message"]
        text, hint = said[0].partition("; For more details see:")[0], _HINTS.get(_class_of(error), "")
        raise LakeError(f"{what}: {_class_of(error)}: {text}{hint}") from error
    except (Py4JError, OSError) as error:
        raise LakeError(f"{what}: Spark's JVM does not answer: {error}") from error


def _lost_connection(error: Py4JJavaError) -> bool:
    said = str(error.java_exception.getMessage() or "")
    return _class_of(error) in _LOST or any(text in said for text in ("Connection reset by peer", "Broken pipe"))


def _class_of(error: Py4JJavaError) -> str:
    """Returns the Java exception's simple name. Hadoop's client already unwraps a NameNode's exception, except for a
    few that name their class in the message.
    """
    java = error.java_exception
    name = str(java.getClass().getName())
    if name.endswith(".RemoteException"):
        name = str(java.getClassName())
    return re.split(r"[.$]", name)[-1]
