"""The fetches of one link at one broker: assigns the partitions that it leads as mirrors to fetchers, by the leaders at
the source, and keeps what the fetchers have in common.

One thread, and one of each `SourceFetcher`. What reads or changes a role's state runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final, TypeVar

from ...client.cluster_client import ClusterClient
from ...cluster.mirrors import MirrorCut, MirrorTopicNode, PartitionReport, read_reports, topic_path, update
from ...config.sections.mirror import MirrorConfig
from ...errors import ErrorCode, KlammError, NoSpaceError, describe_failure
from ...interfaces.coordination import Coordination
from ...log.cut_batches import set_aside
from ...mirror.completeness import CompleteUntil
from ...mirror.partition_mirror import MirrorDecision, MirrorRules, MirrorStatus, PartitionMirror
from ...protocol.replica_fetch import PartitionKey
from ...records.partition import TopicPartition, some_of
from ...replication.leader import PartitionLeader
from ...token_bucket import TokenBucket
from ..replication.replica import Replica
from ..services import Services
from .source_fetcher import LOOK_UP_S, Mirrored, OldMagicError, SourceFetcher, SourceRefusesError

log = logging.getLogger(__name__)
T = TypeVar("T")
_ASSIGN_S: Final = 0.3
"""Seconds between two assignments of the partitions to fetchers."""
_BACKOFF_S: Final = 0.5
_HELD_S: Final = 2.0
"""A partition whose topic is missing at the source, or whose records cannot be stored, is left out for this time."""
_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60_000
_REFUSED_S: Final = 30.0
"""The same for records that this version cannot store: only a change at the source helps."""


class LinkFetches:
    """`topics` returns the link's mirror topics by their names here, `client` a
    client of the source."""

    def __init__(
        self,
        name: str,
        config: MirrorConfig,
        services: Services,
        coordination: Coordination,
        loop: asyncio.AbstractEventLoop,
        client: Callable[[], ClusterClient],
        topics: Callable[[], Mapping[str, MirrorTopicNode]],
        stops: Callable[[str], str],
    ) -> None:
        """`stops` returns the status that keeps a topic from being fetched, such as PAUSED; empty if none does."""
        self.failed_with = ""
        self._held: dict[TopicPartition, str] = {}
        """The source's partitions that could not be fetched or stored, with the reason."""
        self._not_before: dict[TopicPartition, float] = {}
        self._name = name
        self._config = config
        self._services = services
        self._coordination = coordination
        self._loop = loop
        self.client = client
        self._topics = topics
        self.stops = stops
        self._mirrors: dict[PartitionKey, PartitionMirror] = {}
        self._caught_up: dict[PartitionKey, float] = {}
        self._complete: dict[PartitionKey, CompleteUntil] = {}
        """For compacted topics (docs/mirror.md, M9); of others, the last time at which they were not compacted."""
        self._aside: dict[TopicPartition, tuple[PartitionLeader, int, int, Path]] = {}
        """The last copy of batches that are about to be cut, until it is noted: the term, and their offsets."""
        self._unknown: dict[TopicPartition, tuple[PartitionKey, int]] = {}
        """Partitions for which that has to be read, with the start of their topic's mirror."""
        self._seen: dict[PartitionKey, int] = {}
        """The source's ends at the last check, of compacted topics."""
        self._seen_ms = _now_ms()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._fetchers: dict[tuple[int, int], SourceFetcher] = {}
        """By the source's broker and the number of the connection to it."""
        self._throttle = threading.Lock()
        rate = config.throttle_bytes_per_second
        self._bucket = TokenBucket(rate) if rate else None
        self._rules = MirrorRules(config.retention == "source", config.on_gap == "stop", config.on_divergence == "stop")
        self.fetched_bytes = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"klamm-mirror-{self._name}-fetch", daemon=True)
        self._thread.start()

    def stop_soon(self) -> None:
        """Begins no more fetches; `stop` waits for the threads."""
        self._stopping.set()
        for fetcher in list(self._fetchers.values()):
            fetcher.stop_soon()

    def stop(self) -> None:
        self.stop_soon()
        if self._thread is not None:
            self._thread.join(10)
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def reports(self) -> dict[TopicPartition, PartitionReport]:
        """Returns the state of each partition that this broker leads as the link's mirror."""
        return self.on_loop(self._reports)

    async def _reports(self) -> dict[TopicPartition, PartitionReport]:
        found = {}
        for replica in self._led():
            mirror = self._mirrors.get(replica.key)
            end = replica.log.log_end_offset
            topic = self._topics().get(replica.name.topic)
            source = None if topic is None else TopicPartition(topic.source, replica.name.partition)
            status = self.stops(replica.name.topic) or ("COPYING" if mirror is None else mirror.status.value)
            found[replica.name] = PartitionReport(
                topic_id=replica.topic_id, status=status, end=end,
                source_end=-1 if mirror is None else mirror.source_end,
                lag=-1 if mirror is None else mirror.lag,
                last_epoch=replica.log.last_record_epoch,
                reason="" if source is None or status == "PAUSED" else self._held.get(source, ""),
            )  # fmt: skip
        return found

    def complete_until_ms(self) -> dict[TopicPartition, int]:
        """Returns the time up to which nothing was missing in partitions of compacted topics. It grows in steps of a
        minute, or of a quarter of `delete.retention.ms` if that is less, since each change is a write to the
        coordination."""
        led = {each.key: each for each in self._services.partitions.replicas() if each.log.config.compacts}
        found = {}
        for key, complete in list(self._complete.items()):
            if (replica := led.get(key)) is not None:
                step_ms = min(max(replica.log.config.delete_retention_ms // 4, _SECOND_MS), _MINUTE_MS)
                found[replica.name] = complete.at_ms // step_ms * step_ms
        return found

    def lags_s(self) -> dict[TopicPartition, float]:
        """Returns the seconds since each partition had all that the source had committed."""
        now = monotonic()
        led = {replica.key: replica.name for replica in self._services.partitions.replicas()}
        return {led[key]: now - at for key, at in list(self._caught_up.items()) if key in led}

    def on_topics(self, topics: Iterable[tuple[str, Any]]) -> None:
        """Takes the ids of the source's topics, by their names here (M8)."""
        self.on_loop(partial(self._on_topics, dict(topics)))

    async def _on_topics(self, topics: Mapping[str, Any]) -> None:
        for replica in self._led():
            mirror, topic_id = self._mirrors.get(replica.key), topics.get(replica.name.topic)
            if mirror is not None and topic_id is not None and not mirror.stopped and not mirror.on_topic(topic_id):
                log.error(
                    "%s: the source's topic was created again (id %s, it was %s): nothing is copied any more; delete "
                    "the topic here to copy the new one, or promote it", replica.name, topic_id, mirror.topic_id,
                )  # fmt: skip

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._assign()
                self.failed_with = ""
            except Exception as error:  # it must go on, or new partitions would never be copied
                if not self._stopping.is_set() and describe_failure(error) != self.failed_with:
                    log.exception("mirror %s failed", self._name)
                self.failed_with = describe_failure(error)
            self._stopping.wait(_BACKOFF_S if self.failed_with else _ASSIGN_S)

    @property
    def problem(self) -> str:
        """The reason why a partition is not fetched, of one such partition; empty if all are fetched."""
        held = next(iter(dict(self._held).items()), None)
        return self.failure or ("" if held is None else f"{held[0]}: {held[1]}")

    @property
    def failure(self) -> str:
        """The reason why a thread has failed; empty if all work."""
        failed = next((each.failed_with for each in list(self._fetchers.values()) if each.failed_with), "")
        return self.failed_with or failed

    def _assign(self) -> None:
        """Gives each partition to a fetcher from its leader."""
        mirrored = self.on_loop(self._find)
        if self._unknown:
            with suppress(KlammError):  # it is read again; the other partitions go on
                self._read_complete()
        known = {each.source for each in mirrored}
        for gone in [tp for tp in self._held if tp not in known]:
            self._held.pop(gone, None)
        wanted = [each for each in mirrored if not self.is_held(each.source)]
        shares: dict[tuple[int, int], dict[PartitionKey, Mirrored]] = {}
        for each, node in self._leaders(wanted):
            connection = each.source.partition % self._config.fetch_connections
            shares.setdefault((node, connection), {})[each.key] = each
        for at, fetcher in self._fetchers.items():
            fetcher.assign(shares.pop(at, {}))
        for (node, connection), share in shares.items():
            if not self._stopping.is_set():
                name = f"klamm-mirror-{self._name}-{node}-{connection}"
                self._fetchers[node, connection] = SourceFetcher(self, name, self._config, node)
                self._fetchers[node, connection].assign(share)

    def _leaders(self, wanted: Iterable[Mirrored]) -> Iterator[tuple[Mirrored, int]]:
        """Yields the partitions with their leaders at the source. One that has none does not stop the others, also not
        those of its topic."""
        source, missing = self.client(), list[Mirrored]()
        for each in wanted:
            node = source.cluster.leader(each.source)
            if node is None:
                missing.append(each)
            else:
                yield each, node
        if not missing:
            return
        try:
            topics = source.metadata({each.source.topic for each in missing}, timeout_s=LOOK_UP_S).topics
        except KlammError as error:
            self.hold(missing, describe_failure(error), _HELD_S)
            return
        for each in missing:
            found, node = topics.get(each.source.topic), source.cluster.leader(each.source)
            if node is not None:
                yield each, node
            elif found is None or found.error is not ErrorCode.none or each.source.partition not in found.partitions:
                code = ErrorCode.unknown_topic_or_partition if found is None else found.error
                why = f"the source answers {code.name.upper()}" if code else "the source has no such partition"
                self.hold([each], why, _HELD_S)
            else:
                self.hold([each], "no broker of the source leads it", _HELD_S)

    def _led(self) -> list[Replica]:
        return [
            replica
            for replica in self._services.partitions.replicas()
            if replica.leader is not None and replica.leader.state.mirror == self._name
        ]

    async def _find(self) -> list[Mirrored]:
        """Returns the partitions that are fetched, each with the mirror of its leader's term."""
        topics, led, found = self._topics(), self._led(), []
        keys = {replica.key for replica in led}
        for key in [key for key in self._mirrors if key not in keys]:
            del self._mirrors[key]
            self._caught_up.pop(key, None)
            self._complete.pop(key, None)
            self._seen.pop(key, None)
        self._unknown = {}
        before_ms, self._seen_ms = self._seen_ms, _now_ms()
        for replica in led:
            topic, leader = topics.get(replica.name.topic), replica.leader
            if topic is None or leader is None or leader.mirror_term is None or replica.is_offline:
                continue
            mirror = self._mirrors.get(replica.key)
            if mirror is not None and mirror.topic_id != topic.topic_id:  # made of what was known of a former one
                mirror.on_topic(topic.topic_id)
                mirror = None
            if mirror is None or mirror.leader is not leader:
                aside = partial(self._set_aside, replica)
                before = mirror
                begins = max(topic.begins.get(replica.name.partition, 0), 0 if before is None else before.begins)
                mirror = PartitionMirror(replica.log, leader, self._rules, topic.topic_id, aside, begins)
                if before is not None and before.stopped:
                    mirror.status = before.status
                self._mirrors[replica.key] = mirror
                self._caught_up.setdefault(replica.key, monotonic())
            if mirror.stopped and (decision := topic.decisions.get(replica.name.partition)) is not None:
                status, *position = decision
                if mirror.accept(MirrorDecision(MirrorStatus(status), *position)):
                    log.info("%s: continues over %s at offset %d", replica.name, status, position[0])
                    if replica.key in self._complete:
                        self._complete[replica.key] = CompleteUntil(_now_ms())
            if not replica.log.config.compacts:  # nor does the source: until now it has removed no tombstone
                self._complete[replica.key] = CompleteUntil(self._seen_ms)
            elif not self.stops(replica.name.topic):
                if not self._has_tombstones(replica, mirror, topic):
                    continue
                if mirror.source_end not in (-1, self._seen.get(replica.key)):  # it was answered since the last check
                    self._seen[replica.key] = mirror.source_end
                    end, lag = mirror.source_end, mirror.lag
                    self._complete[replica.key].on_answer(before_ms, end - lag, end)
            found.append(Mirrored(replica, mirror, TopicPartition(topic.source, replica.name.partition)))
        return found

    def _has_tombstones(self, replica: Replica, mirror: PartitionMirror, topic: MirrorTopicNode) -> bool:
        """Returns whether the mirror of a compacted topic can go on: nothing was removed at the source before it was
        copied. Otherwise it stops (M9), or it is not known yet."""
        known = self._complete.get(replica.key)
        if known is None and replica.log.log_end_offset > 0:
            self._unknown[replica.name] = (replica.key, topic.since_ms)
            return False
        if known is None:
            known = self._complete[replica.key] = CompleteUntil(_now_ms())
        retention_ms = replica.log.config.delete_retention_ms
        if mirror.stopped or not known.missed_tombstones(_now_ms(), retention_ms):
            return True
        mirror.missed_tombstones()
        log.error(
            "%s: not copied for longer than delete.retention.ms (%d): keys that the source has deleted may remain; "
            "nothing is copied any more, see `klamm mirror status`", replica.name, retention_ms,
        )  # fmt: skip
        return False

    def _read_complete(self) -> None:
        """Reads from the brokers' reports up to when partitions were complete that this broker leads now."""
        reports = read_reports(self._coordination, self._name).values()
        for name, (key, since_ms) in self._unknown.items():
            known = [found.complete_until_ms.get(name.topic, {}).get(name.partition, 0) for found in reports]
            self._complete[key] = CompleteUntil(max(since_ms, *known, 0))

    # -- what the fetchers use -------------------------------------------------------------------------------------

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of a call on the event loop."""
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def is_held(self, source: TopicPartition) -> bool:
        """Returns True while the partition is left out."""
        return self._not_before.get(source, 0.0) > monotonic()

    def hold(self, share: Iterable[Mirrored], why: str, seconds: float, *, failed: bool = False) -> None:
        """Leaves partitions out for a while, so that the others go on."""
        until, new = monotonic() + seconds, list[TopicPartition]()
        for each in share:
            if self._held.get(each.source) != why:
                new.append(each.source)
            self._held[each.source], self._not_before[each.source] = why, until
            self._loop.call_soon_threadsafe(each.mirror.failed if failed else each.mirror.source_unavailable)
        if new and not self._stopping.is_set():
            log.warning("mirror %s: %s cannot be copied, retrying: %s", self._name, some_of(new), why)

    def hold_failed(self, each: Mirrored, error: Exception) -> None:
        """Leaves out a partition whose answer could not be applied, and notes what to do."""
        match error:
            case NoSpaceError():
                why = f"the disk of broker {self._services.broker_id} is full: {error}; free space, and it goes on"
                self.hold([each], why, _HELD_S, failed=True)
            case OldMagicError():
                self.hold([each], str(error), _REFUSED_S, failed=True)
            case SourceRefusesError():
                self.hold([each], str(error), _HELD_S)
            case _:
                self.hold([each], describe_failure(error), _HELD_S, failed=True)

    def release(self, source: TopicPartition) -> None:
        """Notes that the partition was copied."""
        self._held.pop(source, None)

    def caught_up(self, replica: Replica) -> None:
        """Notes that the partition has all that the source had committed."""
        self._caught_up[replica.key] = monotonic()
        if (complete := self._complete.get(replica.key)) is not None:
            complete.on_answer(_now_ms(), 0, 0)

    def copied(self, size: int) -> None:
        """Counts copied bytes. Called on the event loop."""
        self.fetched_bytes += size
        if self._bucket is not None and size:
            with self._throttle:
                self._bucket.spend(size)

    def wait_s(self) -> float:
        """Returns the seconds until the throttle allows a fetch."""
        if self._bucket is None:
            return 0.0
        with self._throttle:
            return self._bucket.wait_s()

    def raise_epoch(self, each: Mirrored) -> None:
        """Has the partition's leader epoch raised to the one that its mirror wants."""
        self._services.cluster.raise_leader_epochs({each.replica.name: each.mirror.wanted_epoch - 1})

    # -- what is stored ------------------------------------------------------------------------------------------

    def store_begin(self, each: Mirrored) -> None:
        """Stores where the mirror begins, for its next leader."""
        name, begins = each.replica.name, each.mirror.begins

        def add(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            return node and node.model_copy(update={"begins": {**node.begins, name.partition: begins}})

        update(self._coordination, topic_path(self._name, name.topic), MirrorTopicNode, add)

    def store_gap(self, each: Mirrored) -> None:
        gap, name = each.mirror.gap, each.replica.name
        assert gap is not None, "no gap was found"
        log.error(
            "%s: the source has deleted the records from offset %d to %d before they were copied",
            name,
            gap.start,
            gap.end,
        )

        def add(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            if node is None:
                return None
            known = node.gaps.get(name.partition, ())
            return node.model_copy(
                update={"gaps": {**node.gaps, name.partition: tuple(dict.fromkeys((*known, tuple(gap))))}}
            )

        update(self._coordination, topic_path(self._name, name.topic), MirrorTopicNode, add)
        self._loop.call_soon_threadsafe(each.mirror.skip_gap)

    def _set_aside(self, replica: Replica, offset: int) -> None:
        """Called on a worker thread before a mirror is cut."""
        name, end, leader = replica.name, replica.log.log_end_offset, replica.leader
        before = self._aside.get(name)
        if before is not None and before[:3] == (leader, offset, end):  # it could not be noted
            path = before[3]
        else:
            path = set_aside(replica.log, offset)
            if leader is not None:
                self._aside[name] = leader, offset, end, path
        cut = MirrorCut(
            partition=name.partition, start=offset, end=end, broker=self._services.broker_id, path=str(path)
        )

        def add(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            return None if node is None or cut in node.cuts else node.model_copy(update={"cuts": (*node.cuts, cut)})

        update(self._coordination, topic_path(self._name, name.topic), MirrorTopicNode, add)
        self._aside.pop(name, None)


def _now_ms() -> int:
    return time_ns() // 1_000_000
