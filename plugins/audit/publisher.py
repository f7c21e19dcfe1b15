"""Events into the audit topic without a producer: one Produce request each, acks=all; for tiers that send few."""

from __future__ import annotations

from concurrent.futures import Future

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.partitioner import key_hash
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.windows import clock_ms


class ClusterPublisher:
    """`klamm.core.seams.audit.Publish`. A retry may store an event twice, which changes nothing: the last one wins."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._partitions: list[TopicPartition] = []

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        """Done, or failed, on return."""
        result: Future[None] = Future()
        try:
            if not self._partitions:
                self._partitions = self._client.partitions(self._topic)
            target = self._partitions[key_hash(key) % len(self._partitions)]
            self._client.produce({target: encode_batch([(clock_ms(), key, value, ())])})
            result.set_result(None)
        except Exception as error:  # belongs to the future, whatever it is
            result.set_exception(error)
        return result
