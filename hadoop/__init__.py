"""Loads: the `klamm` Spark data source, the load job, the lake's layout and its publishing.

Importing this imports no Spark: brokers and clients have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm._lazy import lazy_attributes
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.provider import Provider

if TYPE_CHECKING:
    from klamm.plugin import Load

    from .lake.config import LakeConfig
    from .lake.frame import read_lake

__all__ = ["klamm_commands", "klamm_loads", "read_lake"]


if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, {"klamm.hadoop.lake.frame": ("read_lake",)})


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm load`, `klamm hdfs` and `klamm lake`."""
    return [
        Command(
            "load",
            "klamm.hadoop.load.cli:load",
            "Load topics into a lake with Spark, data and offsets together.",
            "klamm[spark]",
        ),
        Command(
            "hdfs",
            "klamm.hadoop.hdfs.command:hdfs",
            "Run a real HDFS for development: a NameNode and a DataNode.",
        ),
        Command(
            "lake",
            "klamm.hadoop.lake.cli:app",
            "List a lake's loads, prove that it is whole, merge its files.",
            "klamm[lake]",
        ),
    ]


def _lake(config: LakeConfig) -> Load:
    from .lake.config import LakeLoad

    return LakeLoad(config)


@hookimpl
def klamm_loads() -> Iterable[Provider[[], Load]]:
    """Registers the lake `hadoop`."""
    config = "klamm.hadoop.lake.config:LakeConfig"
    return [Provider("hadoop", _lake, config, "a lake that `klamm load` fills, in one rename per load")]
