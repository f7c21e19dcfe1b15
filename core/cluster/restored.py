"""Notices a coordination that was restored from an older backup (docs/cluster.md, R13).

Its states name in-sync replicas that may have fallen behind since: if one of them led, the others would cut records
that were acknowledged. A broker that starts compares the last change of the metadata that it has seen with what the
coordination has. If it is not there, the broker makes `/admin/restored`, and the controller then takes every state for
doubted: a partition waits for all of its replicas, and the one whose log has the most leads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from uuid import uuid4

from ..errors import CoordinationError
from ..interfaces.coordination import Coordination, Create
from ..log.state.seen_metadata import SeenChange
from ..records.partition import TopicPartition, counted, some_of
from ..replication.registrations import DOUBTED
from .change_writer import ChangeWriter, Plan
from .changes import RING_SIZE, read_change
from .image import ClusterImage
from .image_reader import metadata_version, read_image
from .tree import paths
from .tree.nodes import RestoredNode
from .tree.steps import run_steps

_log = logging.getLogger(__name__)
_LOOK_S = 0.1


class RestoredError(CoordinationError):
    """The coordination is older than the logs, and others lead already by what it says."""


def is_older(coordination: Coordination, seen: SeenChange) -> bool:
    """Returns True if the coordination does not have the change `seen`; False as well if it has had so many changes
    since that it cannot tell."""
    version, by = metadata_version(coordination)
    if seen.version > version:
        return True
    if seen.version == version:
        return seen.by != by
    if version - seen.version >= RING_SIZE:
        return False
    change = run_steps(coordination, read_change(seen.version))
    return change is not None and change.by != seen.by


def highest_epoch(before: ClusterImage, now: ClusterImage) -> int:
    """Returns the highest leader epoch of the topics that differ; -1 if none does."""
    changed = (topic for name, topic in now.topics.items() if before.topics.get(name) is not topic)
    return max((each.leader_epoch for topic in changed for each in topic.partitions.values()), default=-1)


def check_history(
    coordination: Coordination,
    broker_id: int,
    seen: SeenChange | None,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Makes `/admin/restored` if the coordination is older than what this broker has seen. `sleep` waits for some
    seconds.

    Raises `RestoredError` if partitions of this broker have got leaders since the restore: they were elected by what
    the backup says, and this broker's logs would be cut to theirs. Such a state has a leader epoch that is higher than
    any that this broker has seen (it follows the clock), or a live leader. Leaders that the backup has as live are gone
    within one session time-out and a half, which this waits for.
    """
    if seen is None or not is_older(coordination, seen):
        return
    image = read_image(coordination)
    deadline = time.monotonic() + coordination.session_timeout_s * 1.5
    while _live_leaders(image, broker_id) and time.monotonic() < deadline:
        sleep(_LOOK_S)
        image = read_image(coordination)

    def plan(found: ClusterImage) -> Plan | None:
        elected = [*_live_leaders(found, broker_id), *_elected_since(found, broker_id, seen.leader_epoch)]
        if elected:
            raise _refusal(sorted(set(elected)))
        if found.restored:
            return None
        node = RestoredNode(broker=broker_id, seen=seen.version, found=found.version)
        return Plan(operations=[Create(paths.RESTORED, node.encode())])

    name = f"{broker_id}-{uuid4().hex}"
    ChangeWriter(coordination, lambda _: read_image(coordination), name).change(lambda _: [], plan, image)
    _log.error(
        "the coordination is older than this broker's logs (restored from a backup?): this broker has seen change "
        "%d of the metadata, the coordination was at %d; each partition waits for all of its replicas, and the one "
        "whose log has the most leads",
        seen.version, image.version,
    )  # fmt: skip


def _live_leaders(image: ClusterImage, broker_id: int) -> list[TopicPartition]:
    """Returns the partitions with a replica here that another live broker leads."""
    return [
        tp
        for tp, partition in image.partitions()
        if broker_id in partition.replicas
        and partition.leader != broker_id
        and (leader := image.registrations.get(partition.leader)) is not None
        and leader.epoch == partition.state.leader_broker_epoch
    ]


def _elected_since(image: ClusterImage, broker_id: int, leader_epoch: int) -> list[TopicPartition]:
    """Returns the partitions with a replica here whose leader epoch is higher than any that this broker has seen, but
    for those that wait for their replicas by this rule."""
    return [
        tp
        for tp, partition in image.partitions()
        if broker_id in partition.replicas
        and partition.leader_epoch > leader_epoch
        and DOUBTED not in partition.state.data_ids.values()
    ]


def _refusal(led: list[TopicPartition]) -> RestoredError:
    return RestoredError(
        f"the coordination is older than this broker's logs (restored from a backup?), and there are leaders of "
        f"{counted(len(led), 'partition')} ({some_of(led)}) that may lack records which are here: this broker does not "
        'join, and its logs stay as they are; see docs/cluster.md, "The coordination was restored"'
    )
