"""Reads the address of a file system's WebHDFS from Hadoop's configuration on this machine, without a JVM.

`HADOOP_CONF_DIR` names the folder, as for Hadoop's own clients; its `core-site.xml` and `hdfs-site.xml` are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from klamm.core.errors import ConfigError

from .layout import HDFS, hdfs_authority

VARIABLE: Final = "HADOOP_CONF_DIR"
_FILES: Final = ("core-site.xml", "hdfs-site.xml")
_ANY_HOST: Final = "0.0.0.0"


def web_addresses(root: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the WebHDFS addresses of the NameNodes of the file system in `root`, or of the default one if `root`
    names none, as `http://a:9870;http://b:9870`. None if the configuration does not have them. Raises `ConfigError`
    when it cannot be read.
    """
    folder = environment.get(VARIABLE)
    if not folder:
        return None
    said = _read(Path(folder))
    default = said.get("fs.defaultFS", "")
    default_name = hdfs_authority(default) if default.startswith(HDFS) else ""
    name = hdfs_authority(root) or default_name
    scheme, key = "http", "dfs.namenode.http-address"
    if said.get("dfs.http.policy") == "HTTPS_ONLY":
        scheme, key = "https", "dfs.namenode.https-address"
    if name in _names(said, "dfs.nameservices"):
        nodes = _names(said, f"dfs.ha.namenodes.{name}")
        keys = [f"{key}.{name}.{node}" for node in nodes] or [f"{key}.{name}"]
    else:
        keys = [key] if name and name == default_name else []
    found = [address for one in keys if (address := said.get(one)) is not None and not address.startswith(_ANY_HOST)]
    return ";".join(f"{scheme}://{address}" for address in found) or None


def _names(said: Mapping[str, str], key: str) -> list[str]:
    return [name for part in said.get(key, "").split(",") if (name := part.strip())]


def _read(folder: Path) -> dict[str, str]:
    """Returns the keys and values; later files win. Values that refer to other keys (`${…}`) are left out."""
    said: dict[str, str] = {}
    for name in _FILES:
        try:
            root = ElementTree.parse(folder / name).getroot()
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigError(f"{VARIABLE}: {folder / name} cannot be read: {error}") from error
        for each in root.iter("property"):
            key, value = each.findtext("name", "").strip(), each.findtext("value", "").strip()
            if key and "${" not in value:
                said[key] = value
    return said
