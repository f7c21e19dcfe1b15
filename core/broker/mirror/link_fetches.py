"""The fetches of one link at one broker: the partitions that it leads as mirrors, from the leaders of the source.

One thread. What changes a role's state runs on the event loop (`_prepare`, `_take`), which appends on a worker thread.
The rules are those of `PartitionMirror`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ...client.cluster_client import ClusterClient, FetchedPartition, Lineage
from ...client.errors import STALE_LEADER_ERRORS
from ...cluster.mirrors import MirrorCut, MirrorTopicNode, PartitionReport, topic_path, update
from ...config.sections.mirror import MirrorConfig
from ...errors import CorruptRecordError, ErrorCode, KlammError, NoSpaceError, describe_failure
from ...interfaces.coordination import Coordination
from ...log.cut_batches import set_aside
from ...log.errors import FencedLeaderEpochError
from ...mirror.partition_mirror import (
    MirrorAnswer,
    MirrorDecision,
    MirrorFetch,
    MirrorResult,
    MirrorRules,
    MirrorStatus,
    PartitionMirror,
)
from ...protocol.replica_fetch import PartitionKey
from ...records.chain import check_chain
from ...records.header import MAGIC
from ...records.partition import TopicPartition, some_of
from ...replication.replica_fetch import EpochEndOffset
from ...token_bucket import TokenBucket
from ..replication.replica import Replica
from ..services import Services

__all__ = ["LinkFetches"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_IDLE_S: Final = 0.1
_BACKOFF_S: Final = 0.5
_HELD_S: Final = 2.0
"""A partition whose topic is missing at the source, or whose records cannot be stored, is left out for this time."""
_REFUSED_S: Final = 30.0
"""The same for records that this version cannot store: only a change at the source helps."""
_LOOK_UP_S: Final = 5.0
_MAGIC_AT: Final = 16
_EARLIEST: Final = -2


class SourceRefusesError(KlammError):
    """The source answers a fetch with an error."""


class OldMagicError(CorruptRecordError):
    """The source has record batches of magic 0 or 1."""


class _Mirrored(NamedTuple):
    """A partition that is fetched. `source`: its name at the source."""

    replica: Replica
    mirror: PartitionMirror
    source: TopicPartition
    fetch: MirrorFetch


class LinkFetches:
    """`topics` returns the link's mirror topics by their names here, `client` a client of the source."""

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
        """`stops` returns the status for which a topic is not fetched, as PAUSED; empty if it is."""
        self.failed_with = ""
        self._held: dict[TopicPartition, str] = {}
        """The source's partitions that could not be fetched or stored, with the reason."""
        self._not_before: dict[TopicPartition, float] = {}
        self._name = name
        self._config = config
        self._services = services
        self._coordination = coordination
        self._loop = loop
        self._client = client
        self._topics = topics
        self._stops = stops
        self._mirrors: dict[PartitionKey, PartitionMirror] = {}
        self._caught_up: dict[PartitionKey, float] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(thread_name_prefix=f"klamm-mirror-{name}")
        rate = config.throttle_bytes_per_second
        self._bucket = TokenBucket(rate) if rate else None
        self._rules = MirrorRules(config.retention == "source", config.on_gap == "stop", config.on_divergence == "stop")
        self.fetched_bytes = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"klamm-mirror-{self._name}-fetch", daemon=True)
        self._thread.start()

    def stop_soon(self) -> None:
        """Begins no more fetches; `stop` waits for the thread."""
        self._stopping.set()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def reports(self) -> dict[TopicPartition, PartitionReport]:
        """Returns the state of each partition that this broker leads as the link's mirror."""
        return self._on_loop(self._reports())

    async def _reports(self) -> dict[TopicPartition, PartitionReport]:
        found = {}
        for replica in self._led():
            mirror = self._mirrors.get(replica.key)
            end = replica.log.log_end_offset
            topic = self._topics().get(replica.name.topic)
            source = None if topic is None else TopicPartition(topic.source, replica.name.partition)
            status = self._stops(replica.name.topic) or ("COPYING" if mirror is None else mirror.status.value)
            found[replica.name] = PartitionReport(
                status=status, end=end,
                source_end=-1 if mirror is None else mirror.source_end,
                lag=-1 if mirror is None else mirror.lag,
                last_epoch=replica.log.last_record_epoch,
                reason="" if source is None or status == "PAUSED" else self._held.get(source, ""),
            )  # fmt: skip
        return found

    def lags_s(self) -> dict[TopicPartition, float]:
        """Returns the seconds since each partition had all that the source had committed."""
        now = time.monotonic()
        led = {replica.key: replica.name for replica in self._services.partitions.replicas()}
        return {led[key]: now - at for key, at in list(self._caught_up.items()) if key in led}

    def on_topics(self, topics: Iterable[tuple[str, Any]]) -> None:
        """Takes the ids of the source's topics, by their names here (M8)."""
        self._on_loop(self._on_topics(dict(topics)))

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
                worked = self._fetch_all()
                self.failed_with = ""
            except Exception as error:  # it must go on, or these partitions would never be copied again
                worked = False
                if not self._stopping.is_set() and describe_failure(error) != self.failed_with:
                    log.exception("mirror %s failed", self._name)
                self.failed_with = describe_failure(error)
            if not worked:
                self._stopping.wait(_BACKOFF_S if self.failed_with else _IDLE_S)

    @property
    def problem(self) -> str:
        """Why partitions are not fetched, for one of them; empty if all are."""
        held = next(iter(dict(self._held).items()), None)
        return self.failed_with or ("" if held is None else f"{held[0]}: {held[1]}")

    def _hold(self, share: Iterable[_Mirrored], why: str, seconds: float, *, failed: bool = False) -> None:
        """Leaves partitions out for a while, so that the others go on. `failed`: what the source has answered cannot be
        stored."""
        until, new = time.monotonic() + seconds, list[TopicPartition]()
        for each in share:
            if self._held.get(each.source) != why:
                new.append(each.source)
            self._held[each.source], self._not_before[each.source] = why, until
            self._loop.call_soon_threadsafe(each.mirror.failed if failed else each.mirror.source_is_away)
        if new and not self._stopping.is_set():
            log.warning("mirror %s: %s cannot be copied, retrying: %s", self._name, some_of(new), why)

    def _hold_failed(self, each: _Mirrored, error: KlammError) -> None:
        """Leaves out a partition whose answer could not be applied, and notes what to do."""
        match error:
            case NoSpaceError():
                why = f"the disk of broker {self._services.broker_id} is full: {error}; free space, and it goes on"
                self._hold([each], why, _HELD_S, failed=True)
            case OldMagicError():
                self._hold([each], str(error), _REFUSED_S, failed=True)
            case SourceRefusesError():
                self._hold([each], str(error), _HELD_S)
            case _:
                self._hold([each], describe_failure(error), _HELD_S, failed=True)

    def _on_loop(self, steps: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result()

    def _fetch_all(self) -> bool:
        """Fetches once from every leader; returns False if there was nothing to fetch."""
        prepared = self._on_loop(self._prepare())
        known = {each.source for each in prepared}
        for gone in [tp for tp in self._held if tp not in known]:
            self._held.pop(gone, None)
        now = time.monotonic()
        topics: dict[str, list[_Mirrored]] = {}
        for each in prepared:
            if self._not_before.get(each.source, 0.0) <= now:
                topics.setdefault(each.source.topic, []).append(each)
        client = self._client()
        by_leader: dict[int, dict[TopicPartition, _Mirrored]] = {}
        for share in topics.values():
            named = {each.source: each for each in share}
            try:
                for node, led in client.by_leader(named, timeout_s=_LOOK_UP_S).items():
                    by_leader.setdefault(node, {}).update({tp: named[tp] for tp in led})
            except KlammError as error:
                self._hold(share, describe_failure(error), _HELD_S)
        if len(by_leader) == 1:
            ((node, wanted),) = by_leader.items()
            self._fetch_from(node, wanted)
        else:
            work = [self._pool.submit(self._fetch_from, node, wanted) for node, wanted in by_leader.items()]
            for done in work:
                done.result()
        return bool(by_leader)

    def _led(self) -> list[Replica]:
        return [
            replica
            for replica in self._services.partitions.replicas()
            if replica.leader is not None and replica.leader.state.mirror == self._name
        ]

    async def _prepare(self) -> list[_Mirrored]:
        """Returns the next fetch of each partition."""
        topics, led, found = self._topics(), self._led(), []
        keys = {replica.key for replica in led}
        for key in [key for key in self._mirrors if key not in keys]:
            del self._mirrors[key]
            self._caught_up.pop(key, None)
        for replica in led:
            topic, leader = topics.get(replica.name.topic), replica.leader
            if topic is None or leader is None or leader.mirror_term is None or replica.is_offline:
                continue
            mirror = self._mirrors.get(replica.key)
            if mirror is None or mirror.leader is not leader:
                aside = partial(self._set_aside, replica)
                before = mirror
                mirror = PartitionMirror(replica.log, leader, self._rules, topic.topic_id, aside)
                if before is not None and before.topic_id == topic.topic_id and before.stopped:
                    mirror.status = before.status
                self._mirrors[replica.key] = mirror
                self._caught_up.setdefault(replica.key, time.monotonic())
            if self._stops(replica.name.topic):
                continue
            if mirror.stopped and (decision := topic.decisions.get(replica.name.partition)) is not None:
                status, *position = decision
                if mirror.accept(MirrorDecision(MirrorStatus(status), *position)):
                    log.info("%s: continues over %s at offset %d", replica.name, status, position[0])
            fetch = mirror.fetch()
            if fetch is not None:
                source = TopicPartition(topic.source, replica.name.partition)
                found.append(_Mirrored(replica, mirror, source, fetch))
        return found

    def _fetch_from(self, node: int, share: Mapping[TopicPartition, _Mirrored]) -> None:
        config, client = self._config, self._client()
        if self._bucket is not None and (wait_s := self._bucket.wait_s()) > 0:
            self._stopping.wait(min(wait_s, 1.0))
            return
        try:
            answers = client.fetch(
                node,
                {tp: each.fetch.offset for tp, each in share.items()},
                lineages={tp: Lineage(each.mirror.topic_id, -1, each.fetch.last_epoch) for tp, each in share.items()},
                max_wait_ms=config.fetch_max_wait_ms,
                min_bytes=config.fetch_min_bytes,
                max_bytes=config.fetch_max_bytes,
                partition_max_bytes=config.max_partition_fetch_bytes,
            )
        except KlammError as error:  # its leader may be another broker by now
            self._hold(share.values(), describe_failure(error), _BACKOFF_S)
            if not self._stopping.is_set():
                with suppress(KlammError):
                    client.metadata({tp.topic for tp in share}, timeout_s=_LOOK_UP_S)
            return
        stale = set()
        for tp, answer in answers.items():
            if tp in share:
                if self._bucket is not None and answer.records:
                    self._bucket.spend(len(answer.records))
                if answer.error in STALE_LEADER_ERRORS:
                    stale.add(tp.topic)
                try:
                    self._apply(share[tp], answer)
                    self._held.pop(tp, None)
                except KlammError as error:  # of this partition: the others of the answer are taken
                    self._hold_failed(share[tp], error)
        if stale:
            with suppress(KlammError):
                client.metadata(stale, timeout_s=_LOOK_UP_S)
            self._stopping.wait(_IDLE_S)

    def _apply(self, each: _Mirrored, found: FetchedPartition) -> None:
        """Applies an answer, and does what it asks for."""
        name, mirror = each.replica.name, each.mirror
        try:
            result = self._on_loop(self._take(each, partial(mirror.on_answer, each.fetch, _answer(found)), found))
            if result is MirrorResult.OUT_OF_RANGE:
                start, _ = self._client().list_offsets({each.source: _EARLIEST})[each.source]
                result = self._on_loop(self._take(each, partial(mirror.on_bounds, each.fetch, start), None))
            if result is MirrorResult.GAP_FOUND:
                self._store_gap(each)
            elif result is MirrorResult.EPOCH_TOO_LOW:
                self._services.cluster.raise_leader_epochs({name: mirror.wanted_epoch - 1})
            elif result is MirrorResult.REFUSED and found.error not in STALE_LEADER_ERRORS:
                raise SourceRefusesError(
                    f"the source answers {ErrorCode(found.error).name.upper()}; the link needs READ on its topics there"
                )
            elif result is MirrorResult.STOPPED:
                log.error(
                    "%s: %s at offset %d: nothing is copied any more; see `klamm mirror status`",
                    name, mirror.status.value, each.fetch.offset,
                )  # fmt: skip
        except FencedLeaderEpochError as error:
            log.info("%s: %s", name, error)

    async def _take(
        self, each: _Mirrored, change: Callable[[], MirrorResult], found: FetchedPartition | None
    ) -> MirrorResult:
        replica, mirror = each.replica, each.mirror
        before = replica.log.log_end_offset
        result = await self._services.workers.bulk(change)
        if replica.leader is mirror.leader:
            mirror.notice(result)
            size = 0 if found is None or result is not MirrorResult.APPENDED else len(found.records)
            self.fetched_bytes += size
            replica.mirrored(size if replica.log.log_end_offset > before else 0)
            if mirror.lag == 0:
                self._caught_up[replica.key] = time.monotonic()
        return result

    # -- what is stored ------------------------------------------------------------------------------------------

    def _store_gap(self, each: _Mirrored) -> None:
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
        name, end = replica.name, replica.log.log_end_offset
        path = set_aside(replica.log, offset)
        cut = MirrorCut(
            partition=name.partition, start=offset, end=end, broker=self._services.broker_id, path=str(path)
        )

        def add(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            return None if node is None else node.model_copy(update={"cuts": (*node.cuts, cut)})

        update(self._coordination, topic_path(self._name, name.topic), MirrorTopicNode, add)


def _answer(found: FetchedPartition) -> MirrorAnswer:
    """Returns the answer with whole batches only. Raises `OldMagicError`; `CorruptRecordError` for a damaged batch."""
    diverging = None if found.diverging is None else EpochEndOffset(*found.diverging)
    records, largest = b"", -1
    if found.records:
        _check_magic(found.records)
        chain = check_chain(found.records)
        if chain.batches:
            records, largest = found.records[: chain.end], chain.epochs[-1][0]
    error = ErrorCode(found.error)
    return MirrorAnswer(error, diverging, found.high_watermark, found.log_start_offset, records, largest)


def _check_magic(records: bytes) -> None:
    """Raises `OldMagicError` if the first entry is a message or a message set of magic 0 or 1: they precede all batches
    of magic 2, and have their offset, length and magic at the same bytes."""
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] < MAGIC:
        offset = int.from_bytes(records[:8], "big")
        raise OldMagicError(
            f"the source's record at offset {offset} has magic {records[_MAGIC_AT]}, a format from before Kafka 0.11, "
            "and only magic 2 is copied: delete such records there (retention, DeleteRecords), or leave the topic out"
        )
