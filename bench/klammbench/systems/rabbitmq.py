"""RabbitMQ from Debian's package, an instance of its own: classic queues over AMQP, streams over their own protocol.

The packaged service is neither needed nor touched: epmd, the node name, the data and the ports are this instance's.
"""

from __future__ import annotations

import re
from pathlib import Path

from klammbench.process import tree
from klammbench.systems.base import WARM_S, Child, answers, free_ports, remove

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONFIG = """listeners.tcp.1 = 127.0.0.1:{amqp}
log.console = true
log.file = false
log.console.level = warning
"""
_STREAM_CONFIG = "stream.listeners.tcp.1 = 127.0.0.1:{stream}\n"


class RabbitMQ:
    def __init__(self, name: str, folder: Path, *, streams: bool) -> None:
        self.name = name
        self._folder = folder
        self._streams = streams
        self.data_dir = folder / "mnesia"
        self.warm_s = WARM_S
        self._ports = free_ports(4)
        self._epmd: Child | None = None
        self._node: Child | None = None

    def version(self) -> str:
        found = re.search(r"rabbitmq_server-([\d.]+)", " ".join(map(str, Path("/usr/lib/rabbitmq/lib").glob("*"))))
        return found[1] if found else "not installed"

    def settings(self) -> str:
        return "defaults; plugin rabbitmq_stream" if self._streams else "defaults, no plugins"

    @property
    def port(self) -> int:
        """AMQP 0-9-1, or the stream protocol of the instance that has it."""
        return self._ports[1 if self._streams else 0]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if not _SERVER.exists():
            raise RuntimeError(f"{_SERVER} is not there: run bench/install.sh")
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = self._write_files()
        epmd = ["epmd", "-port", environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
        self._epmd = Child(epmd, self._folder / "epmd.out", self._folder)
        self._epmd.wait_until(lambda: answers(int(environment["ERL_EPMD_PORT"])), "epmd")
        self._node = Child([str(_SERVER), "-noinput"], self._folder / "node.out", self._folder, environment)
        self._node.wait_until(lambda: answers(self._ports[0]) and answers(self.port), self.name)

    def stop(self) -> None:
        for process in (self._node, self._epmd):
            if process is not None:
                process.stop()
        self._node = self._epmd = None

    def pids(self) -> list[int]:
        roots = [process.pid for process in (self._node, self._epmd) if process is not None]
        return [pid for root in roots for pid in tree(root)]

    def wipe(self) -> None:
        remove(self._folder)

    def _write_files(self) -> dict[str, str]:
        amqp, stream, epmd, distribution = self._ports
        config = _CONFIG + (_STREAM_CONFIG if self._streams else "")
        (self._folder / "rabbitmq.conf").write_text(config.format(amqp=amqp, stream=stream))
        (self._folder / "enabled_plugins").write_text("[rabbitmq_stream].\n" if self._streams else "[].\n")
        (self._folder / "env.conf").write_text("")  # else Debian's /etc/rabbitmq/rabbitmq-env.conf is read
        return {
            "HOME": str(self._folder),  # the Erlang cookie
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(self.data_dir),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self._folder / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self._folder / "feature_flags"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the Erlang machine replaces the shell: one process to end
        }


def rabbitmq_classic(folder: Path) -> RabbitMQ:
    return RabbitMQ("rabbitmq", folder, streams=False)


def rabbitmq_streams(folder: Path) -> RabbitMQ:
    return RabbitMQ("rabbitmq-streams", folder, streams=True)
