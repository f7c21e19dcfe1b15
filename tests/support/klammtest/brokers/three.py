"""Three brokers as processes, on one embedded coordination, whose groups can be asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.grouping import NOT_YET, coordination_error, find_coordinator
from klammtest.requests import metadata, wait_until_all_are_known
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

GROUPS = tuple(f"group-{number}" for number in range(12))
SESSION_MS = 6000


class ThreeBrokers:
    """Three brokers on one embedded coordination; broker 0 is the controller at first."""

    def __init__(self, brokers: Sequence[RunningBroker], tree: Path) -> None:
        self.brokers = brokers
        self.tree = tree

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @contextmanager
    def wire(self, number: int) -> Iterator[WireClient]:
        with WireClient(self.brokers[number].bootstrap) as wire:
            yield wire

    @contextmanager
    def coordination(self) -> Iterator[EmbeddedCoordination]:
        opened = EmbeddedCoordination(EmbeddedConfig(path=self.tree))
        opened.start()
        try:
            yield opened
        finally:
            opened.close()

    def coordinator(self, group: str, asked: int = 0, *, besides: int = -1) -> int:
        """Returns the group's coordinator, once it says that it is; another one than `besides`."""
        found: list[int] = []

        def coordinated() -> bool:
            with self.wire(asked) as wire:
                answer = find_coordinator(wire, group)
            if answer.error_code is not ErrorCode.none or answer.node_id == besides:
                return False
            found.append(answer.node_id)
            with self.wire(answer.node_id) as wire:
                return coordination_error(wire, group) not in NOT_YET

        eventually(coordinated, f"group {group} has a coordinator")
        return found[-1]

    def group_of(self, broker: int, asked: int = 0) -> str:
        """Returns a group that the broker coordinates."""
        return next(group for group in GROUPS if self.coordinator(group, asked) == broker)

    def create_topic(self, name: str, partitions: int = 3, replicas: int = 1) -> None:
        asked = part(
            ApiKey.CREATE_TOPICS, 5, "CreatableTopic",
            name=name, num_partitions=partitions, replication_factor=replicas, assignments=(), configs=(),
        )  # fmt: skip
        with self.wire(0) as wire:
            (made,) = wire.call(ApiKey.CREATE_TOPICS, 5, topics=(asked,), timeout=timedelta(seconds=20)).topics
            assert made.error_code is ErrorCode.none
        for number in range(len(self.brokers)):
            with self.wire(number) as wire:
                known = lambda wire=wire: metadata(wire, [name]).topics[0].error_code is ErrorCode.none  # noqa: E731
                eventually(known, f"broker {number} knows {name}")


@contextmanager
def three_brokers(
    folder: Path, plugin: str, replicas: int = 3, *, replicas_by_default: int = 1, **sections: Any
) -> Iterator[ThreeBrokers]:
    """`plugin`: the offset store; `replicas` of `__consumer_offsets`, and of topics that name no number by default;
    `sections` go into the brokers' files."""
    tree = folder / "tree.db"
    coordination = {"plugin": "embedded", "path": str(tree), "session.timeout.ms": SESSION_MS}
    offsets = {
        "plugin": plugin, "offsets.topic.num.partitions": 6, "offsets.topic.replication.factor": replicas,
    }  # fmt: skip
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                running_broker(
                    folder / str(number), coordination=coordination, offsets=offsets,
                    broker={"broker.id": number, "default.replication.factor": replicas_by_default}, **sections,
                )
            )
            for number in range(3)
        ]  # fmt: skip
        made = ThreeBrokers(brokers, tree)
        wait_until_all_are_known([broker.bootstrap for broker in brokers])
        yield made
        for broker in brokers:
            said = broker.log()
            assert "Traceback" not in said, said[said.index("Traceback") - 300 :][:3000]
