"""A partition that this broker leads, in one leader epoch: reads, appends that wait for the in-sync replicas, and
appends on condition that the log ends at an offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

from ...errors import BrokerError, ErrorCode, LogEndMovedError
from ...log.errors import FencedLeaderEpochError, OffsetOutOfRangeError, WouldBlockError
from ...log.partition_log import AppendResult, LogRead, ReadIsolation
from ...records.codecs import CodecTable
from ...records.offset_and_epoch import OffsetAndEpoch
from ...records.partition import TopicPartition
from ..replication.replica import Replica
from ..workers import Workers

COMMIT_TIMEOUT_S: Final = 5.0
"""Longest wait for the in-sync replicas (Kafka's `offsets.commit.timeout.ms`)."""


class LedLog:
    """Made and closed on the event loop; the other methods block, and are called on worker threads. They raise
    `BrokerError` NOT_LEADER_OR_FOLLOWER once the leader epoch is over."""

    def __init__(self, replica: Replica, workers: Workers, codecs: CodecTable) -> None:
        self.partition: TopicPartition = replica.name
        self.codecs = codecs
        self.leader_epoch = replica.leader_epoch
        self._replica = replica
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._begin = replica.log.log_end_offset
        self._running: set[Future[int]] = set()
        self._given_up: set[asyncio.Task[AppendResult]] = set()
        """Appends on worker threads that have not ended although their callers got a time-out."""
        self._closed = False

    @property
    def committed(self) -> bool:
        """True once all records of former leader epochs are below the high watermark; before that not all of them
        can be read."""
        return self._replica.log.high_watermark >= self._begin

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends the waits of running appends: the leader epoch is over, or the broker stops."""
        self._closed = True
        for running in tuple(self._running):
            running.cancel()

    def append(self, batch: bytearray) -> int:
        """Appends one batch under the leader epoch, waits until it is below the high watermark, and returns the offset
        after its last record.

        Raises `BrokerError` NOT_ENOUGH_REPLICAS (nothing was appended), NOT_ENOUGH_REPLICAS_AFTER_APPEND or
        REQUEST_TIMED_OUT (the batch is in the log, and may become visible later), and the errors of the log.
        """
        return self._run(batch, None)

    def append_at(self, offset: int, batch: bytearray) -> int | None:
        """Appends as `append` does if the log ends at `offset`; else appends nothing and returns None."""
        try:
            return self._run(batch, OffsetAndEpoch(offset))
        except LogEndMovedError:
            return None

    def _run(self, batch: bytearray, after: OffsetAndEpoch | None) -> int:
        running = asyncio.run_coroutine_threadsafe(self._append(batch, after), self._loop)
        self._running.add(running)
        try:
            if self._closed:
                running.cancel()
            return running.result(COMMIT_TIMEOUT_S * 2)
        except CancelledError as error:
            raise self._over() from error
        except TimeoutError as error:
            running.cancel()
            raise BrokerError(
                ErrorCode.request_timed_out, f"{self.partition}: an append has not ended after {COMMIT_TIMEOUT_S * 2} s"
            ) from error
        finally:
            self._running.discard(running)

    def read(self, offset: int, max_bytes: int, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK) -> LogRead:
        """Reads batches as far as `isolation` allows; at least one if there is any, no data outside of the log.
        `LOG_END` also returns batches that are not below the high watermark yet, and may never be."""
        if self._is_over():
            raise self._over()
        log = self._replica.log
        try:
            return log.read(offset, max_bytes, isolation=isolation)
        except OffsetOutOfRangeError:
            return LogRead(b"", log.high_watermark, log.log_start_offset, log.last_stable_offset)

    async def _append(self, batch: bytearray, after: OffsetAndEpoch | None) -> int:
        replica, epoch = self._replica, self.leader_epoch
        if replica.leader is None or self._is_over():
            raise self._over()
        if (refused := replica.partition.refusal(self.partition)) is not None:
            raise refused
        try:
            result = await self._stored(batch, after)
        except FencedLeaderEpochError as error:
            raise self._over() from error
        end = result.last_offset + 1
        if replica.commits_alone and replica.log.high_watermark < end:  # the topic shows flushed records only
            await self._workers.disk(replica.log.flush)
        failed = await replica.committed(epoch, end, COMMIT_TIMEOUT_S)
        if failed is not ErrorCode.none:
            raise BrokerError(failed, f"{self.partition}: a batch that ends at offset {end} is not committed")
        return end

    async def _stored(self, batch: bytearray, after: OffsetAndEpoch | None) -> AppendResult:
        while self._given_up:  # the sender of such a commit may have sent the next one: it must not be overtaken
            await asyncio.wait(self._given_up)
        replica, epoch, appends = self._replica, self.leader_epoch, self._workers.appends
        append, appended = replica.log.append_as_leader, partial(replica.appended, len(batch))
        if len(batch) > appends.on_loop_bytes and appends.needs_worker(len(batch)):
            return await self._to_its_end(self._workers.disk_then(appended, append, batch, epoch, after=after))
        try:
            result = append(batch, epoch, on_loop=True, commit=replica.commits_alone, after=after)
        except WouldBlockError:
            return await self._to_its_end(self._workers.disk_then(appended, append, batch, epoch, after=after))
        appended(result)
        return result

    async def _to_its_end(self, append: Coroutine[Any, Any, AppendResult]) -> AppendResult:
        running = self._loop.create_task(append)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._given_up.add(running)
            running.add_done_callback(self._given_up.discard)
            raise

    def _is_over(self) -> bool:
        return self._closed or self._replica.leader_epoch != self.leader_epoch

    def _over(self) -> BrokerError:
        return BrokerError(
            ErrorCode.not_leader_or_follower,
            f"{self.partition}: this broker does not lead it in epoch {self.leader_epoch} any more",
        )
