"""Publishing on `hdfs:`: `FileContext.rename` with `Rename.NONE`, which the NameNode refuses where the target exists.

`FileSystem.rename` does not serve: it moves into a directory that exists, and returns true (design D11).

Rules.
- A rename is one operation of the NameNode, in its edit log before it answers: no reader sees half of it, and a restart
  keeps it. Hadoop's client repeats a call whose answer was lost with the same call id, and the NameNode's retry cache
  gives the first answer; where that ends, the outcome is unknown and the caller reads the target.
- Files are durable before they are published: `write` ends with hsync, and `sync` waits until every file below a
  directory is closed and each of its blocks is on as many DataNodes as the file's replication asks for.
- Ages are measured by the NameNode's clock, which also stamps the files: the driver's may be wrong by a day.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from klamm.hadoop.publishing.seam import LakeError, TargetExistsError

REPLICATION_TIMEOUT_S: Final = 60.0
"""How long a load waits until its blocks have their replicas."""
_POLL_S: Final = 0.2
_HALF: Final = re.compile(r"\..+\.[0-9a-f]{32}\Z")
"""The name of a file that `write` has not renamed yet."""
_PACKAGE: Final = re.compile(r"^[\w.]*\.(\w+)$")


@dataclass(frozen=True, slots=True)
class HadoopJvm:
    """A JVM with Hadoop's client on its class path, as Py4J shows it: `gateway`, its `jvm`, and the `configuration`
    with which file systems are opened."""

    gateway: Any
    configuration: Any

    @property
    def jvm(self) -> Any:
        return self.gateway.jvm


class HdfsPublisher:
    """See `seam.Publisher`. `hadoop` is called once, at the first use: it may start a JVM."""

    def __init__(
        self,
        hadoop: Callable[[], HadoopJvm],
        *,
        replication_timeout_s: float = REPLICATION_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make_hadoop = hadoop
        self._replication_timeout_s = replication_timeout_s
        self._clock = clock
        self._sleep = sleep

    @cached_property
    def _hadoop(self) -> HadoopJvm:
        return self._make_hadoop()

    def publish(self, staging: str, target: str) -> None:
        self.sync(staging)
        with _translating(f"cannot publish {target}"):
            try:
                self._rename(staging, target, "NONE")
            except Py4JJavaError as error:
                if _class_of(error) == "FileAlreadyExistsException":
                    raise TargetExistsError(f"{target} is there already") from error
                raise

    def write(self, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")
        half = f"{folder}/.{name}.{uuid.uuid4().hex}"
        with _translating(f"cannot write {path}"):
            out = self._files(path).create(self._path(half), True)
            try:
                out.write(data)
                out.hsync()
            finally:
                out.close()
            self._rename(half, path, "OVERWRITE")

    def tidy(self, path: str, older_than_s: float) -> None:
        for name in self._names(path):
            if _HALF.match(name):
                age = self.age_s(f"{path}/{name}")
                if age is not None and age > older_than_s:
                    self.remove(f"{path}/{name}")

    def read(self, path: str) -> bytes | None:
        with _translating(f"cannot read {path}"):
            try:
                source = self._files(path).open(self._path(path))
            except Py4JJavaError as error:
                if _class_of(error) in ("FileNotFoundException", "PathIsNotDirectoryException"):
                    return None
                raise
            try:
                return bytes(self._hadoop.jvm.org.apache.commons.io.IOUtils.toByteArray(source))
            finally:
                source.close()

    def names(self, path: str) -> list[str]:
        return sorted(name for name in self._names(path) if not _HALF.match(name))

    def files(self, path: str) -> list[tuple[str, int]]:
        with _translating(f"cannot list {path}"):
            root = self._files(path).makeQualified(self._path(path)).toUri().getPath().rstrip("/") + "/"
            found = [(str(s.getPath().toUri().getPath()), int(s.getLen())) for s in self._below(path)]
        named = [(name.removeprefix(root), size) for name, size in found]
        return sorted((name, size) for name, size in named if not _HALF.match(name.rpartition("/")[2]))

    def make(self, path: str) -> None:
        with _translating(f"cannot make the directory {path}"):
            self._files(path).mkdirs(self._path(path))

    def age_s(self, path: str) -> float | None:
        with _translating(f"cannot read {path}"):
            try:
                written_ms = self._files(path).getFileStatus(self._path(path)).getModificationTime()
            except Py4JJavaError as error:
                if _class_of(error) == "FileNotFoundException":
                    return None
                raise
            return float(self._now_ms(path) - written_ms) / 1000

    def move(self, source: str, target: str) -> bool:
        with _translating(f"cannot rename {source} to {target}"):
            try:
                self._rename(source, target, "NONE")
            except Py4JJavaError as error:
                if _class_of(error) == "FileNotFoundException":
                    return False
                raise
        return True

    def remove(self, path: str) -> None:
        with _translating(f"cannot remove {path}"):
            self._files(path).delete(self._path(path), True)

    def sync(self, path: str) -> None:
        """`LakeError` when a file stays open, or a block short of replicas, for longer than the time-out."""
        deadline = self._clock() + self._replication_timeout_s
        with _translating(f"cannot sync {path}"):
            while (short := self._not_durable(path)) is not None:
                if self._clock() > deadline:
                    raise LakeError(
                        f"{path}: {short} for {self._replication_timeout_s:g} s; nothing is published (are there as "
                        "many live DataNodes as dfs.replication asks for?)"
                    )
                self._sleep(_POLL_S)

    # -- Hadoop

    def _not_durable(self, path: str) -> str | None:
        """What the first file that is not durable lacks; None when all are."""
        files = self._files(path)
        for status in self._below(path):
            name = status.getPath()
            if not files.isFileClosed(name):
                return f"{name} is still open"
            wanted = int(status.getReplication())
            for block in status.getBlockLocations():
                if len(block.getNames()) < wanted:
                    return f"a block of {name} has {len(block.getNames())} of {wanted} replicas"
        return None

    def _below(self, path: str) -> Iterator[Any]:
        """The status of every file below a directory, with the locations of its blocks."""
        rows = self._files(path).listFiles(self._path(path), True)
        while rows.hasNext():
            yield rows.next()

    def _names(self, path: str) -> list[str]:
        with _translating(f"cannot list {path}"):
            try:
                return [str(status.getPath().getName()) for status in self._files(path).listStatus(self._path(path))]
            except Py4JJavaError as error:
                if _class_of(error) == "FileNotFoundException":
                    return []
                raise

    def _rename(self, source: str, target: str, option: str) -> None:
        hadoop = self._hadoop
        kind = getattr(hadoop.jvm.org.apache.hadoop.fs, "Options$Rename")
        options = hadoop.gateway.new_array(kind, 1)
        options[0] = getattr(kind, option)
        context = hadoop.jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._uri(target), hadoop.configuration)
        context.rename(self._path(source), self._path(target), options)

    def _now_ms(self, path: str) -> int:
        """The NameNode's clock: the time that it gives to a file that is created now."""
        files, folder = self._files(path), path.rpartition("/")[0]
        probe = self._path(f"{folder}/.now.{uuid.uuid4().hex}")
        files.create(probe, True).close()
        try:
            return int(files.getFileStatus(probe).getModificationTime())
        finally:
            files.delete(probe, False)

    def _files(self, path: str) -> Any:
        return self._hadoop.jvm.org.apache.hadoop.fs.FileSystem.get(self._uri(path), self._hadoop.configuration)

    def _uri(self, path: str) -> Any:
        return self._path(path).toUri()

    def _path(self, path: str) -> Any:
        return self._hadoop.jvm.org.apache.hadoop.fs.Path(path)


@contextmanager
def _translating(what: str) -> Iterator[None]:
    """Raises `LakeError` for whatever Hadoop's client raises: what was wanted, and the first line of Java's words."""
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        said = (java.getMessage() or "").strip().splitlines() or ["no message"]
        raise LakeError(f"{what}: {_class_of(error)}: {said[0]}") from error
    except (Py4JError, OSError) as error:
        raise LakeError(f"{what}: Spark's JVM does not answer: {error}") from error


def _class_of(error: Py4JJavaError) -> str:
    """The Java exception's simple name; a NameNode's exception is unwrapped by Hadoop's client already."""
    name = str(error.java_exception.getClass().getName())
    match = _PACKAGE.match(name)
    return match[1] if match else name
