"""Built-in sinks: `files`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Sink

    from .files import FilesConfig


def _files(config: FilesConfig) -> Sink:
    from .files import FilesSink

    return FilesSink(config)


@hookimpl
def klamm_sinks() -> Iterable[Provider[[], Sink]]:
    """Registers the sink `files`."""
    config = "klamm.plugins.sinks.files:FilesConfig"
    return [Provider("files", _files, config, "JSON lines, a folder per partition, a file per flush")]
