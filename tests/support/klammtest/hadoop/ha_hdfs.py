"""A real HDFS of two NameNodes, of which one is active, and one DataNode: a name service, `hdfs://pair`.

The NameNodes share their edit log in a local directory. When the active one dies, the other does not become active by
itself: the test makes it active, as an administrator would with `hdfs haadmin -transitionToActive`.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from pathlib import Path
from typing import Final, Self

from klamm.core.java import HOST, JavaProcess
from klamm.hadoop.hdfs.server import DATA_NODE, NAME_NODE, SMALL, server_command, write_configuration
from klamm.hadoop.publishing.hdfs import HadoopJvm
from klammtest.ports import free_port

NAME: Final = "pair"
_PROVIDER: Final = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_FORMAT_S: Final = 120.0
_POLL_S: Final = 0.1


class HdfsPair:
    """A context manager: both NameNodes run on entry, as standbys."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.conf_dir = folder / "conf"
        self._rpc = {node: free_port() for node in ("a", "b")}
        self._http = {node: free_port() for node in ("a", "b")}
        self.name_nodes: dict[str, JavaProcess] = {}
        self._data_node: JavaProcess | None = None

    @property
    def web_urls(self) -> str:
        return ";".join(f"http://{HOST}:{port}" for port in self._http.values())

    def client_settings(self) -> dict[str, str]:
        """Hadoop's properties that a client of the pair needs."""
        return {
            "dfs.nameservices": NAME,
            f"dfs.ha.namenodes.{NAME}": ",".join(self._rpc),
            f"dfs.client.failover.proxy.provider.{NAME}": _PROVIDER,
            **{f"dfs.namenode.rpc-address.{NAME}.{node}": f"{HOST}:{port}" for node, port in self._rpc.items()},
            **{f"dfs.namenode.http-address.{NAME}.{node}": f"{HOST}:{port}" for node, port in self._http.items()},
        }

    def __enter__(self) -> Self:
        self._configure()
        format_ = self._start("format", NAME_NODE, "-D", "dfs.ha.namenode.id=a", "-format", "-nonInteractive")
        try:
            assert format_.wait(_FORMAT_S) == 0, (self._folder / "format.log").read_text()[-2000:]
        finally:
            format_.kill()
        shutil.copytree(self._folder / "name-a", self._folder / "name-b")  # as `-bootstrapStandby` does
        try:
            for node in self._rpc:
                self.name_nodes[node] = self._start(node, NAME_NODE, "-D", f"dfs.ha.namenode.id={node}")
            self._data_node = self._start("data", DATA_NODE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in (*self.name_nodes.values(), self._data_node):
            if process is not None:
                process.kill()

    def activate(self, node: str, hadoop: HadoopJvm, timeout_s: float = 240.0) -> None:
        """Makes a NameNode the active one and waits until it serves and knows its DataNode."""
        jvm, deadline = hadoop.gateway.jvm, time.monotonic() + timeout_s
        address = jvm.java.net.InetSocketAddress(HOST, self._rpc[node])
        ha, net = jvm.org.apache.hadoop.ha, jvm.org.apache.hadoop.net.NetUtils
        by_user = getattr(ha, "HAServiceProtocol$RequestSource").REQUEST_BY_USER
        request = getattr(ha, "HAServiceProtocol$StateChangeRequestInfo")(by_user)
        while True:
            try:
                protocol = ha.protocolPB.HAServiceProtocolClientSideTranslatorPB(
                    address, hadoop.configuration, net.getDefaultSocketFactory(hadoop.configuration), 10_000
                )
                protocol.transitionToActive(request)
                break
            except Exception:
                if time.monotonic() > deadline or self.name_nodes[node].status is not None:
                    raise
                time.sleep(_POLL_S)
        while not self._serves(node):
            assert time.monotonic() < deadline, (self._folder / f"{node}.log").read_text()[-2000:]
            time.sleep(_POLL_S)

    def _serves(self, node: str) -> bool:
        url = f"http://{HOST}:{self._http[node]}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                said = answer.read().decode()
        except OSError:
            return False
        return '"FSState" : "Operational"' in said and '"NumLiveDataNodes" : 1' in said

    def _configure(self) -> None:
        for folder in ("edits", "data"):
            (self._folder / folder).mkdir(parents=True)
        (self._folder / "data").chmod(0o700)
        settings = {
            **SMALL,
            **self.client_settings(),
            "dfs.namenode.shared.edits.dir": f"file://{self._folder}/edits",
            **{f"dfs.namenode.name.dir.{NAME}.{node}": f"file://{self._folder}/name-{node}" for node in self._rpc},
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.datanode.data.dir": f"file://{self._folder}/data",
            "dfs.datanode.address": f"{HOST}:{free_port()}",
            "dfs.datanode.http.address": f"{HOST}:{free_port()}",
            "dfs.datanode.ipc.address": f"{HOST}:{free_port()}",
            "dfs.datanode.hostname": HOST,
            "dfs.namenode.edits.noeditlogchannelflush": "true",
        }
        write_configuration(self.conf_dir, f"hdfs://{NAME}", settings)

    def _start(self, name: str, main: str, *arguments: str) -> JavaProcess:
        command = server_command(self.conf_dir, self._folder, main, *arguments)
        return JavaProcess(f"HDFS {name}", command, self._folder / f"{name}.log", ends_with_parent=True)
