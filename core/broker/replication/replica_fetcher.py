"""The follower's end of replication: one fetcher per leader broker copies its partitions here (Kafka's
`ReplicaFetcherThread`).

One Fetch is in flight at a time, in a fetch session, so that a request carries only partitions that have changed. A
partition that fails is left out for a while, and the others continue. The rules are those of `PartitionFollower`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from ...errors import ErrorCode, KlammError, NoSpaceError, ProtocolError, describe_error, describe_failure
from ...protocol.apis import ApiKey
from ...protocol.replica_fetch import (
    VERSION,
    PartitionAnswer,
    PartitionFetch,
    PartitionKey,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    read_replica_fetch_response,
)
from ...replication.fetch_sessions import FetchSessionHandler
from ...replication.follower import FetchResult, PartitionFollower
from ...replication.replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from ...transport.address import Address
from ..append_placement import LONG_NS
from ..workers import Workers
from .broker_link import BrokerLink
from .replica import Replica
from .throttles import ReplicationThrottles

_log = logging.getLogger(__name__)
_REDIALS_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
_LEAST_BACKOFF_S: Final = 0.02
_FULL_DISK_BACKOFF_S: Final = 5.0
"""Records that do not fit on a full disk are fetched again after this time at most, and at once when the disk has
space again."""
_OFFLINE_BACKOFF_S: Final = 5.0
"""An offline log is checked again after this time; it stays offline until it is opened again."""
_SILENCE_MS: Final = 4_000
_LONGEST_THROTTLED_S: Final = 1.0
"""A throttled partition is left out for at most this time, so that a higher rate takes effect soon."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's `replica.fetch.*` settings, in bytes and ms."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    response_max_bytes: int
    backoff_ms: int
    socket_timeout_ms: int

    @property
    def silence_s(self) -> float:
        """Seconds without a byte of an answer after which the fetcher connects again: a leader answers within
        `max_wait_ms`, and packets that were lost while a network was cut must not delay replication after it heals."""
        return min(self.socket_timeout_ms, self.max_wait_ms + _SILENCE_MS) / 1000


@dataclass(slots=True)
class _Fetched:
    """A partition that is fetched. `sent`: the request that was last sent to the leader."""

    replica: Replica
    follower: PartitionFollower
    sent: ReplicaFetch | None = None
    wanted_after: int = 0
    """The number of the last request that was built before `sent` was set: its answer does not answer `sent`
    (docs/replication.md, R9)."""
    failures: int = 0
    high_watermark: int = 0
    """The leader's high watermark in its last answer."""


class ReplicaFetcher:
    """Copies partitions from one broker. Belongs to the event loop.

    `address` returns the leader's host and port for each attempt to connect, None while it is not registered.
    `epoch` returns this broker's epoch. `on_lost` is called when the connection ends or cannot be made, `on_stale`
    when the leader's role or epoch is not what this broker has read.
    """

    def __init__(
        self,
        broker_id: int,
        leader: int,
        workers: Workers,
        settings: FetcherSettings,
        throttles: ReplicationThrottles,
        address: Callable[[], tuple[str, int] | None],
        epoch: Callable[[], int],
        on_lost: Callable[[int], None],
        on_stale: Callable[[], None],
    ) -> None:
        self.leader = leader
        self._broker_id = broker_id
        self._workers = workers
        self._settings = settings
        self._throttles = throttles
        self._address = address
        self._epoch = epoch
        self._on_lost = on_lost
        self._on_stale = on_stale
        self._fetched: dict[PartitionKey, _Fetched] = {}
        self._session: FetchSessionHandler[PartitionKey, PartitionFetch] = FetchSessionHandler()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        """The number of requests that were built."""

    def __len__(self) -> int:
        return len(self._fetched)

    @property
    def max_lag(self) -> int:
        """The largest number of records below its leader's high watermark that a partition lacks. May be read on any
        thread."""
        fetched = list(self._fetched.values())
        return max((max(0, each.high_watermark - each.replica.log.log_end_offset) for each in fetched), default=0)

    # -- the partitions --------------------------------------------------------------------------------------------

    def add(self, replica: Replica, follower: PartitionFollower) -> None:
        """Fetches a partition from now on, under the leader epoch of `follower`."""
        fetched = _Fetched(replica, follower)
        self._fetched[replica.key] = fetched
        self._want(replica.key, fetched)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def remove(self, key: PartitionKey) -> None:
        """Stops fetching a partition; an answer in flight is ignored."""
        if self._fetched.pop(key, None) is not None:
            self._session.forget(key)
            if not len(self._session):
                self._some.clear()

    def report_log_starts(self) -> None:
        """Reports to the leader, with the next Fetch, log starts that have risen since they were last reported.

        The request asks for the same records as before, so an answer in flight still counts. A partition that is
        left out reports its start when it is fetched again.
        """
        for key, fetched in self._fetched.items():
            wanted, start = self._session.parameters(key), fetched.replica.log.log_start_offset
            if wanted is not None and wanted.log_start_offset != start:
                self._session.want(key, wanted._replace(log_start_offset=start))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _want(self, key: PartitionKey, fetched: _Fetched) -> None:
        """Puts the partition's next fetch into the session. It is left out while the log is offline, or has records
        that it does not report yet."""
        if self._fetched.get(key) is not fetched:
            return
        replica = fetched.replica
        if replica.log.offline is not None:  # it must not count as one that has what it had
            self._leave_out(key, fetched, _OFFLINE_BACKOFF_S)
            return
        bucket = self._throttles.follower_bucket(replica)
        if bucket is not None and (wait_s := bucket.wait_s()):
            self._leave_out(key, fetched, min(wait_s, _LONGEST_THROTTLED_S))
            return
        fetch = fetched.follower.fetch(self._epoch())
        if fetch is None:
            self._leave_out(key, fetched, _LEAST_BACKOFF_S)
            return
        fetched.sent = fetch
        fetched.wanted_after = self._requests
        self._session.want(
            key,
            PartitionFetch(
                fetch.leader_epoch,
                fetch.fetch_offset,
                fetch.last_fetched_epoch,
                fetched.replica.log.log_start_offset,
                self._settings.max_bytes,
                fetch.epoch_ranges,
            ),
        )
        self._some.set()

    def _leave_out(self, key: PartitionKey, fetched: _Fetched, delay_s: float) -> None:
        self._session.forget(key)
        if not len(self._session):
            self._some.clear()
        self._loop.call_later(delay_s, self._want, key, fetched)

    def _back_off(self, key: PartitionKey, fetched: _Fetched, longest_s: float = 0.0) -> None:
        delay_s = min(_LEAST_BACKOFF_S * 2**fetched.failures, longest_s or self._settings.backoff_ms / 1000)
        fetched.failures = min(fetched.failures + 1, 10)
        self._leave_out(key, fetched, delay_s)

    # -- the connection --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures, said = 0, ""
        while True:
            await self._some.wait()
            await asyncio.sleep(_REDIALS_S[min(failures, len(_REDIALS_S) - 1)])
            try:
                await self._converse()
            except (OSError, EOFError, TimeoutError, KlammError) as error:
                failures += 1
                self._session.on_failure()
                if describe_failure(error) != said:
                    said = describe_failure(error)
                    _log.info("fetching from broker %d failed, retrying: %s", self.leader, said)
                self._on_lost(self.leader)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # it must go on, or these replicas would never be in sync again
                failures += 1
                self._session.on_failure()
                _log.exception("fetching from broker %d failed: %s", self.leader, describe_error(error))
            else:
                failures, said = 0, ""

    async def _converse(self) -> None:
        """Fetches over one connection until there is nothing more to fetch. Raises the error that ends the
        connection."""
        address = self._address()
        if address is None:
            raise ConnectionError(f"broker {self.leader} is not registered")
        connection = await BrokerLink.open(Address(*address), "replica", self._settings.silence_s)
        try:
            if connection.version(ApiKey.FETCH) != VERSION:
                raise ProtocolError(f"broker {self.leader} does not serve Fetch {VERSION}, which followers send")
            while len(self._session):
                await self._fetch_once(connection)
        finally:
            connection.close()

    async def _fetch_once(self, connection: BrokerLink) -> None:
        settings, request = self._settings, self._session.next_request()
        self._requests += 1
        body = ReplicaFetchRequest(
            self._broker_id, self._epoch(), settings.max_wait_ms, settings.min_bytes, settings.response_max_bytes,
            request.session_id, request.epoch, request.partitions, request.forgotten,
        ).encode()  # fmt: skip
        response: ReplicaFetchResponse = await connection.call(
            ApiKey.FETCH, lambda _: [body], decode=read_replica_fetch_response
        )
        self._session.on_response(response.error, response.session_id)
        if response.error is not ErrorCode.none:
            if response.error not in (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch):
                raise ProtocolError(f"broker {self.leader} refuses to be fetched from: {response.error.name.upper()}")
            return
        for key, answer in response.partitions.items():
            await self._take(key, answer)

    # -- the answers -----------------------------------------------------------------------------------------------

    async def _take(self, key: PartitionKey, answer: PartitionAnswer) -> None:
        fetched = self._fetched.get(key)
        if fetched is None or fetched.sent is None:
            return
        if fetched.wanted_after == self._requests:
            if answer.error is ErrorCode.none and answer.high_watermark > fetched.high_watermark:
                self._session.on_failure()  # the leader would not send this watermark again
            return
        if answer.error is ErrorCode.none:
            fetched.high_watermark = answer.high_watermark
        data = ReplicaFetchData(
            answer.error,
            None if answer.diverging is None else EpochEndOffset(*answer.diverging),
            answer.high_watermark,
            answer.log_start_offset,
            answer.records,  # type: ignore[arg-type]
        )
        appends, size = self._workers.appends, len(answer.records)
        log = fetched.replica.log
        try:
            if (
                (size > appends.on_loop_bytes and size and appends.needs_worker(size))
                or data.diverging_epoch is not None
                or log.flushes
                or answer.error is ErrorCode.offset_out_of_range
                or (size and 0 < log.log_start_offset == log.log_end_offset)  # it may restart within a batch
            ):
                result = await self._workers.bulk(fetched.follower.on_answer, fetched.sent, data)
            else:
                begun = monotonic_ns()
                result = fetched.follower.on_answer(fetched.sent, data)
                if monotonic_ns() - begun > LONG_NS:
                    appends.took_long()
        except NoSpaceError:  # `FullDisk` says so
            if self._fetched.get(key) is fetched:
                self._back_off(key, fetched, _FULL_DISK_BACKOFF_S)
            return
        except (KlammError, OSError) as error:  # of this log: the other partitions of the answer are taken
            if self._fetched.get(key) is fetched:
                _log.warning(
                    "%s: the records from broker %d are not stored: %s", fetched.replica.name, self.leader, error
                )
                self._back_off(key, fetched)
            return
        if self._fetched.get(key) is not fetched:
            return
        if size:
            fetched.replica.replicated(size)
            bucket = self._throttles.follower_bucket(fetched.replica)
            if bucket is not None:
                bucket.spend(size)
        fetched.replica.complete()
        if result is FetchResult.REFUSED:
            if answer.error in _STALE:
                self._on_stale()
            elif not fetched.failures:
                _log.info(
                    "%s: broker %d refuses the fetch at offset %d: %s",
                    fetched.replica.name, self.leader, fetched.sent.fetch_offset, answer.error.name.upper(),
                )  # fmt: skip
            self._back_off(key, fetched)
            return
        if result is not FetchResult.STALE:
            fetched.failures = 0
        self._want(key, fetched)


_STALE: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors of a leader that has not read the metadata yet, or has newer ones."""
