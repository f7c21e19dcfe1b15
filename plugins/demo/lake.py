"""Reads the lake's files without Klamm: from the file system, or by WebHDFS, which is HTTP."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError

from .processes import DemoError
from .workspace import Workspace

TIMEOUT_S = 60.0


class DemoLakeFiles(Protocol):
    """The files of a lake; paths are relative to it."""

    def folders(self, path: str) -> list[str]:
        """Returns the names of the directories in a directory; none if it does not exist."""
        ...

    def read(self, path: str) -> bytes:
        """Returns the content of a file."""
        ...


class LocalDemoFiles:
    """`DemoLakeFiles` below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, path: str) -> list[str]:
        folder = self._root / path
        return [found.name for found in folder.iterdir() if found.is_dir()] if folder.is_dir() else []

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()


class WebHdfsDemoFiles:
    """`DemoLakeFiles` below `/lake` of the HDFS whose WebHDFS is at `url`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/webhdfs/v1/lake"

    def folders(self, path: str) -> list[str]:
        try:
            found = json.loads(self._get(path, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return []
        return [each["pathSuffix"] for each in found if each["type"] == "DIRECTORY"]

    def read(self, path: str) -> bytes:
        return self._get(path, "OPEN")

    def _get(self, path: str, operation: str) -> bytes:
        try:
            with urllib.request.urlopen(f"{self._url}/{path}?op={operation}", timeout=TIMEOUT_S) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(path) from error
            raise DemoError(f"WebHDFS answers {error.code} to {operation} of {path}") from error
        except OSError as error:
            raise DemoError(f"WebHDFS does not answer at {self._url}: {error}") from error


def lake_files(workspace: Workspace) -> DemoLakeFiles:
    """Returns the files of the run's lake, on either file system."""
    return WebHdfsDemoFiles(workspace.hdfs.web_url) if workspace.hdfs else LocalDemoFiles(Path(workspace.lake))
