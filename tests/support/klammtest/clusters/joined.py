"""Memberships of one cluster in this process, and a coordination that fails when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import BrokerNode, Endpoint
from klamm.core.interfaces.coordination import Coordination, CoordinationUnavailableError, Operation
from klammtest.zookeeper import CoordinationCase


class FaultyCoordination:
    """Carries out what it is asked, except for transactions that a test has chosen. Methods not here are the inner
    coordination's."""

    def __init__(self, inner: Coordination) -> None:
        self.inner = inner
        self._faults: list[Callable[[Sequence[Operation]], None]] = []

    def next(self, action: Callable[[Sequence[Operation]], None]) -> None:
        """`action` takes the place of the next transaction that no other fault is waiting for."""
        self._faults.append(action)

    def lose_answer(self, then: Callable[[], object] = lambda: None) -> None:
        """The next transaction is carried out, and not answered; `then` is called before that is noticed."""

        def lost(operations: Sequence[Operation]) -> None:
            self.inner.transaction(operations)
            then()
            raise CoordinationUnavailableError("planted: no answer")

        self.next(lost)

    def lose_request(self, then: Callable[[], object] = lambda: None) -> None:
        """The next transaction is not carried out, and not answered; `then` is called before that is noticed."""

        def lost(_: Sequence[Operation]) -> None:
            then()
            raise CoordinationUnavailableError("planted: no answer")

        self.next(lost)

    def answer_all(self) -> None:
        """From now on every transaction is carried out and answered."""
        self._faults.clear()

    def before_next(self, action: Callable[[], object]) -> None:
        """Calls `action` before the next transaction."""

        def first(operations: Sequence[Operation]) -> None:
            action()
            self.inner.transaction(operations)

        self.next(first)

    def transaction(self, operations: Sequence[Operation]) -> None:
        if self._faults:
            self._faults.pop(0)(operations)
        else:
            self.inner.transaction(operations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Joined:
    """Brokers of one cluster; each has a coordination of its own, which fails on demand."""

    def __init__(self, case: CoordinationCase) -> None:
        self.case = case
        self.clusters: dict[int, Cluster] = {}
        self.coordinations: dict[int, Coordination] = {}
        self.faulty: dict[int, FaultyCoordination] = {}
        self.unreachable: set[int] = set()
        """The brokers that refuse connections."""
        self.before_connecting: Callable[[], object] = lambda: None
        """Called before the controller connects to a broker that is suspected."""
        self._all: list[Cluster] = []

    def __call__(self, broker_id: int, data_ids: tuple[str, ...] = (), **options: Any) -> Cluster:
        """Joins as a process that starts; `data_ids` is `data-<id>` unless given."""
        coordination = self.case.open()
        faulty = FaultyCoordination(coordination)

        def is_reachable(node: BrokerNode) -> bool:
            self.before_connecting()
            return node.id not in self.unreachable

        cluster = Cluster(
            cast(Coordination, faulty),
            broker_id,
            [Endpoint("127.0.0.1", 9092 + broker_id)],
            data_ids=data_ids or (f"data-{broker_id}",),
            directory_id=f"directory-{broker_id}",
            random_index=lambda n: 0,
            is_reachable=is_reachable,
            **options,
        )
        self._all.append(cluster)
        self.clusters[broker_id] = cluster
        self.coordinations[broker_id] = coordination
        self.faulty[broker_id] = faulty
        cluster.register()
        return cluster

    def leave(self, broker_id: int) -> None:
        """Ends a membership and its session at once, as a stop does."""
        self.clusters.pop(broker_id).close()
        self.coordinations.pop(broker_id).close()

    def kill(self, broker_id: int) -> None:
        """Ends a membership as `kill -9` does: it reacts to nothing any more, and its session lives on.

        Returns when a reaction that was under way has ended, so that it does not undo what the test does next.
        """
        cluster = self.clusters.pop(broker_id)
        cluster._stop.set()
        cluster._wake.set()
        cluster._worker.join()

    def close(self) -> None:
        for cluster in self._all:
            cluster.close()
