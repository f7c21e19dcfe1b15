"""A real single-member etcd server: for `klamm etcd` and the tests."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

from klamm.core.child_process import HOST
from klamm.plugin import ConfigError

from ..local_server import LocalServer

_FLAGS = (
    "--max-txn-ops=8192",  # a change of 500 partitions is about 1,010 operations; the default is 128
    "--max-request-bytes=4194304",
    "--auto-compaction-mode=revision", "--auto-compaction-retention=1000",  # Klamm reads no history
    # A lease lives for at least one and a half election time-outs.
    "--heartbeat-interval=50", "--election-timeout=500",
    "--logger=zap", "--log-level=warn",
)  # fmt: skip


def find_etcd() -> str:
    """Returns the `etcd` of `PATH`; raises `ConfigError`, which says what to install."""
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError(
            "no etcd found: install etcd 3.4 or newer (for example `apt-get install etcd-server`), or name the members "
            "of a running cluster in `etcd.endpoints`"
        )
    return found


class EtcdServer(LocalServer):
    """One member, at `url`."""

    product = "etcd"

    def __init__(
        self, data_dir: Path, port: int = 2379, *, flags: tuple[str, ...] = (), ends_with_parent: bool = False
    ) -> None:
        """`flags`: further flags of etcd, which override the server's own."""
        super().__init__(data_dir, port, ends_with_parent=ends_with_parent)
        self._flags = flags

    @property
    def url(self) -> str:
        """The value for `etcd.endpoints`."""
        return f"http://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.url

    def answers(self) -> bool:
        return is_healthy(self.url)

    def _find(self) -> str:
        return find_etcd()

    def _command(self, found: str) -> list[str]:
        peer = f"http://{HOST}:0"  # no other member ever connects
        return [
            found, "--name=klamm", f"--data-dir={self.data_dir.resolve() / 'etcd'}",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=klamm={peer}",
            *_FLAGS, *self._flags,
        ]  # fmt: skip


def is_healthy(url: str) -> bool:
    """Returns whether an etcd there has a leader and serves requests."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as response:
            return bool(json.load(response).get("health") == "true")
    except (OSError, ValueError):
        return False
