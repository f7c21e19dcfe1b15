"""The fetchers of this broker, one for each broker that leads partitions which this one follows (Kafka's
`ReplicaFetcherManager`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...cluster.image import EMPTY_IMAGE, ClusterImage
from ...protocol.replica_fetch import PartitionKey
from ...replication.follower import PartitionFollower
from ..workers import Workers
from .replica import Replica
from .replica_fetcher import FetcherSettings, ReplicaFetcher
from .throttles import ReplicationThrottles


class Fetchers:
    """Belongs to the event loop. The owner sets `image` to each image that it applies."""

    def __init__(
        self,
        broker_id: int,
        workers: Workers,
        settings: Callable[[], FetcherSettings],
        throttles: ReplicationThrottles,
        epoch: Callable[[], int],
        on_lost: Callable[[int], None],
        on_stale: Callable[[], None],
    ) -> None:
        """The callbacks are those of `ReplicaFetcher`."""
        self._broker_id = broker_id
        self._workers = workers
        self._settings = settings
        self._throttles = throttles
        self._epoch = epoch
        self._on_lost = on_lost
        self._on_stale = on_stale
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._of: dict[PartitionKey, tuple[ReplicaFetcher, PartitionFollower]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.image: ClusterImage = EMPTY_IMAGE

    def __len__(self) -> int:
        return len(self._of)

    @property
    def max_lag(self) -> int:
        """The largest number of records that a partition lacks, by its leader's last answer; 0 if none is fetched.
        May be read on any thread."""
        return max((fetcher.max_lag for fetcher in list(self._fetchers.values())), default=0)

    def add(self, replica: Replica, follower: PartitionFollower) -> None:
        """Fetches the partition from its leader; does nothing if it is fetched for this follower already."""
        known = self._of.get(replica.key)
        if known is not None and known[1] is follower:
            return
        self.remove(replica.key)
        fetcher = self._fetchers.get(follower.leader)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader] = ReplicaFetcher(
                self._broker_id,
                follower.leader,
                self._workers,
                self._settings(),
                self._throttles,
                lambda leader=follower.leader: self._address(leader),  # type: ignore[misc]
                self._epoch,
                self._on_lost,
                self._on_stale,
            )
        self._of[replica.key] = (fetcher, follower)
        fetcher.add(replica, follower)

    def remove(self, key: PartitionKey) -> None:
        """Stops fetching the partition."""
        known = self._of.pop(key, None)
        if known is None:
            return
        fetcher = known[0]
        fetcher.remove(key)
        if not len(fetcher) and self._fetchers.get(fetcher.leader) is fetcher:
            del self._fetchers[fetcher.leader]
            task = asyncio.get_running_loop().create_task(fetcher.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def report_log_starts(self) -> None:
        """Reports to the leaders the log starts that have risen; call it after retention."""
        for fetcher in self._fetchers.values():
            fetcher.report_log_starts()

    async def stop(self) -> None:
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._of.clear()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers), *self._ending)

    def _address(self, leader: int) -> tuple[str, int] | None:
        node = self.image.brokers.get(leader)
        if node is None:
            return None
        endpoint = node.inter_broker_endpoint
        return endpoint.host, endpoint.port
