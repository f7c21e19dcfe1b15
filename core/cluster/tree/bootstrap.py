"""The paths that must exist before all others; the first broker of a cluster creates them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ...interfaces.coordination import Coordination, Create, NodeExistsError
from ..changes import RING_SIZE
from . import paths
from .nodes import ClusterIdNode, MetadataVersionNode, encode_uuid
from .steps import Steps, children, create_if_missing, get_many, run_steps, transact


def create_base_paths(coordination: Coordination, new_id: Callable[[], UUID]) -> None:
    """Creates the paths on the calling thread: see `base_paths`."""
    run_steps(coordination, base_paths(new_id))


def base_paths(new_id: Callable[[], UUID]) -> Steps[None]:
    """Creates the paths that are missing, the cluster id included; existing paths stay as they are."""
    wanted = dict.fromkeys(paths.PERSISTENT, b"")
    wanted |= {
        paths.CONTROLLER_EPOCH: b"0",
        paths.METADATA_VERSION: MetadataVersionNode().encode(),
        paths.CLUSTER_ID: ClusterIdNode(id=encode_uuid(new_id())).encode(),
    }
    there = yield from get_many(list(wanted))
    for path, data in wanted.items():
        if path not in there:
            yield from create_if_missing(path, data)
    present = set((yield from children(paths.CHANGES)))
    if len(present) == RING_SIZE:
        return
    missing = [f"{paths.CHANGES}/{number}" for number in range(RING_SIZE) if str(number) not in present]
    if not missing:
        return
    try:
        yield from transact(*(Create(path) for path in missing))
    except NodeExistsError:
        for path in missing:
            yield from create_if_missing(path, b"")
