"""Members of registry groups under test, in this process or in processes that can be killed, and a record of which
member owned which partition when.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import TopicNode
from klamm.core.errors import KlammError
from klamm.core.groups.membership.member import Owned
from klamm.core.groups.membership.registry import RegistryMember, RegistrySettings
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import OffsetStore
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klammtest.waiting import eventually

CoordinationSpec = Mapping[str, Any]
"""`plugin` and `config`, as in YAML: enough to open the same coordination in another process."""


def open_coordination(spec: CoordinationSpec) -> Coordination:
    coordination = plugin_host().coordinations.create(spec["plugin"], spec["config"])
    coordination.start()
    return coordination


def offset_store(coordination: Coordination) -> OffsetStore:
    return plugin_host().offset_stores.create("coordination", None, coordination)


def write_topic(coordination: Coordination, name: str, partitions: int) -> None:
    """Writes a topic as the controller would, as far as members see it."""
    data = TopicNode(topic_id=uuid4(), partitions=dict.fromkeys(range(partitions), (0,))).encode()
    if coordination.exists(paths.topic(name)):
        before = TopicNode.decode(paths.topic(name), coordination.get(paths.topic(name))[0])
        data = before.model_copy(update={"partitions": dict.fromkeys(range(partitions), (0,))}).encode()
        coordination.set(paths.topic(name), data)
    else:
        coordination.create(paths.topic(name), data, make_parents=True)
    if coordination.exists(paths.BROKER_IDS) is None:
        coordination.create(paths.BROKER_IDS, make_parents=True)
    _topics_changed(coordination)


def delete_topic(coordination: Coordination, name: str) -> None:
    """Deletes a topic as the controller would, as far as members see it."""
    coordination.delete(paths.topic(name))
    _topics_changed(coordination)


def _topics_changed(coordination: Coordination) -> None:
    if coordination.exists(paths.METADATA_VERSION) is None:
        coordination.create(paths.METADATA_VERSION, make_parents=True)
    coordination.set(paths.METADATA_VERSION, b"{}")


@dataclass(frozen=True)
class Event:
    """`kind`: assigned, revoked (still owned when the event begins), lost, killed. `at` on the machine's monotonic
    clock.
    """

    at: float
    member: str
    kind: str
    partitions: tuple[TopicPartition, ...] = ()


class Ledger:
    """Records which member owned which partition when. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Event] = []

    def add(self, member: str, kind: str, partitions: Iterable[TopicPartition] = ()) -> None:
        with self._lock:
            self.events.append(Event(time.monotonic(), member, kind, tuple(partitions)))

    def read(self, path: Path, member: str) -> None:
        """Reads the events that a member process wrote."""
        with self._lock:
            for line in path.read_text().splitlines():
                at, kind, partitions = json.loads(line)
                self.events.append(Event(at, member, kind, tuple(TopicPartition(*p) for p in partitions)))

    def owners(self) -> dict[TopicPartition, str]:
        """Returns the current owner of each partition; fails if one has two."""
        owners: dict[TopicPartition, str] = {}
        for event in sorted(self.events, key=lambda e: e.at):
            if event.kind == "killed":
                owners = {p: m for p, m in owners.items() if m != event.member}
            for partition in event.partitions:
                if event.kind == "assigned":
                    other = owners.get(partition)
                    assert other is None, f"{partition}: {event.member} was assigned it while {other} owned it"
                    owners[partition] = event.member
                elif owners.get(partition) == event.member:
                    del owners[partition]
        return owners


class Recorder:
    """A listener that writes into the ledger and can delay a revocation, as a busy application does."""

    def __init__(self, ledger: Ledger, name: str, dwell_s: float = 0.0) -> None:
        self.ledger = ledger
        self.name = name
        self.errors: list[KlammError] = []
        self._dwell_s = dwell_s

    def on_assigned(self, owned: Collection[Owned]) -> None:
        self.ledger.add(self.name, "assigned", [o.partition for o in owned])

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        time.sleep(self._dwell_s)
        self.ledger.add(self.name, "revoked", partitions)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.ledger.add(self.name, "lost", partitions)

    def on_error(self, error: KlammError) -> None:
        self.errors.append(error)


class Group:
    """Members of one registry group in this process, each with its own session."""

    def __init__(self, spec: CoordinationSpec, name: str, topics: Mapping[str, int], backoff_s: float = 0.5) -> None:
        self._spec = spec
        self.name = name
        self.settings = RegistrySettings(name, topics, backoff_s=backoff_s)
        self.ledger = Ledger()
        self.members: dict[str, tuple[RegistryMember, Coordination, Recorder]] = {}

    def join(self, name: str, *, dwell_s: float = 0.0, subscription: Mapping[str, int] | None = None) -> RegistryMember:
        coordination = open_coordination(self._spec)
        recorder = Recorder(self.ledger, name, dwell_s)
        settings = self.settings
        if subscription is not None:
            settings = RegistrySettings(self.name, subscription, backoff_s=settings.backoff_s)
        member = RegistryMember(coordination, offset_store(coordination), settings, recorder)
        self.members[name] = (member, coordination, recorder)
        member.start()
        return member

    def leave(self, name: str) -> None:
        member, coordination, _ = self.members.pop(name)
        member.close()
        coordination.close()

    def close(self) -> None:
        for name in list(self.members):
            self.leave(name)

    def settled(self, partitions: Sequence[TopicPartition]) -> bool:
        """Returns True if the current members own all partitions, in equal shares."""
        owners = self.ledger.owners()
        loads = [list(owners.values()).count(name) for name in self.members]
        return owners.keys() == set(partitions) and sum(loads) == len(owners) and max(loads) - min(loads) <= 1

    def await_settled(self, partitions: Sequence[TopicPartition]) -> None:
        eventually(lambda: self.settled(partitions), f"{self.name} settled: {self.ledger.owners()}")


class MemberProcess:
    """A member in its own process, which can be killed."""

    def __init__(self, spec: CoordinationSpec, group: str, topic: str, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.jsonl"
        self.log.touch()
        arguments = json.dumps({"spec": dict(spec), "group": group, "topic": topic, "log": str(self.log)})
        path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-m", "klammtest.clients.members", arguments]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})

    def owned(self) -> set[TopicPartition]:
        owned: set[TopicPartition] = set()
        for line in self.log.read_text().splitlines():
            _, kind, partitions = json.loads(line)
            changed = {TopicPartition(*p) for p in partitions}
            owned = owned | changed if kind == "assigned" else owned - changed
        return owned

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


class _FileListener:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def _write(self, kind: str, partitions: Iterable[TopicPartition]) -> None:
        with self._path.open("a") as out:
            out.write(json.dumps([time.monotonic(), kind, [list(p) for p in partitions]]) + "\n")

    def on_assigned(self, owned: Collection[Owned]) -> None:
        self._write("assigned", [o.partition for o in owned])

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._write("revoked", partitions)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._write("lost", partitions)

    def on_error(self, error: KlammError) -> None:
        print(error, file=sys.stderr)


def _main(arguments: dict[str, Any]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    coordination = open_coordination(arguments["spec"])
    settings = RegistrySettings(arguments["group"], {arguments["topic"]: 1}, backoff_s=0.5)
    member = RegistryMember(coordination, offset_store(coordination), settings, _FileListener(arguments["log"]))
    member.start()
    stop.wait()
    member.close()
    coordination.close()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
