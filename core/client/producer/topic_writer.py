"""A producer's state of one topic: its serializer and the queues of its partitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

from ...errors import ConfigError
from ...interfaces.serde import Serializer, headers_of
from ...records.partition import TopicPartition, counted
from ..errors import UnknownTopicError
from .partition_queue import PartitionQueue
from .partitioner import Partitioner, key_hash


class TopicWriter:
    """Chooses a record's partition.

    Records without a key stick to one partition until its batch is full or sent, and then move to another, so that
    batches are large (KIP-480); `choose(n)` returns a number in [0, n). `mark_size`: the most bytes that the audit adds
    to a batch. `headers`: those of every record that has a value.
    """

    def __init__(
        self,
        topic: str,
        serialize: Serializer,
        partitions: int,
        make_queue: Callable[[TopicPartition], PartitionQueue],
        *,
        partitioner: Partitioner | None = None,
        audited: bool = False,
        mark_size: int = 0,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self.topic = topic
        self.serialize = serialize
        self.headers = headers_of(serialize)
        self.audited = audited
        self.mark_size = mark_size
        self._make_queue = make_queue
        self._partitioner = partitioner
        self._choose = choose
        self._topic_id: UUID | None = None
        self._made: tuple[PartitionQueue, ...] = ()
        self._queues: tuple[PartitionQueue, ...] = ()
        self._resize(partitions)
        self._sticky: PartitionQueue = self._queues[choose(partitions)]
        self._turn = choose(partitions)

    @property
    def chooses(self) -> bool:
        """True if a user's partitioner is called for each record."""
        return self._partitioner is not None

    def in_turn(self) -> PartitionQueue:
        """Returns the partition for a whole batch without keys: each partition in turn, starting at a random one."""
        queues = self._queues
        self._turn = (self._turn + 1) % len(queues)
        return queues[self._turn]

    @property
    def partitions(self) -> int:
        return len(self._queues)

    def resize(self, partitions: int, topic_id: UUID | None) -> None:
        """Sets the topic's number of partitions. A smaller number counts only if the topic was deleted and created
        again, since an answer may be old. Batches that wait for a removed partition fail by their time-out, and no
        more are sent to it."""
        again = None not in (topic_id, self._topic_id) and topic_id != self._topic_id
        self._topic_id = topic_id or self._topic_id
        if partitions > len(self._queues) or (again and partitions):
            self._resize(partitions)
            self._sticky = self._queues[self._choose(partitions)]

    def _resize(self, partitions: int) -> None:
        more = range(len(self._made), partitions)
        self._made += tuple(self._make_queue(TopicPartition(self.topic, number)) for number in more)
        self._queues = self._made[:partitions]

    def queue(self, key: bytes | None, value: bytes | None, partition: int | None, size: int) -> PartitionQueue:
        """Returns the queue of the record's partition; `size` is the record's estimated bytes."""
        queues = self._queues
        if partition is not None:
            try:
                if 0 <= partition < len(queues):
                    return queues[partition]
            except TypeError:  # it is not a number, as the line below shows
                pass
            raise UnknownTopicError(
                f"topic {self.topic!r} has {counted(len(queues), 'partition')}; there is no {partition!r}"
            )
        if self._partitioner is not None:
            return self._custom(self._partitioner, key, value)
        if key is not None:
            return queues[key_hash(key) % len(queues)]
        sticky = self._sticky
        batch = sticky.open_batch
        if batch is None or batch.size + size > sticky.batch_size:
            sticky = self._sticky = queues[self._choose(len(queues))]
        return sticky

    def _custom(self, partitioner: Partitioner, key: bytes | None, value: bytes | None) -> PartitionQueue:
        queues = self._queues
        chosen = partitioner(self.topic, key, value, len(queues))
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < len(queues):
            allowed = f"a number from 0 to {len(queues) - 1}"
            raise ConfigError(f"producer.partitioner: expected {allowed} for topic {self.topic!r}, got {chosen!r}")
        return queues[chosen]
