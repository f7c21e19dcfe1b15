"""The second half of a topic's deletion: deletes its offsets in every group, in whichever store they are.

Rules (as Kafka's controller with `/admin/delete_topics`). The transaction that deletes a topic creates a marker with
its id; the marker is removed once no group has an offset of that topic any more. The controller does this right
after a deletion; when it starts or is elected it also finishes the deletions of a former controller, and retries
until the store has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_exponential

from ...cluster.cluster import Cluster
from ...cluster.image import ClusterImage
from ...errors import KlammError
from ...faults import fault_point
from ..workers import Workers

log = logging.getLogger(__name__)
_LONGEST_WAIT_S = 10.0

Forget = Callable[[Mapping[UUID, str]], Awaitable[None]]
"""Deletes all groups' offsets of these topics (their names by id); raises `KlammError` if a store cannot do it now."""


class TopicDeletions:
    """Belongs to the event loop."""

    def __init__(self, cluster: Cluster, workers: Workers, forget: Forget) -> None:
        self._cluster = cluster
        self._workers = workers
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._elected = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Finishes remaining deletions, now and whenever this broker is elected."""
        self._cluster.on_change(self._changed)
        self._wanted.set()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def finish(self) -> None:
        """Finishes remaining deletions; if the store fails, it is retried later."""
        try:
            await self._finish()
        except KlammError as error:
            log.warning("groups keep offsets of deleted topics for now: %s", error)
            self._wanted.set()

    async def _finish(self) -> None:
        async with self._one_at_a_time:
            deleted = await self._workers.coordination(self._cluster.deleted_topics)
            if deleted:
                await self._forget(deleted)
                fault_point("topics.forgotten")
            for topic_id, name in deleted.items():
                await self._workers.coordination(self._cluster.deletion_finished, topic_id)
                log.info("no group has an offset of the deleted topic %s any more", name)

    def _changed(self, _: ClusterImage) -> None:
        self._loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        if self._cluster.is_controller and not self._elected:
            self._wanted.set()
        self._elected = self._cluster.is_controller

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(KlammError),
                wait=wait_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
                before_sleep=before_sleep_log(log, logging.INFO),
            )
            await retrying(self._finish_as_controller)

    async def _finish_as_controller(self) -> None:
        if self._cluster.is_controller:
            await self._finish()
