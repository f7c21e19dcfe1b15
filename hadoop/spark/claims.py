"""A task's claim of a batch, stored where any later attempt of the task finds it.

A claim of one task, one batch and one topic is a producer id with an epoch, and the end of each partition before the
first record of the batch. It is stored as the offsets of a separate consumer group per task, before any record is sent.
An attempt that finds a claim of its batch continues under the same identity; the next batch has the next epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.client.producer.partition_queue import MAX_EPOCH
from klamm.core.errors import KlammError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition

from .cluster import edges

GROUP_PREFIX: Final = "klamm-spark-sink-"


class ClaimError(KlammError):
    """This attempt may not write the batch."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """`writer` is the query's id, or that of one `df.write`; `batch` the micro-batch's number, 0 in a batch write."""

    writer: str
    batch: int
    task: int

    @property
    def group(self) -> str:
        return f"{GROUP_PREFIX}{self.writer}-{self.task}"

    def __str__(self) -> str:
        return f"batch {self.batch} task {self.task} of query {self.writer}"


@dataclass(frozen=True, slots=True)
class Claim:
    """`starts` has every partition that the topic had when the claim was made: rows go only to these. `again`: an
    earlier attempt made it and may have written.
    """

    producer_id: int
    epoch: int
    starts: Mapping[TopicPartition, int]
    again: bool


@dataclass(frozen=True, slots=True)
class _Stored:
    """One partition's part of a claim, as read back."""

    batch: int
    producer_id: int
    epoch: int
    topic_id: str
    partitions: int
    """The number of partitions that the claim has."""
    start: int

    @classmethod
    def parse(cls, committed: CommittedOffset) -> _Stored:
        try:
            said: dict[str, Any] = json.loads(committed.metadata)
            return cls(
                said["batch"], said["producer"], said["epoch"], said["topic"], said["partitions"], committed.offset
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ClaimError(f"a claim of the sink cannot be read: {committed.metadata[:100]!r}") from error


class AttemptClaims:
    """The claims of one attempt of one task. Not thread-safe."""

    def __init__(self, client: ClusterClient, identity: TaskIdentity) -> None:
        self._client = client
        self._identity = identity
        self._found = self._read()

    def earlier(self) -> list[str]:
        """Returns the topics that an earlier attempt of this batch has claimed."""
        batch = self._identity.batch
        return [topic for topic, parts in self._found.items() if all(p.batch == batch for p in parts.values())]

    def claim(self, topic: str) -> Claim:
        """Returns the earlier attempt's claim, or a new one. Raises `ClaimError` if a later batch was claimed, since
        this one was then written.
        """
        view = self._client.topic(topic)
        topic_id = "" if view.topic_id is None else str(view.topic_id)
        found = {tp: one for tp, one in self._found.get(topic, {}).items() if one.topic_id == topic_id}
        newest = max(found.values(), key=lambda one: (one.batch, one.epoch), default=None)
        if newest is not None and newest.batch > self._identity.batch:
            raise ClaimError(
                f"topic {topic}: {self._identity} is written, and so is batch {newest.batch}; was an older checkpoint "
                "restored? A new checkpointLocation writes all of it a second time"
            )
        if newest is not None and self._is_whole(found, newest.partitions):
            return Claim(newest.producer_id, newest.epoch, {tp: one.start for tp, one in found.items()}, again=True)
        producer_id, epoch = self._next(newest)
        partitions = [TopicPartition(topic, number) for number in sorted(view.partitions)]
        claim = Claim(producer_id, epoch, edges(self._client, partitions, LATEST), again=False)
        self._store(claim, topic, view.topic_id)
        return claim

    def _is_whole(self, found: Mapping[TopicPartition, _Stored], partitions: int) -> bool:
        """Returns True if this is a claim of this batch under which rows may have been sent.

        A broker that does not know a partition yet stores the claim without it and returns an error; the attempt then
        ends.
        """
        return len(found) == partitions and all(one.batch == self._identity.batch for one in found.values())

    def _next(self, newest: _Stored | None) -> tuple[int, int]:
        if newest is None or newest.epoch >= MAX_EPOCH:
            return self._client.init_producer_id()
        return newest.producer_id, newest.epoch + 1

    def _store(self, claim: Claim, topic: str, topic_id: UUID | None) -> None:
        said = {
            "batch": self._identity.batch,
            "producer": claim.producer_id,
            "epoch": claim.epoch,
            "topic": "" if topic_id is None else str(topic_id),
            "partitions": len(claim.starts),
        }
        metadata = json.dumps(said, separators=(",", ":"))
        offsets = {
            tp: CommittedOffset(start, metadata=metadata, topic_id=topic_id) for tp, start in claim.starts.items()
        }
        self._client.commit_offsets(self._identity.group, offsets)
        stored = self._read().get(topic, {})
        mine = dict.fromkeys(claim.starts, (claim.producer_id, claim.epoch))
        if {tp: (one.producer_id, one.epoch) for tp, one in stored.items()} != mine:
            raise ClaimError(f"topic {topic}: another attempt of {self._identity} is under way")

    def _read(self) -> dict[str, dict[TopicPartition, _Stored]]:
        found: dict[str, dict[TopicPartition, _Stored]] = {}
        for tp, committed in self._client.fetch_offsets(self._identity.group).items():
            found.setdefault(tp.topic, {})[tp] = _Stored.parse(committed)
        return found
