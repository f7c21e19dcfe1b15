"""Lakes for tests: files written to a lake of any scheme, `klamm lake` in process, and a publisher whose answers are
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import requests
from hdfs import InsecureClient
from typer.testing import CliRunner, Result

from klamm.hadoop.lake.cli import app
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.publishing.local import LocalPublisher, local_path

SCHEMES: Final = ("file", "hdfs")
"""The schemes that lakes are read on in tests."""
_WRITERS: Final = 4
Put = Callable[[str, Mapping[str, bytes]], None]
"""Writes files, by their paths below a root."""


def put_local(root: str, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = local_path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def put_on_hdfs(web_url: str) -> Put:
    return lambda root, files: change_on_hdfs(web_url, root, files, ())


def change_on_hdfs(web_url: str, root: str, files: Mapping[str, bytes], gone: Iterable[str]) -> None:
    """Writes files and removes others, with the directories that become empty."""
    with requests.Session() as session, ThreadPoolExecutor(_WRITERS) as pool:
        client = InsecureClient(web_url, session=session)
        base = "/" + root.removeprefix("hdfs://").partition("/")[2]
        for _ in pool.map(lambda name: client.write(f"{base}/{name}", files[name], overwrite=True), files):
            pass
        for name in gone:
            client.delete(path := f"{base}/{name}")
            while not client.list(path := path.rpartition("/")[0]):
                client.delete(path)


def files_below(folder: Path) -> dict[str, bytes]:
    """Returns all files of a local lake, to be written elsewhere, without the checksums that Hadoop keeps on
    `file:`.
    """
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def klamm_lake(*arguments: str) -> Result:
    """Runs `klamm lake …` in this process."""
    return CliRunner().invoke(app, list(arguments))


class Unsure(LocalPublisher):
    """The rename happens, and its answer is lost."""

    def publish(self, staging: str, target: str) -> None:
        super().publish(staging, target)
        raise LakeError("no answer in time")
