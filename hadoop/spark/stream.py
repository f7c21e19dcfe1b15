"""`spark.readStream.format("klamm")`: micro-batches of offset ranges.

Rules:
- A stream's offsets identify the log that they belong to (design D5a), as the manifests of loads do. With the next
  offset to read of each partition they hold the topic's id and the batch before that offset:

      {"flights": {"id": "<topic id>", "offsets": {"0": 23, "1": 0},
                   "batches": {"0": {"leader_epoch": 4, "base_offset": 20, "crc": 2774891}}}}

  Before it continues, a query compares both with the present topic (`klamm.hadoop.load.planning.history`). Another
  topic, or a log that was truncated below the offset and written again, is data loss. With failOnDataLoss=false the new
  topic is read from its beginning, and the log from the offset below which it is unchanged, if leader epochs determine
  it.
- Spark asks for the initial offset again when a query is restarted before its first micro-batch is done. By then it may
  have changed (the end of the log). So the offsets at the end of that micro-batch record where it began (`begin`).
- A partition that is new since the last micro-batch begins at its first offset; a subscribed partition that has
  disappeared is data loss.
- Spark keeps the offsets in its checkpoint; nothing is committed to a group. `commit` comes with the next micro-batch
  and makes nothing durable, so it does nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from klamm.core.client.errors import DataLossError, UnknownTopicError
from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition

from ..lake.manifest import BatchMark
from ..load.planning.cluster_history import ClusterHistory
from ..load.planning.history import HistoryChange, changes
from ..load.planning.plan import capped, split
from ..options import SourceOptions
from .cluster import Ends, asked_offsets, connect_source, edges, find_partitions, find_those_there
from .tasks import read_task, replaced

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset to read of each partition, the ids of their topics, and the batches before these offsets.
    `begin`: where the first micro-batch of a query began; None in later ones.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID | None]
    batches: Mapping[TopicPartition, BatchMark] = field(default_factory=dict)
    begin: Mapping[TopicPartition, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON, always in the same order: Spark compares the text."""
        topics: dict[str, Any] = {}
        for tp in sorted(self.offsets):
            topic_id, number = self.topic_ids.get(tp.topic), str(tp.partition)
            topic = topics.setdefault(tp.topic, {"id": "" if topic_id is None else str(topic_id), "offsets": {}})
            topic["offsets"][number] = self.offsets[tp]
            if tp in self.batches:
                topic.setdefault("batches", {})[number] = self.batches[tp].model_dump(exclude_none=True)
            if self.begin is not None and tp in self.begin:
                topic.setdefault("begin", {})[number] = self.begin[tp]
        return topics

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StreamOffsets:
        try:
            batches = {tp: BatchMark.model_validate(mark) for tp, mark in _by_partition(given, "batches").items()}
            begin = {tp: int(offset) for tp, offset in _by_partition(given, "begin").items()}
            return cls(
                {
                    TopicPartition(name, int(n)): int(o)
                    for name, topic in given.items()
                    for n, o in topic["offsets"].items()
                },
                {name: UUID(topic["id"]) if topic["id"] else None for name, topic in given.items()},
                batches,
                begin or None,
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"klamm source: the checkpoint holds no offsets of this source: {json.dumps(given)[:200]}"
            ) from error

    def is_of(self, topic: str, topic_id: UUID | None) -> bool:
        """Returns False if the offsets of `topic` are known to be those of a topic with another id."""
        known = self.topic_ids.get(topic)
        return known is None or topic_id is None or known == topic_id

    def is_at(self, tp: TopicPartition, offset: int | None, topic_ids: Mapping[str, UUID | None]) -> bool:
        """Returns True if a partition's position is this offset in the topic of that id."""
        return self.offsets.get(tp) == offset and tp.topic in topic_ids and self.is_of(tp.topic, topic_ids[tp.topic])

    def of(self, topics: Collection[str]) -> StreamOffsets:
        """Returns the offsets of these topics alone."""
        offsets = {tp: offset for tp, offset in self.offsets.items() if tp.topic in topics}
        return replace(self, offsets=offsets, topic_ids={t: i for t, i in self.topic_ids.items() if t in topics})

    def there(self, now: Mapping[str, UUID]) -> StreamOffsets:
        """Returns the offsets of the topics that still exist, by their ids."""
        return self.of({topic for topic, known in self.topic_ids.items() if known is None or now.get(topic) == known})

    def first(self, stop: StreamOffsets) -> StreamOffsets:
        """Returns the beginning of the micro-batch that ends at `stop`: these offsets, unless it is a query's first."""
        return self if stop.begin is None else StreamOffsets(stop.begin, stop.topic_ids)

    @property
    def is_begin(self) -> bool:
        """True if nothing has been read yet."""
        return self.begin is not None and self.begin == self.offsets


def _by_partition(given: Mapping[str, Any], key: str) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(name, int(n)): value for name, topic in given.items() for n, value in topic.get(key, {}).items()
    }


class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream: the driver has one per query, with one client; the tasks get its pickled part."""

    def __init__(self, options: SourceOptions, schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._opened: ClusterClient | None = None
        self._target: StreamOffsets | None = None
        self._last_new_s: float | None = None
        self._verified = False

    @property
    def _client(self) -> ClusterClient:
        if self._opened is None:
            self._opened = connect_source(self._options)
        return self._opened

    @property
    def _history(self) -> ClusterHistory:
        return ClusterHistory(self._client)

    def initialOffset(self) -> dict[str, Any]:
        found = find_partitions(self._client, self._options)
        ends = Ends.of(self._client, found.partitions, self._options.isolation)
        offsets = asked_offsets(self._client, self._options, found.partitions, ends, "starting")
        for tp, offset in offsets.items():
            if not ends.earliest[tp] <= offset <= ends.latest[tp]:
                self._lost(
                    f"{tp}: offset {offset} was requested, but the log has {ends.earliest[tp]} to {ends.latest[tp]}; "
                    "failOnDataLoss=false begins at the nearest"
                )
                offsets[tp] = min(max(offset, ends.earliest[tp]), ends.latest[tp])
        return StreamOffsets(offsets, found.topic_ids, self._history.last_batches(offsets), offsets).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the read limit. Spark's Python sources have no limit of both kinds: the one that is left out here is
        applied in `latestOffset`.
        """
        if self._options.limit is not None:
            return ReadMaxRows(self._options.limit)
        if self._options.least is not None:
            return ReadMinRows(self._options.least)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = StreamOffsets.from_json(start)
        seen = self._target or self._latest()
        self._check_topics(begin, seen)
        # A missing topic may be created again by a restore; it continues at its offset if it is the same one.
        gone = begin.of(begin.topic_ids.keys() - seen.topic_ids.keys())
        latest = StreamOffsets({**gone.offsets, **seen.offsets}, {**gone.topic_ids, **seen.topic_ids})
        if self._verified and latest.offsets == begin.offsets and latest.topic_ids == begin.topic_ids:
            return begin.to_json()
        now = self._client.topic_ids(seen.topic_ids)
        changed = self._changes(begin.of(seen.topic_ids), now)
        self._verified = True
        ranges = self._ranges(begin, latest, changed)
        if not changed and not self._is_enough(sum(r.size for r in ranges), limit):
            return begin.to_json()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = {r.partition: max(r.start, r.end) for r in capped(ranges, most)}
        if not changed and ends == begin.offsets and latest.topic_ids == begin.topic_ids:
            return begin.to_json()
        kept = {
            tp: m
            for tp, m in begin.batches.items()
            if tp not in changed and begin.is_at(tp, ends.get(tp), latest.topic_ids)
        }
        end = StreamOffsets(
            ends, latest.topic_ids, begin={r.partition: r.start for r in ranges} if begin.is_begin else None
        )
        new = {tp: offset for tp, offset in end.of(seen.topic_ids).there(now).offsets.items() if tp not in kept}
        return replace(end, batches={**self._history.last_batches(new), **kept}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of a micro-batch. Spark may ask for one that was planned before a restart."""
        stop = StreamOffsets.from_json(end)
        # If begin and end are equal, `begin` belongs to the micro-batch that ended there.
        begin = StreamOffsets.from_json(start).first(stop) if start != end else stop
        now = self._client.topic_ids({*begin.topic_ids, *stop.topic_ids})
        there = stop.there(now)
        for topic in sorted(stop.topic_ids.keys() - there.topic_ids.keys()):
            self._lost(str(replaced(topic)))
        stop = there
        cut = {
            tp: change.common_end for tp, change in self._changes(stop, now).items() if change.common_end is not None
        }
        stop = replace(stop, offsets={**stop.offsets, **cut})
        ranges = self._ranges(begin, stop, self._changes(begin, now))
        tasks = split(ranges, self._options.min_tasks, self._options.max_offsets_per_task)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, partition.value)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _latest(self) -> StreamOffsets:
        """Returns the ends of all presently subscribed partitions. A named topic that does not exist is data loss."""
        try:
            found = find_partitions(self._client, self._options)
        except UnknownTopicError as error:
            if self._options.fail_on_data_loss:
                raise
            _log.warning("%s", error)
            found = find_those_there(self._client, self._options)
        ends = edges(self._client, found.partitions, LATEST, self._options.isolation)
        return StreamOffsets(ends, found.topic_ids)

    def _check_topics(self, begin: StreamOffsets, latest: StreamOffsets) -> None:
        for topic in begin.topic_ids:
            if topic not in latest.topic_ids or not begin.is_of(topic, latest.topic_ids[topic]):
                self._lost(str(replaced(topic)))

    def _changes(self, read: StreamOffsets, now: Mapping[str, UUID]) -> dict[TopicPartition, HistoryChange]:
        """Returns the partitions whose logs have changed since they were read up to these offsets, of topics whose ids
        `now` are unchanged.
        """
        there = read.there(now)
        marks = {tp: mark for tp, mark in read.batches.items() if tp in there.offsets}
        changed = changes(self._history, there.offsets, marks)
        for tp, change in sorted(changed.items()):
            goes_on = f"continues at offset {read.offsets[tp]}, and records written below it are not read"
            if change.common_end is not None:
                goes_on = f"continues at offset {change.common_end}"
            self._lost(
                f"{tp}: read up to offset {read.offsets[tp]}, but the log was cut below it and written again "
                f"({change.why}), as when a broker is restored from an older backup; failOnDataLoss=false {goes_on}"
            )
        return changed

    def _ranges(
        self, begin: StreamOffsets, end: StreamOffsets, changed: Mapping[TopicPartition, HistoryChange]
    ) -> list[OffsetRange]:
        """Returns the ranges from `begin` to `end`: new partitions from their first offset, `changed` ones from the
        offset up to which they are unchanged.
        """
        known = {tp for tp in end.offsets if tp in begin.offsets and begin.is_of(tp.topic, end.topic_ids[tp.topic])}
        new = [tp for tp in end.offsets if tp not in known]
        first = edges(self._client, new, EARLIEST) if new else {}
        ranges = []
        for tp, stop in end.offsets.items():
            start = begin.offsets[tp] if tp in known else first[tp]
            common_end = changed[tp].common_end if tp in changed else None
            if common_end is not None:
                start = common_end
            if tp not in known and start > 0:
                self._lost(
                    f"{tp} is new, and its offsets 0 to {start} were deleted; failOnDataLoss=false reads the rest"
                )
            if start > stop:
                self._lost(f"{tp}: the offsets {stop} to {start} were deleted; failOnDataLoss=false reads from {stop}")
            ranges.append(OffsetRange(tp, min(start, stop), stop, end.topic_ids.get(tp.topic)))
        return ranges

    def _is_enough(self, new: int, limit: ReadLimit) -> bool:
        """Returns False if the micro-batch must wait for more records (minOffsetsPerTrigger). As in Spark's Kafka
        source, the first one does not wait, nor does a query with `availableNow`.
        """
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
