"""The paths that must exist before all others; the first broker of a cluster creates them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ...interfaces.coordination import Coordination, Create, NodeExistsError
from ..changes import RING_SIZE
from . import paths
from .nodes import ClusterIdNode, FeaturesNode, MetadataVersionNode, encode_uuid


def create_base_paths(coordination: Coordination, new_id: Callable[[], UUID]) -> None:
    """Creates the paths that are missing, the cluster id included; existing paths stay as they are."""
    wanted = dict.fromkeys(paths.PERSISTENT, b"")
    wanted |= {
        paths.CONTROLLER_EPOCH: b"0",
        paths.METADATA_VERSION: MetadataVersionNode().encode(),
        paths.FEATURES: FeaturesNode().encode(),
        paths.CLUSTER_ID: ClusterIdNode(id=encode_uuid(new_id())).encode(),
    }
    for path, data in wanted.items():
        if coordination.exists(path) is None:
            _create(coordination, path, data)
    present = set(coordination.children(paths.CHANGES))
    missing = [f"{paths.CHANGES}/{number}" for number in range(RING_SIZE) if str(number) not in present]
    if missing:
        _create_all(coordination, missing)


def _create_all(coordination: Coordination, missing: list[str]) -> None:
    try:
        coordination.transaction([Create(path) for path in missing])
    except NodeExistsError:
        for path in missing:
            _create(coordination, path, b"")


def _create(coordination: Coordination, path: str, data: bytes) -> None:
    try:
        coordination.create(path, data, make_parents=True)
    except NodeExistsError:
        return  # another broker created it first
