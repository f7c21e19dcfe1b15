"""Runs a coordinator: one shard for each partition of its topic that this broker leads, loaded when it becomes the
leader and unloaded when it stops leading.

Rules. A request is served while this broker leads its key's partition in the leader epoch in which the shard was
loaded; else it gets NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS during the load (`loaded` waits for its end). A
shard is loaded once all records of former leader epochs are below the high watermark. A new leader epoch loads
again, also if this broker led before. The load of an epoch that is over ends without effect; one that failed is
repeated. Changes of leadership are noticed at each request and whenever `refresh` is called.

The names are those of Kafka's `CoordinatorRuntime` and `CoordinatorShard`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ...errors import BrokerError, ErrorCode, KlammError, describe_error
from ...records.codecs import CodecTable
from ..workers import Workers
from .coordinator_topic import CoordinatorTopic, LedRole
from .key_sequencer import KeySequencer
from .led_log import LedLog
from .shard_log import Replayed, ShardLog

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S = 0.1
_COMMITTED_POLL_S = 0.02


class Shard(Replayed, Protocol):
    """A coordinator's state of one partition, in one leader epoch. Made, loaded and unloaded on the event loop; its
    log calls `clear` and `apply` (see `Replayed`)."""

    async def load(self) -> None:
        """Reads the log and prepares the state that is served from then on. Cancelled if the leader epoch ends
        meanwhile. Raises `BrokerError` if this broker no longer leads; repeated after any other error."""
        ...

    def unload(self) -> None:
        """Drops the loaded state, and answers waiting requests with NOT_COORDINATOR."""
        ...


S = TypeVar("S", bound=Shard)


@dataclass(eq=False)
class _Led(Generic[S]):
    """One partition in one leader epoch. `active`: its shard is loaded and served."""

    role: LedRole
    log: LedLog
    shard: S
    active: bool = False
    load: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """True if the load has ended without success."""
        return not self.active and self.load is not None and self.load.done()


class CoordinatorRuntime(Generic[S]):
    """Belongs to the event loop. `make_shard` is called for each leader epoch, with the log of the partition;
    `on_loaded` with each shard that is served from then on."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        make_shard: Callable[[LedRole, ShardLog], S],
        workers: Workers,
        codecs: CodecTable,
        on_loaded: Callable[[S], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self._make_shard = make_shard
        self._workers = workers
        self._codecs = codecs
        self._on_loaded = on_loaded
        self._led: dict[int, _Led[S]] = {}
        self._turns = KeySequencer()
        self._stopped = False

    def refresh(self) -> None:
        """Compares the shards with the partitions that this broker leads now: starts loads, unloads shards."""
        if self._stopped:
            return
        roles = self.topic.roles()
        for number, led in list(self._led.items()):
            if roles.get(number) != led.role or led.failed:
                self._end(led)
                del self._led[number]
                led.shard.unload()
        for number, role in roles.items():
            if number not in self._led:
                self._begin(role)

    async def finish(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for calls that were started by `in_turn`."""
        await self._turns.stop(timeout_s)

    def stop(self) -> None:
        """Ends running loads and appends."""
        self._stopped = True
        for led in self._led.values():
            self._end(led)

    # -- for requests

    def refusal(self, key: str) -> ErrorCode | None:
        """Returns the error for a request about a key that is not served here now."""
        number = self.topic.partition_of(key)
        role = None if number is None else self.topic.role(number)
        led = self._of(key)
        if role != (None if led is None else led.role):
            self.refresh()
            led = self._of(key)
        if led is None:
            return ErrorCode.not_coordinator
        return None if led.active else ErrorCode.coordinator_load_in_progress

    async def loaded(self, key: str, timeout_s: float) -> None:
        """Waits at most `timeout_s` while the key's shard is loaded; call `refusal` afterwards."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.refusal(key) is ErrorCode.coordinator_load_in_progress and not self._stopped:
            led, left = self._of(key), deadline - loop.time()
            if left <= 0 or led is None or led.load is None:
                return
            if led.failed:  # the next `refresh` starts it again
                await asyncio.sleep(min(left, _RETRY_S))
            else:
                await asyncio.wait([led.load], timeout=left)

    def shard(self, key: str) -> S:
        """Returns the shard of a key that is served here. Raises `BrokerError` with the code of `refusal`."""
        refused, led = self.refusal(key), self._of(key)
        if refused is not None or led is None:
            raise BrokerError(refused or ErrorCode.not_coordinator, f"{key!r} is not coordinated here now")
        return led.shard

    def find(self, key: str, *, loading: bool = False) -> S | None:
        """Returns the key's shard without comparing it with the cluster; None if there is none. `loading`: also one
        that is being loaded."""
        led = self._of(key)
        return led.shard if led is not None and (led.active or loading) else None

    async def in_turn(self, key: str, call: Coroutine[Any, Any, T]) -> T:
        """Runs `call` after the earlier calls of its key have ended; it runs to its end even if the caller is
        cancelled."""
        return await asyncio.shield(self._turns.begin(key, call))

    @property
    def loading(self) -> bool:
        return any(not led.active for led in self._led.values())

    def active(self) -> Iterator[S]:
        """Returns the shards that are served now."""
        self.refresh()
        return (led.shard for led in tuple(self._led.values()) if led.active)

    def _of(self, key: str) -> _Led[S] | None:
        number = self.topic.partition_of(key)
        return None if number is None else self._led.get(number)

    # -- becoming and ceasing to be the leader

    def _begin(self, role: LedRole) -> None:
        replica = self.topic.replica(role)
        if replica is None:
            return
        led_log = LedLog(replica, self._workers, self._codecs)
        shard_log = ShardLog(led_log)
        shard = self._make_shard(role, shard_log)
        shard_log.replay_into(shard)
        led = self._led[role.number] = _Led(role, led_log, shard)
        led.load = asyncio.get_running_loop().create_task(self._load(led))
        led.load.add_done_callback(lambda task: _log_failure(led_log, task))

    def _end(self, led: _Led[S]) -> None:
        led.log.close()
        if led.load is not None:
            led.load.cancel()

    async def _load(self, led: _Led[S]) -> None:
        while not led.log.committed:
            await asyncio.sleep(_COMMITTED_POLL_S)
        try:
            await led.shard.load()
        except BrokerError as error:  # usually the leader epoch is over: the next `refresh` unloads the shard
            log.info("%s is not loaded: %s", led.log.partition, error)
            return
        if self._led.get(led.role.number) is led:
            led.active = True
            self._on_loaded(led.shard)


def _log_failure(led_log: LedLog, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, KlammError):
        log.warning("%s could not be loaded, retrying: %s", led_log.partition, error)
    elif error is not None:
        log.error("%s could not be loaded, retrying: %s", led_log.partition, describe_error(error))
