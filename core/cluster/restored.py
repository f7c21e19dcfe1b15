"""Notices a coordination that was restored from an older backup (docs/replication.md, R13).

Its states name in-sync replicas that may have fallen behind since: if one of them led, the others would cut records
that were acknowledged. A broker that starts, or reads the metadata again, compares the last change that it has seen
with the coordination. If the change is missing, the broker creates `/admin/restored`, and the controller then doubts
every state: a partition waits for all of its replicas, and the one whose log has the most leads.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from ..errors import CoordinationError
from ..interfaces.coordination import Create
from ..log.state.seen_metadata import SeenChange
from ..records.partition import TopicPartition, counted, some_of
from ..replication.elections import has_live_leader
from ..replication.partition_state import PartitionState
from ..replication.registrations import DOUBTED, Registrations
from .change_writer import ChangeWriter, Plan, no_guard
from .changes import lacks_change
from .image import ClusterImage
from .image_reader import image_steps
from .tree import paths
from .tree.nodes import RestoredNode
from .tree.steps import Session, Steps, pause

_log = logging.getLogger(__name__)
_POLL_S = 0.1


class RestoredError(CoordinationError):
    """The coordination is older than the logs, and leaders were already elected by it."""


def is_older(seen: SeenChange) -> Steps[bool]:
    """Returns True if the coordination lacks the change `seen`; False, too, if it has had so many changes since that it
    can no longer be known."""
    return lacks_change(seen.version, seen.by)


def highest_epoch(before: ClusterImage, now: ClusterImage) -> int:
    """Returns the highest leader epoch of the topics that differ; -1 if none does."""
    return max((state.leader_epoch for _, state in now.changed_since(before)), default=-1)


def check_history(
    session: Session,
    broker_id: int,
    seen: SeenChange | None,
    name: str,
    monotonic: Callable[[], float] = time.monotonic,
    uniform: Callable[[float, float], float] = random.uniform,
    *,
    in_session: bool = False,
) -> Steps[bool]:
    """Creates `/admin/restored` if the coordination is older than what this broker has seen; returns whether it is.
    `name` is a unique name of that change. `in_session`: the backup has the session that this broker still has, and
    perhaps those of other running brokers: its live leaders are then from the time before the restore.

    Raises `RestoredError` if partitions of this broker have got leaders since the restore: they were elected by the
    backup's states, and this broker's logs would be cut to theirs. Such a state has a leader epoch above any that this
    broker has seen (it follows the clock), or a live leader. Leaders whose sessions are in the backup expire within one
    and a half session time-outs, for which this waits unless `in_session`.
    """
    if seen is None or not (yield from is_older(seen)):
        return False
    image = yield from image_steps()
    deadline = monotonic() + session.session_timeout_s * 1.5
    while not in_session and _live_leaders(image, broker_id) and monotonic() < deadline:
        yield from pause(_POLL_S)
        image = yield from image_steps()

    older = True

    def plan(found: ClusterImage) -> Steps[Plan | None]:
        nonlocal older
        older = yield from is_older(seen)  # again, now that the image was read: one read may have been old itself
        if not older:
            return None
        elected = _elected_since(found, broker_id, seen.leader_epoch)
        if not in_session:
            elected += _live_leaders(found, broker_id)
        if elected:
            raise _refusal(sorted(set(elected)))
        if found.restored is not None:
            return None
        node = RestoredNode(broker=broker_id, seen=seen.version, found=found.version, leader_epoch=seen.leader_epoch)
        return Plan(operations=[Create(paths.RESTORED, node.encode())])

    yield from ChangeWriter(session, lambda _: image_steps(), name, uniform).change(no_guard, plan, image)
    if not older:
        return False
    _log.error(
        "the coordination is older than this broker's logs (restored from a backup?): this broker has seen change "
        "%d of the metadata, the coordination was at %d; each partition waits for all of its replicas, and the one "
        "whose log has the most leads",
        seen.version, image.version,
    )  # fmt: skip
    return True


def _live_leaders(image: ClusterImage, broker_id: int) -> list[TopicPartition]:
    """Returns the partitions with a replica here that another live broker leads, except those that are about to be
    doubted, since another broker has noticed the restore: nobody takes a role by their states any more."""
    doubted = -1 if image.restored is None else image.restored
    return [
        tp
        for tp, partition in image.partitions()
        if broker_id in partition.replicas
        and partition.state.leader_epoch > doubted
        and is_led_by_another(partition.state, image.registrations, broker_id)
    ]


def elected_since(state: PartitionState, leader_epoch: int) -> bool:
    """Returns True if the state has a leader epoch above any that this broker has seen, and is not doubted."""
    return state.leader_epoch > leader_epoch and DOUBTED not in state.data_ids.values()


def is_led_by_another(state: PartitionState, registrations: Registrations, broker_id: int) -> bool:
    """Returns True if another live broker leads."""
    return state.leader != broker_id and has_live_leader(state, registrations)


def _elected_since(image: ClusterImage, broker_id: int, leader_epoch: int) -> list[TopicPartition]:
    return [
        tp
        for tp, partition in image.partitions()
        if broker_id in partition.replicas and elected_since(partition.state, leader_epoch)
    ]


def _refusal(led: list[TopicPartition]) -> RestoredError:
    return RestoredError(
        f"the coordination is older than this broker's logs (restored from a backup?), and there are leaders of "
        f"{counted(len(led), 'partition')} ({some_of(led)}) that may lack records which are here: this broker does not "
        'join, and its logs stay as they are; see docs/cluster.md, "The coordination was restored"'
    )
