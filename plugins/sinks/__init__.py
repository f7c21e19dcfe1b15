"""Built-in sinks: `files`. The lake of `klamm load` registers with the loads."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.seams.provider import Provider
from klamm.core.seams.sink import Sink
from klamm.plugins.sinks.files import FilesConfig, FilesSink


@hookimpl
def klamm_sinks() -> Iterable[Provider[Sink]]:
    return [Provider("files", FilesSink, FilesConfig, "JSON lines, a folder per partition, a file per flush")]
