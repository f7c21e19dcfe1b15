"""Built-in sinks: `files`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Sink

__all__ = ["klamm_sinks"]


@hookimpl
def klamm_sinks() -> Iterable[Provider[[], Sink]]:
    """Registers the sink `files`."""
    from .files import FilesConfig, FilesSink  # here, so that `klamm --help` does not load them

    return [Provider("files", FilesSink, FilesConfig, "JSON lines, a folder per partition, a file per flush")]
