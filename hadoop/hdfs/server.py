"""A real HDFS on this machine: a NameNode and a DataNode, each a process of its own, on 127.0.0.1 only.

States: stopped → `start` → running → `stop` or `kill` → stopped; its data stays. Each of the two can be killed, paused
and started by itself, for tests.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, Self
from xml.sax.saxutils import escape

from klamm.core.errors import ConfigError, KlammError
from klamm.core.java import HOST, JavaProcess, check_port

from .jars import find_class_path

NAME_NODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
FORMAT_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_PORT_OPTIONS: Final = ("--port", "--http-port", "--data-port", "--data-http-port", "--data-ipc-port")
_JVM: Final = (
    "-Xmx256m", "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xss512k",
    "-Djava.net.preferIPv4Stack=true", "--add-opens=java.base/java.lang=ALL-UNNAMED",
)  # fmt: skip
SMALL: Final = {
    "dfs.replication": "1",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.handler.count": "4",
    "dfs.datanode.handler.count": "2",
    "dfs.datanode.du.reserved": "0",
    "dfs.blockreport.initialDelay": "0s",
    "dfs.heartbeat.interval": "1s",
}
"""Settings for servers on one machine that start quickly."""
_LOG4J: Final = """log4j.rootLogger=WARN, console
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""
_WEB_XML: Final = '<web-app xmlns="http://java.sun.com/xml/ns/javaee" version="2.5"/>\n'


class HdfsError(KlammError):
    """The HDFS server cannot be started, or does not respond; the message names its log."""


@dataclass(frozen=True, slots=True)
class HdfsPorts:
    """The ports of the servers; the defaults are Hadoop's. Raises `ConfigError` if two are equal."""

    name_node: int = 8020
    name_node_http: int = 9870
    data_node: int = 9866
    data_node_http: int = 9864
    data_node_ipc: int = 9867

    def __post_init__(self) -> None:
        option_of: dict[int, str] = {}
        for option, port in self.by_option().items():
            other = option_of.setdefault(port, option)
            if other != option:
                raise ConfigError(f"{option}: {port} is the port of {other} too; each server needs a port of its own")

    def by_option(self) -> dict[str, int]:
        """Returns each port by its option of `klamm hdfs`."""
        return dict(zip(_PORT_OPTIONS, astuple(self), strict=True))


class HdfsServer:
    """`data_dir` is created when it is missing. A context manager: started on entry, stopped on exit.

    `options` are keys of Hadoop's own configuration, for both servers and for the clients that read `conf_dir`.
    """

    def __init__(
        self,
        data_dir: Path,
        ports: HdfsPorts | None = None,
        *,
        options: Mapping[str, str] | None = None,
        ends_with_parent: bool = False,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self.ports = ports or HdfsPorts()
        self._options = dict(options or {})
        self._ends_with_parent = ends_with_parent
        self.name_node: JavaProcess | None = None
        self.data_node: JavaProcess | None = None

    @property
    def uri(self) -> str:
        """The file system's URI, the beginning of every path in it."""
        return f"hdfs://{HOST}:{self.ports.name_node}"

    @property
    def web_url(self) -> str:
        """The address of the NameNode's WebHDFS."""
        return f"http://{HOST}:{self.ports.name_node_http}"

    @property
    def conf_dir(self) -> Path:
        """Hadoop's configuration of this file system."""
        return self._data_dir / "conf"

    def start(self, timeout_s: float = 120.0) -> None:
        """Starts both servers and returns once a file can be written. Raises `ConfigError` without Java or the jars;
        `HdfsError` in one line when a port is taken or a server does not start.
        """
        deadline = time.monotonic() + timeout_s
        self._prepare()
        try:
            self.start_name_node()
            self.start_data_node()
            self.await_ready(deadline - time.monotonic())
        except BaseException:
            self.kill()
            raise

    def start_name_node(self) -> None:
        self.name_node = self._run("NameNode", NAME_NODE, "namenode.log")

    def start_data_node(self) -> None:
        self.data_node = self._run("DataNode", DATA_NODE, "datanode.log")

    def await_ready(self, timeout_s: float) -> None:
        """Returns once the NameNode has left safe mode and a DataNode is alive."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for process in (self.name_node, self.data_node):
                if process is None or process.status is not None:
                    name = "a server" if process is None else f"the {process.name}"
                    raise HdfsError(f"{name} of HDFS ended while it started; see {self._data_dir}/*.log")
            if self._ready():
                return
            time.sleep(_POLL_S)
        raise HdfsError(f"HDFS at {self.uri} was not ready within {timeout_s:g} s; see {self._data_dir}/*.log")

    def wait(self) -> str:
        """Waits until one of the two servers ends by itself; returns a line with its name and log."""
        while True:
            for process in (self.name_node, self.data_node):
                if process is None:
                    raise HdfsError(f"HDFS at {self.uri} has not been started")
                if process.status is not None:
                    return f"the {process.name} ended by itself with status {process.status}; see {process.log}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Stops both servers; does nothing if they are stopped."""
        for process in self._taken():
            process.stop()

    def kill(self) -> None:
        """Kills both with SIGKILL, like a crash: acknowledged data is on disk."""
        for process in self._taken():
            process.kill()

    def _taken(self) -> list[JavaProcess]:
        processes, self.name_node, self.data_node = (self.data_node, self.name_node), None, None
        return [process for process in processes if process is not None]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- files

    def _prepare(self) -> None:
        try:
            self._write_configuration()
        except OSError as error:
            raise HdfsError(
                f"cannot write below {self._data_dir}: {error.strerror}; give another --data-dir"
            ) from error
        for option, port in self.ports.by_option().items():
            check_port(port, f"stop the process that uses it (an HDFS?) or give another {option}")
        if not (self._data_dir / "name" / "current" / "VERSION").exists():
            self._format()

    def _write_configuration(self) -> None:
        for folder in ("name", "data"):
            (self._data_dir / folder).mkdir(parents=True, exist_ok=True)
        (self._data_dir / "data").chmod(0o700)
        write_configuration(self.conf_dir, self.uri, {**SMALL, **self._settings(), **self._options})

    def _settings(self) -> dict[str, str]:
        p = self.ports
        return {
            "dfs.namenode.name.dir": f"file://{self._data_dir}/name",
            "dfs.datanode.data.dir": f"file://{self._data_dir}/data",
            "dfs.namenode.rpc-address": f"{HOST}:{p.name_node}",
            "dfs.namenode.http-address": f"{HOST}:{p.name_node_http}",
            "dfs.datanode.address": f"{HOST}:{p.data_node}",
            "dfs.datanode.http.address": f"{HOST}:{p.data_node_http}",
            "dfs.datanode.ipc.address": f"{HOST}:{p.data_node_ipc}",
            "dfs.datanode.hostname": HOST,  # what clients of WebHDFS are redirected to
        }

    def _format(self) -> None:
        process = self._run("NameNode's format", NAME_NODE, "format.log", "-format", "-nonInteractive", "-force")
        try:
            status = process.wait(FORMAT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = -1
        if status != 0:
            raise HdfsError(f"HDFS's name directory could not be formatted (status {status}); see {process.log}")

    def _run(self, name: str, main: str, log: str, *arguments: str) -> JavaProcess:
        command = server_command(self.conf_dir, self._data_dir, main, *arguments)
        return JavaProcess(name, command, self._data_dir / log, ends_with_parent=self._ends_with_parent)

    def _ready(self) -> bool:
        state = self._bean("Hadoop:service=NameNode,name=FSNamesystemState")
        return state is not None and state.get("FSState") == "Operational" and state.get("NumLiveDataNodes", 0) > 0

    def _bean(self, name: str) -> dict[str, Any] | None:
        """Returns a metric bean of the NameNode; None while it does not respond."""
        try:
            with urllib.request.urlopen(f"{self.web_url}/jmx?qry={name}", timeout=5) as answer:
                beans = json.load(answer)["beans"]
        except (OSError, ValueError, KeyError, urllib.error.URLError):
            return None
        return beans[0] if beans else None


def server_command(conf_dir: Path, log_dir: Path, main: str, *arguments: str) -> list[str]:
    """Returns the arguments of `java` for one of Hadoop's servers. Raises `ConfigError` without the jars."""
    return [*_JVM, f"-Dhadoop.log.dir={log_dir}", "-cp", f"{conf_dir}:{find_class_path()}", main, *arguments]


def write_configuration(conf_dir: Path, uri: str, hdfs: Mapping[str, str]) -> None:
    """Writes the configuration of the servers and their clients: `uri` is the file system, `hdfs` its hdfs-site.xml."""
    for server in ("hdfs", "datanode"):
        web = conf_dir / "webapps" / server / "WEB-INF"
        web.mkdir(parents=True, exist_ok=True)
        (web / "web.xml").write_text(_WEB_XML)
    (conf_dir / "log4j.properties").write_text(_LOG4J)
    (conf_dir / "core-site.xml").write_text(hadoop_xml({"fs.defaultFS": uri}))
    (conf_dir / "hdfs-site.xml").write_text(hadoop_xml(hdfs))


def hadoop_xml(values: Mapping[str, str]) -> str:
    """Returns the text of a file of Hadoop's configuration."""
    rows = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in values.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'
