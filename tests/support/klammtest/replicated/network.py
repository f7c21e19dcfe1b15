"""A network of hosts on this machine, in which packets between two of them can be dropped, one way or both.

Each host is a network namespace, joined to a bridge in the namespace of this process. A cut gives one host a wrong
hardware address of another, so that its packets are sent and vanish, as behind a broken switch: no refusal, no reset.
Needs root (or a kernel that gives users namespaces) and `ip`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TOOLS: Final = ("ip=iproute2", "nsenter=util-linux")
CLIENTS: Final = "10.77.0.1"
"""The address of this process's clients."""
COORDINATION: Final = "10.77.0.2"
"""A second address of this process's namespace, for the coordination alone."""
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_NOWHERE = "02:00:00:00:00:fe"
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Hosts 0 to `size` - 1. The process of a host's namespace ends with `close`."""

    def __init__(self, size: int) -> None:
        """Call `enter_namespace` first, once in a process."""
        self.hosts = [f"10.77.0.{11 + i}" for i in range(size)]
        self._macs = {host: f"02:00:00:00:01:{i:02x}" for i, host in enumerate(self.hosts)}
        self._macs |= dict.fromkeys((CLIENTS, COORDINATION), "02:00:00:00:02:01")
        self._holders: list[subprocess.Popen[bytes]] = []
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "br0", "address", self._macs[CLIENTS], "type", "bridge")
        for address in (CLIENTS, COORDINATION):
            _run("ip", "addr", "add", f"{address}/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")
        try:
            for i, host in enumerate(self.hosts):
                self._add(i, host)
        except BaseException:
            self.close()
            raise

    def _add(self, i: int, host: str) -> None:
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError("unshare --net made no namespace")
        _run("ip", "link", "add", f"host{i}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", f"host{i}", "master", "br0", "up")
        _run(*self.inside(i), "ip", "link", "set", "lo", "up")
        _run(*self.inside(i), "ip", "link", "set", "eth0", "address", self._macs[host], "up")
        _run(*self.inside(i), "ip", "addr", "add", f"{host}/24", "dev", "eth0")

    def inside(self, i: int) -> tuple[str, ...]:
        """Returns the command that runs another command on host i."""
        return ("nsenter", "--net", "-t", str(self._holders[i].pid))

    @contextmanager
    def on_host(self, i: int) -> Iterator[None]:
        """Makes this thread's new sockets sockets of host i."""
        own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/proc/{self._holders[i].pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(there, _CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                _check(_libc.setns(own, _CLONE_NEWNET), "setns")
        finally:
            os.close(own)
            os.close(there)

    # -- cuts --------------------------------------------------------------------------------------------------------

    def cut(self, sender: int, receiver: int | str) -> None:
        """Drops packets from host `sender` to another host, or to an address of this process; the other way stays."""
        self._neighbour(sender, receiver, _NOWHERE)

    def heal(self, sender: int, receiver: int | str) -> None:
        self._neighbour(sender, receiver, self._macs[self._address(receiver)])

    def isolate(self, host: int) -> None:
        """Drops all packets from and to a host."""
        for other in self._others(host):
            self.cut(host, other)
            if isinstance(other, int):
                self.cut(other, host)

    def heal_all(self) -> None:
        for host in range(len(self.hosts)):
            for other in self._others(host):
                self.heal(host, other)

    def _others(self, host: int) -> list[int | str]:
        return [*(i for i in range(len(self.hosts)) if i != host), CLIENTS, COORDINATION]

    def _address(self, host: int | str) -> str:
        return self.hosts[host] if isinstance(host, int) else host

    def _neighbour(self, sender: int, receiver: int | str, mac: str) -> None:
        address = self._address(receiver)
        _run(*self.inside(sender), "ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
        self._holders.clear()
        subprocess.run(["ip", "link", "delete", "br0"], check=False, capture_output=True)


def enter_namespace() -> None:
    """Moves this process, and all that it starts, into a network of its own, for good. Raises `OSError` where the
    kernel does not permit it.
    """
    flags = _CLONE_NEWNET | (_CLONE_NEWUSER if os.getuid() else 0)
    _check(_libc.unshare(flags), "unshare of the network")


@contextmanager
def network_of(size: int) -> Iterator[Network]:
    enter_namespace()
    network = Network(size)
    try:
        yield network
    finally:
        network.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
