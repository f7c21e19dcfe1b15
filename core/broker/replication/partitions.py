"""The replicas on this broker. Everything here belongs to the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...protocol.replica_fetch import PartitionKey
from ...records.partition import TopicPartition
from ..metrics.counters import BrokerMetrics, TopicTraffic
from .replica import Replica


class Partitions:
    """The replicas by name and by topic id. One is added once its log is open, and removed before its log is closed.

    Iteration and `find` give the partitions that this broker leads.
    """

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._replicas: dict[tuple[str, int], Replica] = {}
        self._by_id: dict[PartitionKey, Replica] = {}
        self._metrics = metrics
        self.closing = False

    def traffic(self, topic: str) -> TopicTraffic:
        """Returns the topic's counters, which all its partitions share."""
        return self._metrics.traffic(topic)

    def __iter__(self) -> Iterator[Replica]:
        return iter([replica for replica in self._replicas.values() if replica.leader_epoch >= 0])

    def find(self, topic: str | bytes, partition: int) -> Replica | None:
        """Returns the replica if this broker leads the partition. `topic`: its name, or the 16 bytes of its id."""
        found = (
            self._replicas.get((topic, partition)) if isinstance(topic, str) else self._by_id.get((topic, partition))
        )
        return None if found is None or found.leader_epoch < 0 else found

    def replicas(self) -> list[Replica]:
        """Returns all replicas, those that follow too."""
        return list(self._replicas.values())

    def replica(self, name: TopicPartition) -> Replica | None:
        """Returns the replica, whatever its role."""
        return self._replicas.get(name)

    def replica_by_id(self, key: PartitionKey) -> Replica | None:
        """Returns the replica, whatever its role."""
        return self._by_id.get(key)

    def put(self, replica: Replica) -> None:
        self._replicas[replica.name] = replica
        self._by_id[replica.key] = replica

    def remove(self, names: Iterable[TopicPartition]) -> None:
        """Removes replicas; the requests that wait for them are answered."""
        for name in names:
            replica = self._replicas.pop(name, None)
            if replica is not None:
                self._by_id.pop(replica.key, None)
                replica.rest()
                replica.wake_all()
        for topic in self._metrics.topics.keys() - {topic for topic, _ in self._replicas}:
            self._metrics.forget(topic)

    def close(self) -> None:
        """Wakes all parked fetches, which then answer with the records that there are, because the broker stops."""
        self.closing = True
        for replica in self._replicas.values():
            replica.wake_all()
