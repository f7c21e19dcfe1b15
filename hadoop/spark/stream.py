"""`spark.readStream.format("klamm")`: micro-batches of offset ranges.

Rules:
- A stream's offsets are `{"flights": {"id": "<topic id>", "offsets": {"0": 23, "1": 40}}}`: the next offset to read of
  each partition, with the topic that they are offsets of (design D5a). A checkpoint of a topic that was deleted and
  created again is refused, or with failOnDataLoss=false read from the new topic's beginning.
- A partition that is new since the last micro-batch begins at its first offset; one of a subscription that is gone is
  data loss.
- Spark keeps the offsets in its checkpoint; nothing is committed to a group. `commit` comes with the next micro-batch
  and makes nothing durable, so it does nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient
from klamm.core.client.errors import UnknownTopicError
from klamm.core.client.range_reader import DataLossError, OffsetRange
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.options import SourceOptions
from klamm.hadoop.plan import capped, split
from klamm.hadoop.spark.cluster import (
    Ends,
    connect_source,
    edges,
    find_partitions,
    find_those_there,
    starting_offsets,
)
from klamm.hadoop.spark.tasks import RangePartition, read_task, replaced

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset to read of each partition, and the ids of their topics."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID | None]

    def to_json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares the text."""
        topics: dict[str, Any] = {}
        for tp in sorted(self.offsets, key=lambda tp: (tp.topic, tp.partition)):
            topic_id = self.topic_ids.get(tp.topic)
            topic = topics.setdefault(tp.topic, {"id": "" if topic_id is None else str(topic_id), "offsets": {}})
            topic["offsets"][str(tp.partition)] = self.offsets[tp]
        return topics

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StreamOffsets:
        try:
            offsets = {
                TopicPartition(name, int(number)): int(offset)
                for name, topic in given.items()
                for number, offset in topic["offsets"].items()
            }
            return cls(offsets, {name: UUID(topic["id"]) if topic["id"] else None for name, topic in given.items()})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"klamm source: the checkpoint holds no offsets of this source: {json.dumps(given)[:200]}"
            ) from error

    def is_of(self, topic: str, topic_id: UUID | None) -> bool:
        """Whether the offsets of `topic`, if there are any, mean something in the topic of this id."""
        known = self.topic_ids.get(topic)
        return known is None or topic_id is None or known == topic_id


class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the driver's Python one for a query, with one client; in the tasks what is pickled of it."""

    def __init__(self, options: SourceOptions, schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._opened: ClusterClient | None = None
        self._target: StreamOffsets | None = None
        self._last_new_s: float | None = None

    @property
    def _client(self) -> ClusterClient:
        if self._opened is None:
            self._opened = connect_source(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        found = find_partitions(self._client, self._options)
        ends = Ends.of(self._client, found.partitions)
        offsets = starting_offsets(self._client, self._options, found.partitions, ends)
        for tp, offset in offsets.items():
            if not ends.earliest[tp] <= offset <= ends.latest[tp]:
                self._lost(
                    f"{tp}: asked for offset {offset}, the log has {ends.earliest[tp]} to {ends.latest[tp]}; "
                    "failOnDataLoss=false begins at the nearest"
                )
                offsets[tp] = min(max(offset, ends.earliest[tp]), ends.latest[tp])
        return StreamOffsets(offsets, found.topic_ids).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark's Python sources know no limit of both kinds: what is left out here is applied in `latestOffset`."""
        if self._options.limit is not None:
            return ReadMaxRows(self._options.limit)
        if self._options.least is not None:
            return ReadMinRows(self._options.least)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest(None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest(None).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = StreamOffsets.from_json(start)
        latest = self._target or self._latest(begin)
        self._check_topics(begin, latest)
        ranges = self._ranges(begin, latest)
        if not self._is_enough(sum(r.size for r in ranges), limit):
            return begin.to_json()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = {r.partition: max(r.start, r.end) for r in capped(ranges, most)}
        # A topic that is not seen now may be back, and goes on where it was if it is the same one.
        gone = {topic: topic_id for topic, topic_id in begin.topic_ids.items() if topic not in latest.topic_ids}
        kept = {tp: offset for tp, offset in begin.offsets.items() if tp.topic in gone}
        return StreamOffsets(kept | ends, {**gone, **latest.topic_ids}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
        now = self._client.topic_ids(stop.topic_ids)
        for topic in list(stop.topic_ids):
            if stop.topic_ids[topic] is not None and now.get(topic) != stop.topic_ids[topic]:
                self._lost(str(replaced(topic)))
                stop = _without(stop, topic)
        tasks = split(self._ranges(begin, stop), self._options.min_tasks, self._options.max_offsets_per_task)
        return [RangePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, partition.value)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _latest(self, begin: StreamOffsets | None) -> StreamOffsets:
        """The ends of all partitions that are subscribed to now. A topic that is named and not there is an error only
        where records of it may be lost, which `begin` says; the others are read."""
        try:
            found = find_partitions(self._client, self._options)
        except UnknownTopicError as error:
            if self._options.fail_on_data_loss or begin is None:
                raise
            _log.warning("%s", error)
            found = find_those_there(self._client, self._options)
        return StreamOffsets(edges(self._client, found.partitions, LATEST), found.topic_ids)

    def _check_topics(self, begin: StreamOffsets, latest: StreamOffsets) -> None:
        for topic in begin.topic_ids:
            if topic not in latest.topic_ids or not begin.is_of(topic, latest.topic_ids[topic]):
                self._lost(str(replaced(topic)))

    def _ranges(self, begin: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
        """From `begin` to `end`; what is new in `end` from its first offset."""
        known = {tp for tp in end.offsets if tp in begin.offsets and begin.is_of(tp.topic, end.topic_ids[tp.topic])}
        new = [tp for tp in end.offsets if tp not in known]
        first = edges(self._client, new, EARLIEST) if new else {}
        ranges = []
        for tp, stop in end.offsets.items():
            start = begin.offsets[tp] if tp in known else first[tp]
            if tp not in known and start > 0:
                self._lost(
                    f"{tp} is new, and its offsets 0 to {start} are gone; failOnDataLoss=false reads what is left"
                )
            if start > stop:
                self._lost(f"{tp}: the offsets {stop} to {start} are gone; failOnDataLoss=false goes on from {stop}")
            ranges.append(OffsetRange(tp, min(start, stop), stop, end.topic_ids.get(tp.topic)))
        return ranges

    def _is_enough(self, new: int, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: whether to begin a micro-batch, or to wait for more. As with Spark's Kafka source the
        first one does not wait, nor does a query of all that is available now."""
        least = self._options.least
        now_s = self._clock()
        waited = self._last_new_s is None or now_s - self._last_new_s >= self._options.max_delay_s
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable) or waited or new >= least:
            self._last_new_s = now_s
            return True
        return False

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        _log.warning("%s", what)


def _without(offsets: StreamOffsets, topic: str) -> StreamOffsets:
    kept = {tp: offset for tp, offset in offsets.offsets.items() if tp.topic != topic}
    return StreamOffsets(kept, {name: id_ for name, id_ in offsets.topic_ids.items() if name != topic})
