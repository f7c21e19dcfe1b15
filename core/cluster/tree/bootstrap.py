"""The paths that must exist before all others; the first broker of a cluster creates them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ...interfaces.coordination import Coordination, NodeExistsError
from . import paths
from .nodes import ClusterIdNode, MetadataVersionNode, encode_uuid


def create_base_paths(coordination: Coordination, new_id: Callable[[], UUID]) -> None:
    """Creates the paths that are missing, the cluster id included; existing paths stay as they are."""
    wanted = dict.fromkeys(paths.PERSISTENT, b"")
    wanted |= {
        paths.CONTROLLER_EPOCH: b"0",
        paths.METADATA_VERSION: MetadataVersionNode().encode(),
        paths.CLUSTER_ID: ClusterIdNode(id=encode_uuid(new_id())).encode(),
    }
    for path, data in wanted.items():
        if coordination.exists(path) is not None:
            continue
        try:
            coordination.create(path, data, make_parents=True)
        except NodeExistsError:
            continue  # another broker created it first
