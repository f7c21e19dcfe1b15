"""Plants for a driver: each disables a mechanism of the load, so that a fault does harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.manifest import Manifest, load_numbers, read_manifest
from klamm.hadoop.load import job, staging
from klamm.hadoop.publishing import hdfs
from klamm.hadoop.publishing.interface import LakeReader, Publisher


def plant(what: str) -> None:
    """Plants `what`, a name of `PLANTS`."""
    PLANTS[what]()


def unplant() -> None:
    """Removes what was planted."""
    patch.stopall()


def _replace(owner: object, name: str, by: object) -> None:
    patch.object(owner, name, by).start()


def _offsets_apart() -> None:
    """Stores the offsets after the data, in a second step, as a group's commit would be."""
    stored: dict[str, Manifest] = {}
    last = job.last_manifest

    def forgetful(reader: LakeReader, layout: TopicLayout) -> Manifest | None:
        """Returns the offsets of the load before the newest, with the number of the newest."""
        newest = last(reader, layout)
        numbers = load_numbers(reader, layout)
        if newest is None or len(numbers) < 2 or stored:
            return newest
        before = read_manifest(reader, layout, numbers[-2])
        assert before is not None
        stored[layout.topic] = before
        return before.model_copy(update={"load": newest.load})

    _replace(job, "last_manifest", forgetful)


def _in_sight() -> None:
    """Lets the job write where readers see it."""
    path = TopicLayout.load

    def staged(layout: TopicLayout, job_id: str) -> str:
        number = int(time.time())  # an unused number
        return path(layout, number)

    _replace(TopicLayout, "staging", staged)


def _not_read_back() -> None:
    """Takes an error of the rename for a failure, without reading the target."""

    def publish(self: Any, what: str, target: str, owner: Callable[[], str | None]) -> None:
        self._publisher.publish(self.path, target)

    _replace(staging.Staging, "_publish", publish)


def _next_number() -> None:
    """Lets a job that finds its number taken use the next one."""
    publish = staging.Staging.publish

    def insisting(self: staging.Staging, number: int) -> None:
        while True:
            try:
                publish(self, number)
            except staging.LoadConflictError:
                number += 1
            else:
                return

    _replace(staging.Staging, "publish", insisting)


def _own_clock() -> None:
    """Measures ages by the driver's clock."""
    _replace(hdfs, "_now_ms", lambda hdfs, path: int(time.time() * 1000))


def _blind() -> None:
    """Ignores a manifest that cannot be read: the load begins at 0."""
    last = job.last_manifest

    def careless(reader: Publisher, layout: TopicLayout) -> Manifest | None:
        try:
            return last(reader, layout)
        except staging.LakeError:
            numbers = load_numbers(reader, layout)
            found = read_manifest(reader, layout, numbers[0])
            assert found is not None
            return found.model_copy(update={"load": numbers[-1]})

    _replace(job, "last_manifest", careless)


PLANTS: dict[str, Callable[[], None]] = {
    "offsets-apart": _offsets_apart,
    "in-sight": _in_sight,
    "not-read-back": _not_read_back,
    "next-number": _next_number,
    "own-clock": _own_clock,
    "blind": _blind,
}
