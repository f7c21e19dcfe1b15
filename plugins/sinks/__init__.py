"""Built-in sinks: `files`. The lake of `klamm load` registers with the loads."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.sink import Sink

from .files import FilesConfig, FilesSink


@hookimpl
def klamm_sinks() -> Iterable[Provider[Sink]]:
    return [Provider("files", FilesSink, FilesConfig, "JSON lines, a folder per partition, a file per flush")]
