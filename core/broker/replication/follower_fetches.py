"""The leader's end of replication: serves the fetches of followers (KIP-227, 595, 903).

A follower reads up to the log end, has its own session, and uses neither write slots nor fetch allowances. A Fetch
costs as much as has changed since the last: partitions that were appended to or committed, and those whose request
has other parameters. The rules are those of `PartitionLeader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from uuid import UUID

from ...cluster.image import ClusterImage
from ...errors import ErrorCode, KlammError
from ...log.partition_log import LogRead, ReadIsolation
from ...protocol.fetch import Fetched, write_fetch_response
from ...protocol.messages import Buffer
from ...protocol.replica_fetch import PartitionFetch, PartitionKey, ReplicaFetchRequest
from ...replication.fetch_sessions import FetchContext, FetchSessionCache, FetchSessionRequest
from ...replication.leader import PartitionLeader
from ...replication.replica_fetch import ReplicaFetch, ReplicaFetchData
from ..request import Request
from ..workers import Workers
from .parked_fetch import FollowerWait
from .partitions import Partitions
from .replica import Replica, monotonic_ms
from .throttles import ReplicationThrottles

_ON_LOOP_BYTES: Final = 1 << 20
Context = FetchContext[PartitionKey, PartitionFetch]
_Answers = dict[PartitionKey, ReplicaFetchData | None]
_Unread = tuple[PartitionKey, PartitionFetch, Replica, PartitionLeader]


class FollowerFetches:
    """Belongs to the event loop. `on_caught_up` is called with a partition whose follower may join the ISR, and
    `on_lost` with a broker whose connection has ended. `sessions` also holds the sessions of consumers."""

    def __init__(
        self,
        partitions: Partitions,
        image: Callable[[], ClusterImage],
        workers: Workers,
        response_max_bytes: Callable[[], int],
        sessions: FetchSessionCache[Any, Any],
        throttles: ReplicationThrottles,
        on_caught_up: Callable[[Replica], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._partitions = partitions
        self._image = image
        self._workers = workers
        self._response_max_bytes = response_max_bytes
        self._sessions = sessions
        self._waits: dict[int, tuple[FollowerWait, set[PartitionKey]]] = {}
        self._throttles = throttles
        self._epochs: dict[int, tuple[int, int]] = {}
        """By session: the follower, and the broker epoch under which its fetches of partitions were counted."""
        self._on_caught_up = on_caught_up
        self._on_lost = on_lost

    async def fetch(self, request: Request, message: ReplicaFetchRequest) -> list[Buffer]:
        """Answers a follower's Fetch, or parks it until a partition that it fetches is appended to."""
        session = FetchSessionRequest(message.session_id, message.session_epoch, message.partitions, message.forgotten)
        if request.connection.on_close is None:  # also when no Fetch waits then, or the connection is reset
            request.connection.on_close = partial(self._on_lost, message.replica_id)
        context = self._sessions.context(session, from_follower=True, now_ms=monotonic_ms())
        if context.error is not ErrorCode.none:
            return write_answers(request, context.error, 0, {})
        registered = message.replica_id, message.replica_epoch
        if context.session_id not in self._epochs:
            self._end_former(registered)
        wait = self._follow(context, session)
        changed = dict.fromkeys((*wait.take_changed(), *context.changed))
        if self._epochs.get(context.session_id) != registered:
            # Registered again: a partition that has not changed is to be taken under the new epoch, too
            # (docs/replication.md, R3).
            self._epochs[context.session_id] = registered
            changed.update(dict.fromkeys(self._waits[context.session_id][1]))
        answers, unread = self._take_ends(message, context, wait, changed)
        await self._read_all(message, answers, unread)
        if not any(map(_is_news, answers.values())) and not self._partitions.closing:
            await self._wait(request, message, wait)
            more, unread = self._take_ends(message, context, wait, wait.take_changed())
            await self._read_all(message, more, unread)
            answers.update(more)
        for key, answer in answers.items():
            if answer is None:
                wait.on_bounds(key)  # it did not fit: first in the next answer
        error, session_id, sent = context.response({key: data for key, data in answers.items() if data is not None})
        return write_answers(request, error, session_id, sent)

    def _end_former(self, registered: tuple[int, int]) -> None:
        """Ends the sessions of a follower's earlier registrations, whose process has ended: otherwise every append
        would be recorded for them, until the cache is full."""
        follower, epoch = registered
        for session_id, (replica_id, taken) in self._epochs.items():
            if replica_id == follower and taken < epoch:
                self._sessions.end(session_id)

    def _follow(self, context: Context, session: FetchSessionRequest[PartitionKey, PartitionFetch]) -> FollowerWait:
        """Returns the record of what has changed for this session; appends to its partitions update it from now on."""
        for closed in [known for known in self._waits if known not in self._sessions]:
            _, keys = self._waits.pop(closed)
            self._epochs.pop(closed, None)
            self._unfollow(closed, keys)
        session_id = context.session_id
        if session_id not in self._waits:
            self._waits[session_id] = (FollowerWait(), set())
        wait, keys = self._waits[session_id]
        for key in session.forgotten:
            keys.discard(key)
            self._unfollow(session_id, (key,))
        for key in context.changed:
            replica = self._partitions.replica_by_id(key)
            if replica is not None:
                keys.add(key)
                replica.add_follower(session_id, wait)
        return wait

    def _unfollow(self, session_id: int, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            replica = self._partitions.replica_by_id(key)
            if replica is not None:
                replica.remove_follower(session_id)

    async def _wait(self, request: Request, message: ReplicaFetchRequest, wait: FollowerWait) -> None:
        connection = request.connection
        max_wait_s = message.max_wait_ms / 1000
        if max_wait_s <= 0 or connection.ended:
            return
        connection.on_end = wait.wake
        try:
            await wait.park(max_wait_s)
        finally:
            connection.on_end = None

    # -- one pass over the partitions ------------------------------------------------------------------------------

    def _take_ends(
        self,
        message: ReplicaFetchRequest,
        context: Context,
        wait: FollowerWait,
        keys: Iterable[PartitionKey],
    ) -> tuple[_Answers, list[_Unread]]:
        """Records the follower's end of each partition, which may commit records. Returns the answers that need no
        records, with None for those that do, and what is to be read for these.

        The ends do not count while this broker has not read the follower's registration: the partitions are then
        evaluated again, after the wait of this request or with the next.
        """
        answers: _Answers = {}
        unread: list[_Unread] = []
        now_ms = monotonic_ms()
        replica_id, replica_epoch = message.replica_id, message.replica_epoch
        registration = self._image().registrations.get(replica_id)
        if registration is None or registration.epoch != replica_epoch:
            for key in keys:
                wait.on_bounds(key)
        for key in keys:
            wanted = context.parameters(key)
            if wanted is None:
                continue
            replica = self._partitions.replica_by_id(key)
            leader = None if replica is None else replica.leader
            if replica is None or leader is None:
                answers[key] = ReplicaFetchData(self._not_led(key))
                continue
            fetch = ReplicaFetch(replica_id, replica_epoch, *wanted[:4], wanted.epoch_ranges)
            refused = answers[key] = leader.on_fetch(fetch, registration, now_ms)
            if refused is None:
                unread.append((key, wanted, replica, leader))
                replica.complete()
                if leader.wants_member(replica_id, registration, now_ms):
                    self._on_caught_up(replica)
        return answers, unread

    async def _read_all(self, message: ReplicaFetchRequest, answers: _Answers, unread: list[_Unread]) -> None:
        """Reads the records of the answers that need some, up to the limit of the response."""
        room = min(message.max_bytes, self._response_max_bytes())
        size = 0
        for key, wanted, replica, leader in unread:
            if replica.leader is not leader:  # its role has changed during an earlier read
                answers[key] = ReplicaFetchData(self._not_led(key))
                continue
            limit = min(wanted.max_bytes, room - size)
            bucket = self._throttles.leader_bucket(replica, message.replica_id)
            if (limit <= 0 and size) or (bucket is not None and bucket.wait_s() > 0):
                continue
            answer = _read_now(replica, wanted.fetch_offset, max(limit, 0), min_one=size == 0)
            if answer is None:
                answer = await self._read_later(replica, wanted.fetch_offset, max(limit, 0), min_one=size == 0)
            if replica.leader is not leader:  # the log may have been truncated during the read
                answer = ReplicaFetchData(ErrorCode.not_leader_or_follower)
            answers[key] = answer
            sent = len(answer.records)
            size += sent
            if bucket is not None:
                bucket.spend(sent)
            replica.traffic.replication_bytes_out += sent

    async def _read_later(self, replica: Replica, offset: int, limit: int, *, min_one: bool) -> ReplicaFetchData:
        """Reads on a worker thread."""
        try:
            found = await self._workers.bulk(
                replica.log.read, offset, limit, isolation=ReadIsolation.LOG_END, min_one=min_one
            )
        except KlammError as error:
            return ReplicaFetchData(error.code, log_start_offset=replica.log.log_start_offset)
        return _answer_of(found)

    def _not_led(self, key: PartitionKey) -> ErrorCode:
        known = self._image().topic_by_id(UUID(bytes=key[0]))
        if known is None:
            return ErrorCode.unknown_topic_id
        return ErrorCode.not_leader_or_follower if key[1] in known.partitions else ErrorCode.unknown_topic_or_partition


def _read_now(replica: Replica, offset: int, limit: int, *, min_one: bool) -> ReplicaFetchData | None:
    """Reads what is in memory or in the page cache; None if the rest takes longer."""
    log = replica.log
    if offset == log.log_end_offset:
        return ReplicaFetchData(high_watermark=log.high_watermark, log_start_offset=log.log_start_offset)
    if limit > _ON_LOOP_BYTES:
        return None
    try:
        found = log.read_cached(offset, limit, isolation=ReadIsolation.LOG_END, min_one=min_one)
    except KlammError as error:  # the log's start may have passed the offset since it was compared
        return ReplicaFetchData(error.code, log_start_offset=log.log_start_offset)
    return None if found is None else _answer_of(found)


def _answer_of(found: LogRead) -> ReplicaFetchData:
    return ReplicaFetchData(ErrorCode.none, None, found.high_watermark, found.log_start_offset, found.data)


def _is_news(answer: ReplicaFetchData | None) -> bool:
    """Returns True if an answer is to be sent at once: it has records, an error, or a divergence."""
    return answer is not None and (
        bool(answer.records) or answer.error is not ErrorCode.none or answer.diverging_epoch is not None
    )


def write_answers(
    request: Request, error: ErrorCode, session_id: int, answers: dict[PartitionKey, ReplicaFetchData]
) -> list[Buffer]:
    fetched = [
        Fetched(
            topic_id,
            number,
            data.error,
            data.high_watermark,
            data.high_watermark,
            data.log_start_offset,
            data.records,
            data.diverging_epoch,
        )
        for (topic_id, number), data in answers.items()
    ]
    return write_fetch_response(fetched, request.version, error=error, session_id=session_id)
