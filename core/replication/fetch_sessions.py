"""Fetch sessions (KIP-227): both ends remember the partitions, and requests and responses carry only changes.

The fetching end is `FetchSessionHandler`, one per link to a broker; the serving end is `FetchSessionCache`, one per
broker. A request is *full*, with every partition, or *incremental*, with those that were added, changed or forgotten
since the last. Each request of a session has the next epoch, so that a lost or repeated one is noticed: the fetching
end then sends a full request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode


class SessionAnswer(Protocol):
    """The answer for one partition; a session sends only the parts that have changed."""

    @property
    def error(self) -> ErrorCode: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def records(self) -> Any: ...

    @property
    def diverging_epoch(self) -> Any: ...

    @property
    def preferred_read_replica(self) -> int: ...


A = TypeVar("A", bound=SessionAnswer)
K = TypeVar("K", bound=Hashable)
"""Identifies a partition: topic id, or name, and number."""
P = TypeVar("P")
"""The parameters of a partition's fetch, such as offset and leader epoch."""

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""The epoch of a full request that asks for a session."""
FINAL_EPOCH: Final = -1
"""The epoch of a full request that asks for no session."""
MOST_CONSUMED: Final = 100_000
"""Upper bound of the weights of all partitions in all sessions of consumers: about 40 MB."""
_MAX_EPOCH: Final = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """Returns the epoch after `epoch`. Epochs of incremental requests begin at 1, and wrap around to 1."""
    if epoch == FINAL_EPOCH:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class FetchSessionRequest(NamedTuple, Generic[K, P]):
    """The session's part of a Fetch request. In a full request `session_id` names a session to be closed. `by_id`: the
    request names topics by id; all requests of a session name them in the same way."""

    session_id: int
    epoch: int
    partitions: Mapping[K, P]
    forgotten: tuple[K, ...] = ()
    by_id: bool = True

    @property
    def is_full(self) -> bool:
        return self.epoch in (INITIAL_EPOCH, FINAL_EPOCH)


class FetchSessionHandler(Generic[K, P]):
    """The fetching end. The cost of a request depends on what has changed since the last, not on the number of
    partitions.
    """

    def __init__(self) -> None:
        self._wanted: dict[K, P] = {}
        self._changed: dict[K, None] = {}
        self._in_session: set[K] = set()
        self._forgotten: dict[K, None] = {}
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, partition: K, parameters: P) -> None:
        """Fetches the partition from now on, with these parameters."""
        if partition not in self._wanted or self._wanted[partition] != parameters:
            self._wanted[partition] = parameters
            self._changed[partition] = None
            self._forgotten.pop(partition, None)

    def parameters(self, partition: K) -> P | None:
        """Returns the parameters with which the partition is fetched; None if it is not fetched."""
        return self._wanted.get(partition)

    def forget(self, partition: K) -> None:
        """Stops fetching the partition."""
        if self._wanted.pop(partition, None) is not None:
            self._changed.pop(partition, None)
            if partition in self._in_session:
                self._forgotten[partition] = None

    def next_request(self) -> FetchSessionRequest[K, P]:
        """Returns the next request. Report its outcome to `on_response` or `on_failure` before the next call."""
        forgotten: tuple[K, ...] = ()
        if self._is_full:
            partitions = self._wanted.copy()
            self._in_session = set(partitions)
        else:
            partitions = {key: self._wanted[key] for key in self._changed}
            forgotten = tuple(self._forgotten)
            self._in_session.difference_update(forgotten)
            self._in_session.update(partitions)
        request = FetchSessionRequest(self._session_id, self._epoch, partitions, forgotten)
        self._changed.clear()
        self._forgotten.clear()
        return request

    @property
    def _is_full(self) -> bool:
        return self._epoch in (INITIAL_EPOCH, FINAL_EPOCH)

    def on_response(self, error: ErrorCode, session_id: int) -> None:
        """Takes `error` and `session_id` of the response as a whole; id 0 means that the broker keeps no session."""
        if error is ErrorCode.fetch_session_id_not_found:
            self._start_again(NO_SESSION)
        elif error is not ErrorCode.none:
            self._start_again(self._session_id)
        elif session_id == NO_SESSION:
            self._start_again(NO_SESSION)
        elif self._is_full:
            self._session_id, self._epoch = session_id, next_epoch(INITIAL_EPOCH)
        else:
            self._epoch = next_epoch(self._epoch)

    def on_failure(self) -> None:
        """Call it when no response arrived, or when a partition's answer was not applied, since the broker would not
        repeat it: the next request is full, and closes the session if it still exists."""
        self._start_again(self._session_id)

    def _start_again(self, session_to_close: int) -> None:
        self._session_id, self._epoch = session_to_close, INITIAL_EPOCH


@dataclass(slots=True)
class _CachedPartition(Generic[P]):
    """The parameters of a partition's last request, and the bounds in its last answer."""

    parameters: P
    high_watermark: int = -1
    log_start_offset: int = -1

    def must_respond(self, answer: SessionAnswer) -> bool:
        """Remembers the answer; returns True if it contains anything new. After an error every answer is new."""
        new = (
            bool(answer.records)
            or answer.error is not ErrorCode.none
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica != -1
            or (answer.high_watermark, answer.log_start_offset) != (self.high_watermark, self.log_start_offset)
        )
        failed = answer.error is not ErrorCode.none
        self.high_watermark = -1 if failed else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return new


@dataclass(slots=True)
class _Session(Generic[K, P]):
    id: int
    from_follower: bool
    by_id: bool
    created_ms: float
    used_ms: float
    epoch: int
    weight: int = 0
    """The sum of the weights of its partitions; 0 for a follower's session."""
    partitions: dict[K, _CachedPartition[P]] = field(default_factory=dict)


class FetchContext(Generic[K, P]):
    """One Fetch request: the partitions that it requests, and the answers that go into the response."""

    def __init__(
        self,
        error: ErrorCode,
        partitions: Mapping[K, P],
        session: _Session[K, P] | None,
        request: FetchSessionRequest[K, P],
    ) -> None:
        """Made by `FetchSessionCache.context`."""
        self.error = error
        """The error of the request as a whole; it then requests no partition."""
        self._partitions = partitions
        self._session = session
        self._request = request

    def __iter__(self) -> Iterator[tuple[K, P]]:
        """Yields every requested partition, in the order in which their records were last sent, the longest ago first.
        A partition of which only the bounds were sent, since the response had no space for its records, keeps its
        position."""
        if self._session is None or self._request.is_full:
            yield from self._partitions.items()
        else:
            for partition, cached in self._session.partitions.items():
                yield partition, cached.parameters

    @property
    def session_id(self) -> int:
        """The session's id; `NO_SESSION` without one."""
        return NO_SESSION if self._session is None else self._session.id

    @property
    def changed(self) -> Mapping[K, P]:
        """The partitions of this request that are new in the session or have other parameters; all of a full
        request."""
        return self._request.partitions

    def parameters(self, partition: K) -> P | None:
        """Returns the parameters of a partition that the session fetches; None if it does not fetch it."""
        if self._session is None:
            return self._partitions.get(partition)
        cached = self._session.partitions.get(partition)
        return None if cached is None else cached.parameters

    def response(self, answers: Mapping[K, A]) -> tuple[ErrorCode, int, dict[K, A]]:
        """Returns error, session id and the answers to send: all answers to a full request, the changed ones to an
        incremental one.
        """
        session = self._session
        if self.error is not ErrorCode.none or session is None:
            return self.error, NO_SESSION, dict(answers)
        if session.epoch != next_epoch(self._request.epoch):
            return ErrorCode.invalid_fetch_session_epoch, NO_SESSION, {}
        sent = {}
        for partition, answer in answers.items():
            cached = session.partitions.get(partition)
            if cached is None:
                continue
            new = cached.must_respond(answer)
            if new or self._request.is_full:
                sent[partition] = answer
                if answer.records and not self._request.is_full:
                    session.partitions[partition] = session.partitions.pop(partition)
        return ErrorCode.none, session.id, sent


class FetchSessionCache(Generic[K, P]):
    """The serving end: at most `max_sessions` of followers and consumers (`max.incremental.fetch.session.cache.slots`).

    When the cache is full, a new session replaces one that was not used for `eviction_ms`; else a follower's replaces a
    consumer's; else it replaces one with no more partitions that is older than `eviction_ms`. If there is none of
    these, the request is served without a session. `new_id` returns random positive numbers.

    A session can only be used by the kind of client, follower or consumer, that opened it. The partitions in consumers'
    sessions have a total weight of at most `most_consumed`: a request that needs more is served without a session, and
    a session that grows beyond it ends. `weight` returns a partition's weight: 1, or more if it takes more memory,
    since names of topics that do not exist may have any length.
    """

    def __init__(
        self,
        max_sessions: int,
        eviction_ms: float,
        new_id: Callable[[], int],
        most_consumed: int = MOST_CONSUMED,
        weight: Callable[[K], int] = lambda _: 1,
    ) -> None:
        self._most_consumed = most_consumed
        self._weight = weight
        self._consumed = 0
        """The weight of the sessions of consumers."""
        self._max_sessions = max_sessions
        self._eviction_ms = eviction_ms
        self._new_id = new_id
        self._sessions: dict[int, _Session[K, P]] = {}
        """Sessions by id, the least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def context(self, request: FetchSessionRequest[K, P], *, from_follower: bool, now_ms: float) -> FetchContext[K, P]:
        """Finds, creates, changes or ends the request's session."""
        if request.is_full:
            known = self._sessions.get(request.session_id)
            if known is not None and known.from_follower == from_follower:
                self._remove(known)
            session = None
            if (
                request.epoch == INITIAL_EPOCH
                and request.partitions
                and self._make_room(request, from_follower, now_ms)
            ):
                session = self._open(request, from_follower, now_ms)
            return FetchContext(ErrorCode.none, request.partitions, session, request)
        session = self._sessions.get(request.session_id)
        if session is None or session.from_follower != from_follower:
            return FetchContext(ErrorCode.fetch_session_id_not_found, {}, None, request)
        if session.epoch != request.epoch:
            return FetchContext(ErrorCode.invalid_fetch_session_epoch, {}, None, request)
        if session.by_id != request.by_id:
            return FetchContext(ErrorCode.fetch_session_topic_id_error, {}, None, request)
        self._change(session, request)
        if self._consumed > self._most_consumed and not from_follower:
            self._remove(session)
            return FetchContext(ErrorCode.fetch_session_id_not_found, {}, None, request)
        if not session.partitions:
            self._remove(session)
            return FetchContext(ErrorCode.none, {}, None, request)
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        return FetchContext(ErrorCode.none, {}, session, request)

    def end(self, session_id: int) -> None:
        """Ends a session whose client no longer exists."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._remove(session)

    def _remove(self, session: _Session[K, P]) -> None:
        del self._sessions[session.id]
        self._consumed -= session.weight

    def _open(self, request: FetchSessionRequest[K, P], from_follower: bool, now_ms: float) -> _Session[K, P]:
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        epoch = next_epoch(INITIAL_EPOCH)
        session: _Session[K, P] = _Session(session_id, from_follower, request.by_id, now_ms, now_ms, epoch)
        self._change(session, request)
        self._sessions[session_id] = session
        return session

    def _change(self, session: _Session[K, P], request: FetchSessionRequest[K, P]) -> None:
        weighed = 0
        for partition, parameters in request.partitions.items():
            cached = session.partitions.get(partition)
            if cached is None:
                session.partitions[partition] = _CachedPartition(parameters)
                weighed += self._weight(partition)
            else:
                cached.parameters = parameters
        for partition in request.forgotten:
            if session.partitions.pop(partition, None) is not None:
                weighed -= self._weight(partition)
        if not session.from_follower:
            session.weight += weighed
            self._consumed += weighed

    def _make_room(self, request: FetchSessionRequest[K, P], from_follower: bool, now_ms: float) -> bool:
        if not from_follower and self._consumed + sum(map(self._weight, request.partitions)) > self._most_consumed:
            return False
        if len(self._sessions) < self._max_sessions:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > self._eviction_ms:
            self._remove(oldest)
            return True
        evictable = [
            session
            for session in self._sessions.values()
            if (from_follower and not session.from_follower) or now_ms - session.created_ms > self._eviction_ms
        ]
        worth = (from_follower, len(request.partitions))
        least = min(evictable, key=lambda session: (session.from_follower, len(session.partitions)), default=None)
        if least is None or worth < (least.from_follower, len(least.partitions)):
            return False
        self._remove(least)
        return True
