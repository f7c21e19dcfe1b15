"""Fetches mirrored partitions from one broker of the source, over one connection, in a fetch session (KIP-227): a
request carries only partitions whose position has changed, and an answer only those with something new.

One thread, which also appends what it gets. What needs the event loop (`_turn`) is done once for each answer. The rules
are those of `PartitionMirror`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

from ...client.edges import EARLIEST
from ...client.errors import STALE_LEADER_ERRORS
from ...config.sections.mirror import MirrorConfig
from ...errors import BrokerError, CorruptRecordError, ErrorCode, KlammError, describe_failure
from ...log.errors import FencedLeaderEpochError
from ...mirror.partition_mirror import (
    FirstBatch,
    MirrorAnswer,
    MirrorFetch,
    MirrorResult,
    MirrorStatus,
    PartitionMirror,
)
from ...protocol.apis import ApiKey
from ...protocol.replica_fetch import (
    CONSUMER,
    FIRST_BY_ID,
    VERSION,
    PartitionAnswer,
    PartitionFetch,
    PartitionKey,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    read_replica_fetch_response,
)
from ...records.chain import check_chain
from ...records.header import MAGIC
from ...records.partition import TopicPartition
from ...replication.fetch_sessions import FetchSessionHandler
from ...replication.replica_fetch import EpochEndOffset
from ..replication.replica import Replica

if TYPE_CHECKING:
    from .link_fetches import LinkFetches

log = logging.getLogger(__name__)
T = TypeVar("T")
_IDLE_S: Final = 0.1
_BACKOFF_S: Final = 0.5
LOOK_UP_S: Final = 5.0
_LONGEST_THROTTLED_S: Final = 1.0
_MAGIC_AT: Final = 16
_SESSION_ERRORS: Final = frozenset({ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch})
_UNKNOWN: Final = -1


class SourceRefusesError(KlammError):
    """The source answers a fetch with an error."""


class OldMagicError(CorruptRecordError):
    """The source has record batches of magic 0 or 1."""


class Mirrored(NamedTuple):
    """A partition that is fetched. `source`: its name at the source."""

    replica: Replica
    mirror: PartitionMirror
    source: TopicPartition

    @property
    def key(self) -> PartitionKey:
        """Identifies the partition at the source."""
        return self.mirror.topic_id.bytes, self.source.partition


class _Applied(NamedTuple):
    """What an answer has changed. `size`: the bytes that were appended."""

    each: Mirrored
    result: MirrorResult
    size: int


class SourceFetcher:
    """`assign` names the partitions, on any thread. `node`: the broker's id at the source."""

    def __init__(self, link: LinkFetches, name: str, config: MirrorConfig, node: int) -> None:
        self._link = link
        self._config = config
        self._node = node
        self._share: Mapping[PartitionKey, Mirrored] = {}
        self._session: FetchSessionHandler[PartitionKey, PartitionFetch] = FetchSessionHandler()
        self._in_session: dict[PartitionKey, None] = {}
        self._applied: list[_Applied] = []
        self._heard = False
        """An answer came since the last turn: what it does not name has not changed."""
        self._some = threading.Event()
        self._stopping = threading.Event()
        self.failed_with = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def assign(self, share: Mapping[PartitionKey, Mirrored]) -> None:
        """Fetches these partitions from now on, and no others."""
        self._share = share
        if share:
            self._some.set()

    def stop_soon(self) -> None:
        self._stopping.set()
        self._some.set()

    def stop(self) -> None:
        self.stop_soon()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._share:
                self.failed_with = ""
                self._some.clear()
                if not self._share:
                    self._some.wait()
                continue
            try:
                self._round()
                self.failed_with = ""
            except Exception as error:  # it must go on, or these partitions would never be copied again
                self._session.on_failure()
                if not self._stopping.is_set() and describe_failure(error) != self.failed_with:
                    log.exception("fetching from the source's broker %d failed", self._node)
                self.failed_with = describe_failure(error)
                self._stopping.wait(_BACKOFF_S)

    def _round(self) -> None:
        """Sends one Fetch, and applies its answer."""
        fetches = self._link.on_loop(self._turn)
        wait_s = self._link.wait_s() if fetches else _IDLE_S
        if wait_s > 0:
            self._stopping.wait(min(wait_s, _LONGEST_THROTTLED_S))
            return
        for key in [key for key in self._in_session if key not in fetches]:
            self._session.forget(key)
            del self._in_session[key]
        limit = self._config.max_partition_fetch_bytes
        for key, (_, fetch) in fetches.items():
            self._in_session[key] = None
            self._session.want(key, PartitionFetch(_UNKNOWN, fetch.offset, fetch.last_epoch, _UNKNOWN, limit))
        try:
            response = self._fetch()
        except KlammError as error:  # these partitions may be led by another broker by now
            self._session.on_failure()
            self._link.hold((each for each, _ in fetches.values()), describe_failure(error), _BACKOFF_S)
            self._look_up({each.source.topic for each, _ in fetches.values()})
            return
        if response is not None:
            self._heard = True
            self._apply_all(fetches, response)

    async def _turn(self) -> dict[PartitionKey, tuple[Mirrored, MirrorFetch]]:
        """Notes what was applied; returns the next fetch of each partition. On the event loop."""
        applied, self._applied = self._applied, []
        for each, result, size in applied:
            replica = each.replica
            if replica.leader is each.mirror.leader:
                each.mirror.notice(result)
                self._link.copied(size)
                replica.mirrored(size)
        heard, self._heard = self._heard, False
        found = {}
        for key, each in self._share.items():
            replica, mirror = each.replica, each.mirror
            if replica.leader is not mirror.leader or replica.is_offline or self._link.stops(replica.name.topic):
                continue
            if heard and mirror.status is MirrorStatus.FOLLOWING and key in self._in_session:
                self._link.caught_up(replica)
            if not self._link.is_held(each.source) and (fetch := mirror.fetch()) is not None:
                found[key] = each, fetch
        return found

    def _fetch(self) -> ReplicaFetchResponse | None:
        """Returns the answer; None if the session has ended, so that the next request is a full one."""
        config, session = self._config, self._session.next_request()
        request = ReplicaFetchRequest(
            CONSUMER, _UNKNOWN, config.fetch_max_wait_ms, config.fetch_min_bytes, config.fetch_max_bytes,
            session.session_id, session.epoch, session.partitions, session.forgotten,
        )  # fmt: skip

        def build(schema: Any) -> list[bytes]:
            version = schema.root.__version__
            if version < FIRST_BY_ID:
                raise BrokerError(
                    ErrorCode.unsupported_version,
                    f"broker {self._node} of the source serves Fetch {version} at most; {FIRST_BY_ID} is needed",
                )
            return [request.encode(version)]

        client = self._link.client()
        longest_s = client.request_timeout_s + config.fetch_max_wait_ms / 1000
        response: ReplicaFetchResponse = client.call(
            ApiKey.FETCH, self._node, build=build, decode=read_replica_fetch_response, max_version=VERSION,
            timeout_s=longest_s, retry=False,
        )  # fmt: skip
        self._session.on_response(response.error, response.session_id)
        if response.error in _SESSION_ERRORS:
            return None
        if response.error is not ErrorCode.none:
            raise BrokerError(response.error, f"fetch from broker {self._node} of the source")
        return response

    def _apply_all(
        self, fetches: Mapping[PartitionKey, tuple[Mirrored, MirrorFetch]], response: ReplicaFetchResponse
    ) -> None:
        stale = set()
        for key, answer in response.partitions.items():
            if key not in fetches:
                continue
            each, fetch = fetches[key]
            try:
                result = self._apply(each, fetch, answer)
                self._link.release(each.source)
            except FencedLeaderEpochError as error:
                log.info("%s: %s", each.replica.name, error)
                result = MirrorResult.STALE
            except Exception as error:  # of this partition: the others of the answer are taken
                if not isinstance(error, KlammError):
                    log.exception("%s: an answer of the source could not be applied", each.replica.name)
                self._link.hold_failed(each, error)
                result = MirrorResult.STALE
            out_of_range = answer.error is ErrorCode.offset_out_of_range
            if answer.error in STALE_LEADER_ERRORS or (out_of_range and result is MirrorResult.STALE):
                stale.add(each.source.topic)
            if result is not MirrorResult.APPENDED:
                self._session.on_failure()  # the source would not send its bounds again
        if stale:
            self._look_up(stale)
            self._stopping.wait(_IDLE_S)

    def _bounds(self, source: TopicPartition) -> tuple[int, UUID | None]:
        """Returns where the partition begins, and the id of its topic, which is read after that: the bounds are asked
        for by name, and the topic may have been created again."""
        client = self._link.client()
        start, _ = client.list_offsets({source: EARLIEST}, timeout_s=LOOK_UP_S)[source]
        topic = client.metadata({source.topic}, timeout_s=LOOK_UP_S).topics.get(source.topic)
        return start, None if topic is None else topic.topic_id

    def _leader_knows(self, source: TopicPartition, epoch: int) -> bool:
        """Returns whether the partition's leader has the epoch, or an earlier one: then a broker that does not lead any
        more has found the offset out of range. The leader would have answered where the logs part."""
        if epoch < 0:
            return False
        ends = self._link.client().leader_epoch_ends({source: epoch}, timeout_s=LOOK_UP_S)
        return ends[source].leader_epoch >= 0

    def _look_up(self, topics: set[str]) -> None:
        """Asks who leads the topics, since the broker has not served them."""
        if self._stopping.is_set():
            return
        try:
            self._link.client().metadata(topics, timeout_s=LOOK_UP_S)
        except KlammError as error:
            log.debug("the source's topics %s: %s", ", ".join(sorted(topics)), error)

    def _apply(self, each: Mirrored, fetch: MirrorFetch, found: PartitionAnswer) -> MirrorResult:
        """Applies an answer, and does what it asks for."""
        mirror, answer = each.mirror, _answer(found)
        result = mirror.on_answer(fetch, answer)
        if result is MirrorResult.OUT_OF_RANGE:
            start, topic_id = self._bounds(each.source)
            if fetch.offset >= start and self._leader_knows(each.source, fetch.last_epoch):
                return MirrorResult.STALE
            result = mirror.on_bounds(fetch, start, topic_id)
        self._applied.append(_Applied(each, result, len(answer.records) if result is MirrorResult.APPENDED else 0))
        if result is MirrorResult.RESTARTED:
            self._link.store_begin(each)
        elif result is MirrorResult.GAP_FOUND:
            self._link.store_gap(each)
        elif result is MirrorResult.EPOCH_TOO_LOW:
            self._link.raise_epoch(each)
        elif result is MirrorResult.REFUSED and found.error not in STALE_LEADER_ERRORS:
            raise SourceRefusesError(
                f"the source answers {found.error.name.upper()}; the link needs READ on its topics there"
            )
        elif result is MirrorResult.STOPPED:
            log.error(
                "%s: %s at offset %d: nothing is copied any more; see `klamm mirror status`",
                each.replica.name, mirror.status.value, fetch.offset,
            )  # fmt: skip
        return result


def _answer(found: PartitionAnswer) -> MirrorAnswer:
    """Returns the answer with whole batches only. Raises `OldMagicError`; `CorruptRecordError` for a damaged batch."""
    diverging = None if found.diverging is None else EpochEndOffset(*found.diverging)
    records, largest, first = memoryview(found.records), -1, None
    if records:
        _check_magic(records)
        chain = check_chain(records)
        records = records[: chain.end]
        if chain.batches:
            largest, first = chain.epochs[-1][0], FirstBatch(chain.first_offset, chain.epochs[0][0])
    return MirrorAnswer(
        found.error, diverging, found.high_watermark, found.log_start_offset,
        records,  # type: ignore[arg-type]
        largest, first,
    )  # fmt: skip


def _check_magic(records: memoryview) -> None:
    """Raises `OldMagicError` if the first entry is a message or a message set of magic 0 or 1: they precede all batches
    of magic 2, and have their offset, length and magic at the same bytes."""
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] < MAGIC:
        offset = int.from_bytes(records[:8], "big")
        raise OldMagicError(
            f"the source's record at offset {offset} has magic {records[_MAGIC_AT]}, a format from before Kafka 0.11, "
            "and only magic 2 is copied: delete such records there (retention, DeleteRecords), or leave the topic out"
        )
