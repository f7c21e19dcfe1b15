"""A job's staging directory: made, kept alive by a heartbeat, published in one rename, or swept when its job is dead.

Rules.
- A directory is dead when its heartbeat is older than `retention_s`; a live job beats far more often.
- The sweep first renames a dead directory and then removes it: a job that was suspended during its own sweep finds no
  `_job.json` in the directory that its late tasks may have created again, and publishes nothing.
- An error from the rename means that the outcome is unknown: the manifest at the target names the job of the load or
  generation.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from types import TracebackType

from klamm.core.errors import KlammError
from klamm.core.faults import fault_point

from ..lake.generations.generation import Generation, read_generation
from ..lake.layout import OWNER, TopicLayout
from ..lake.manifest import Manifest, read_manifest
from ..publishing.interface import LakeError, LakeReader, Publisher

_log = logging.getLogger(__name__)
_DEAD = ".dead"
_ALIVE = ".alive"
_ReadManifest = Callable[[LakeReader, TopicLayout, int], Manifest | Generation | None]


class LoadConflictError(KlammError):
    """Another job published this number first; nothing of this job is visible, and it can be run again."""


class Staging:
    """The staging directory of one job and topic. A context manager: leaving it removes the directory unless it was
    published.
    """

    def __init__(self, publisher: Publisher, layout: TopicLayout, job_id: str, beat_s: float = 15.0) -> None:
        self._publisher = publisher
        self._layout = layout
        self._job_id = job_id
        self._beat_s = beat_s
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat_on, name=f"staging-{job_id[:8]}", daemon=True)
        self.path = layout.staging(job_id)

    def __enter__(self) -> Staging:
        self._publisher.make(self._layout.staging_root)
        self._beat()
        self._publisher.make(self.path)
        self._publisher.write(f"{self.path}/{OWNER}", json.dumps({"job_id": self._job_id}).encode())
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._heart.join()
        try:
            self._publisher.remove(self.path)
            self._publisher.remove(self._layout.heartbeat(self._job_id))
        except LakeError as error:
            # The load is published, or an earlier error says why not: this error must hide neither.
            _log.warning("%s: a later sweep removes the rest of job %s: %s", self._layout.topic, self._job_id, error)

    def publish(self, number: int) -> None:
        """Publishes as load `number`. Raises `LoadConflictError` when another job has that number."""
        self._publish(f"load {number}", self._layout.load(number), read_manifest, number)

    def publish_generation(self, number: int) -> None:
        """Publishes as generation `number`. Raises `LoadConflictError` when another compaction has that number."""
        self._publisher.make(self._layout.generations_root)
        self._publish(f"generation {number}", self._layout.generation(number), read_generation, number)

    def _publish(self, what: str, target: str, read: _ReadManifest, number: int) -> None:
        if self._publisher.read(f"{self.path}/{OWNER}") is None:
            raise LakeError(f"{self.path} was swept as a dead job's; nothing is published, run it again")
        try:
            self._publisher.publish(self.path, target)
        except Exception:  # the outcome is unknown, whatever the error: read the target
            found = read(self._publisher, self._layout, number)
            if found is None:
                raise
            if found.job_id != self._job_id:
                raise LoadConflictError(
                    f"{what} of {self._layout.topic} was published by job {found.job_id} meanwhile; "
                    f"this job {self._job_id} publishes nothing: run it again"
                ) from None

    def _beat(self) -> None:
        self._publisher.write(self._layout.heartbeat(self._job_id), b"")

    def _beat_on(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                self._beat()
            except LakeError:
                # A lake that stays unavailable fails the job itself; one missed heartbeat must not.
                continue


def bury(publisher: Publisher, layout: TopicLayout, path: str) -> bool:
    """Moves a directory out of sight in one rename, and then removes it; returns False if another process moved it
    first. After a crash between the two, the next sweep removes it."""
    grave = f"{layout.staging_root}/{path.rpartition('/')[2]}.{uuid.uuid4().hex}{_DEAD}"
    publisher.make(layout.staging_root)
    if not publisher.move(path, grave):
        return False
    fault_point("gc.moved")
    publisher.remove(grave)
    return True


def dead(publisher: Publisher, layout: TopicLayout, retention_s: float) -> list[str]:
    """Returns the names below `_staging` that a sweep would remove: directories of dead jobs, and remains of swept
    ones.
    """
    names = publisher.names(layout.staging_root)
    return [name for name in names if _is_dead(publisher, layout, name, names, retention_s)]


def sweep(publisher: Publisher, layout: TopicLayout, retention_s: float) -> list[str]:
    """Removes the staging directories of dead jobs, never that of a live job; returns the removed ids."""
    swept = []
    publisher.tidy(layout.staging_root, retention_s)
    for name in dead(publisher, layout, retention_s):
        path = f"{layout.staging_root}/{name}"
        if name.endswith((_DEAD, _ALIVE)):
            publisher.remove(path)
        elif publisher.move(path, path + _DEAD):
            publisher.remove(path + _DEAD)
            publisher.remove(layout.heartbeat(name))
            swept.append(name)
    return swept


def _is_dead(publisher: Publisher, layout: TopicLayout, name: str, names: list[str], retention_s: float) -> bool:
    if name.endswith(_DEAD):
        return True
    if name.endswith(_ALIVE):
        return name.removesuffix(_ALIVE) not in names and _older(
            publisher, f"{layout.staging_root}/{name}", retention_s
        )
    return _older(publisher, layout.heartbeat(name), retention_s)


def _older(publisher: Publisher, path: str, seconds: float) -> bool:
    """Returns True if the file is older than `seconds`. A missing heartbeat counts as old: it is written before the
    directory is created.
    """
    age = publisher.age_s(path)
    return age is None or age > seconds
