"""Reads from a cluster what a source needs: the partitions to read, and their present first and end offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient
from klamm.core.client.errors import DataLossError
from klamm.core.client.factory import ClusterAccess, open_client
from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import ConfigError, ErrorCode
from klamm.core.plugins import plugin_host
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition

from ..options import CLIENT_ID, Offsets, SourceOptions, Times

_NONE_THERE: Final = -1
"""The offset in a ListOffsets response if no record is at or after the time."""


def connect(bootstrap: str, plugins: tuple[str, ...] = (), client_id: str = CLIENT_ID) -> ClusterClient:
    """Returns a client that knows every codec of the process's plugins."""
    return open_client(ClusterAccess(bootstrap, plugin_host(plugins).codec_table()), "spark", client_id=client_id)


def connect_source(options: SourceOptions) -> ClusterClient:
    return connect(options.bootstrap, options.plugins, options.client_id)


@dataclass(frozen=True, slots=True)
class Found:
    """The partitions that are read, in order, and the ids of their topics (None if the broker does not report ids)."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None]


def find_partitions(client: ClusterClient, options: SourceOptions) -> Found:
    """Returns the present partitions. Raises `UnknownTopicError` for a named topic or partition that does not exist."""
    if options.pattern is not None:
        names = _matching(client, options.pattern)
    else:
        names = sorted({*options.topics, *(tp.topic for tp in options.assigned)})
    topics = {name: client.topic(name) for name in names}
    every = [TopicPartition(name, number) for name in names for number in sorted(topics[name].partitions)]
    partitions = sorted(options.assigned, key=lambda tp: (tp.topic, tp.partition)) or every
    client.by_leader(partitions)  # a partition that does not exist raises here
    return Found(tuple(partitions), {name: topic.topic_id for name, topic in topics.items()})


def find_those_there(client: ClusterClient, options: SourceOptions) -> Found:
    """Like `find_partitions`, without named topics and partitions that do not exist."""
    if options.pattern is not None:
        return find_partitions(client, options)
    views = client.metadata({*options.topics, *(tp.topic for tp in options.assigned)}).topics
    there = {name: view for name, view in views.items() if view.error is ErrorCode.none}
    topics = tuple(name for name in options.topics if name in there)
    assigned = tuple(tp for tp in options.assigned if tp.topic in there and tp.partition in there[tp.topic].partitions)
    return find_partitions(client, replace(options, topics=topics, assigned=assigned))


def _matching(client: ClusterClient, pattern: str) -> list[str]:
    """Returns the topics that match as for Kafka's consumers: by the whole name, without internal topics."""
    matches = re.compile(pattern).fullmatch
    topics = client.metadata(None).topics.values()
    return sorted(t.name for t in topics if t.error is ErrorCode.none and not t.internal and matches(t.name))


def edges(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    edge: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Returns the `EARLIEST` or `LATEST` offset of each partition; with `READ_COMMITTED` the latest is the last stable
    offset."""
    return first_at(client, dict.fromkeys(partitions, edge), isolation)


@dataclass(frozen=True, slots=True)
class Ends:
    """The first offset of each partition and the one after its last, as the log is now."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, client: ClusterClient, partitions: Iterable[TopicPartition], isolation: IsolationLevel) -> Ends:
        wanted = list(partitions)
        return cls(edges(client, wanted, EARLIEST), edges(client, wanted, LATEST, isolation))


def asked_offsets(
    client: ClusterClient, options: SourceOptions, partitions: Iterable[TopicPartition], ends: Ends, edge: str
) -> dict[TopicPartition, int]:
    """Returns the `starting` or the `ending` offset of each partition by the options. Raises `ConfigError` if they
    leave one out."""
    offsets, times = options.starting, options.starting_times
    if edge == "ending":
        offsets, times = options.ending, options.ending_times
    if times is None:
        now = {EARLIEST: ends.earliest, LATEST: ends.latest}
        given = _by_partition(offsets, partitions, f"{edge}Offsets")
        return {tp: now[offset][tp] if offset in now else offset for tp, offset in given.items()}
    found = first_at(client, _by_partition(times, partitions, f"{edge}OffsetsByTimestamp"), options.isolation)
    late = [tp for tp, offset in found.items() if offset == _NONE_THERE]
    if late and edge == "starting" and not options.late_is_latest:
        raise ConfigError(
            f"klamm source: {late[0]} has no record at or after its starting time; "
            "startingOffsetsByTimestampStrategy=latest begins at the end"
        )
    return found | {tp: ends.latest[tp] for tp in late}


def first_at(
    client: ClusterClient,
    times: Mapping[TopicPartition, int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Returns the first offset whose record is at or after the time; -1 if there is none that the isolation shows."""
    return {tp: offset for tp, (offset, _) in client.list_offsets(times, isolation=isolation).items()}


def _by_partition(given: Offsets | Times, partitions: Iterable[TopicPartition], name: str) -> dict[TopicPartition, int]:
    if isinstance(given, int):
        return dict.fromkeys(partitions, given)
    wanted = list(partitions)
    for tp in wanted:
        if tp not in given:
            raise ConfigError(f"klamm source: {name} does not name {tp}; it must name every partition that is read")
    return {tp: given[tp] for tp in wanted}


def planned(client: ClusterClient, options: SourceOptions) -> list[OffsetRange]:
    """Returns the ranges of a batch by its options and the present log. Raises `DataLossError` if they begin before the
    log.
    """
    found = find_partitions(client, options)
    ends = Ends.of(client, found.partitions, options.isolation)
    starts = asked_offsets(client, options, found.partitions, ends, "starting")
    stops = asked_offsets(client, options, found.partitions, ends, "ending")
    ranges = []
    for tp in found.partitions:
        start, end, first, last = starts[tp], stops[tp], ends.earliest[tp], ends.latest[tp]
        if options.fail_on_data_loss and not first <= start <= max(start, end) <= last:
            raise DataLossError(
                f"{tp}: the offsets {start} to {end} were requested, the log has {first} to {last}; "
                "failOnDataLoss=false reads those that exist"
            )
        ranges.append(OffsetRange(tp, max(start, first), min(end, last), found.topic_ids.get(tp.topic)))
    return ranges
