"""Chooses the publisher of a lake's path by the scheme of its URI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.core.errors import ConfigError
from klamm.core.extras import importing

from ..lake.config import HDFS_SCHEME, lake_scheme
from .interface import Publisher
from .local import LocalPublisher

if TYPE_CHECKING:
    from .hdfs import HadoopJvm


def publisher_for(path: str, hadoop: Callable[[], HadoopJvm]) -> Publisher:
    """Returns the publisher of a lake. Raises `ConfigError` in one line for a scheme that has not passed the contract.
    `hadoop` is called at the first use of a lake on `hdfs:`.
    """
    try:
        scheme = lake_scheme(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if scheme != HDFS_SCHEME:
        return LocalPublisher()
    with importing("a lake on hdfs:", "klamm[spark]"):
        from .hdfs import HdfsPublisher
    return HdfsPublisher(hadoop)
