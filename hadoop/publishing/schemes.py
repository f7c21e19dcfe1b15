"""Which publisher serves a lake's path, by the scheme of its URI."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from klamm.core.errors import ConfigError
from klamm.hadoop.publishing.hdfs import HadoopJvm, HdfsPublisher
from klamm.hadoop.publishing.local import LocalPublisher
from klamm.hadoop.publishing.seam import Publisher


def publisher_for(path: str, hadoop: Callable[[], HadoopJvm]) -> Publisher:
    """`ConfigError` in one line for a scheme that has not passed the contract. `hadoop` is called when a lake on
    `hdfs:` is first looked at."""
    scheme = urlsplit(path).scheme
    if scheme in ("", "file"):
        return LocalPublisher()
    if scheme == "hdfs":
        return HdfsPublisher(hadoop)
    raise ConfigError(
        f"a lake on {scheme}: ({path}) is refused until {scheme}: passes the publishing contract; use hdfs://… or "
        "file:///…"
    )
