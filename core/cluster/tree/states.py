"""Partition states as this release and those before replication wrote them.

A state of version 1 has no broker epoch, data ids and eligible replicas. Its members' data ids are unknown
(`UNKNOWN_DATA`) until the controller presumes that each live member still has the data that it had when the state was
written. Nothing better is possible, since the state does not name that data. The presumption is right unless a log
directory was replaced or lost records between the last start of the older release and the first of this one; a
directory that lacks logs which the cluster has on it is found by the broker itself, which then does not start
(`core.log.recovery.missing_logs`). An absent member keeps unknown data and its membership, and is judged in the same
way when it is back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...errors import CoordinationError
from ...replication.partition_state import NO_EPOCH, PartitionState
from ...replication.registrations import Registrations
from .nodes import PartitionStateNode

UNKNOWN_DATA: Final = ""
"""The data id of a member of a version 1 state, and of a broker of an older release."""


def decode_state(path: str, data: bytes) -> PartitionState:
    """Decodes a state of version 1 or later. Raises `CoordinationError`, which names the path, if the data is none."""
    try:
        version = json.loads(data)["version"]
    except (ValueError, KeyError, TypeError):
        version = None
    if version != 1:
        return PartitionState.decode(path, data)
    try:
        node = PartitionStateNode.decode(path, data)
    except CoordinationError as error:
        raise CoordinationError(f"{path} holds no partition state: {error}") from error
    unknown = dict.fromkeys(node.isr, UNKNOWN_DATA)
    return PartitionState(node.leader, node.leader_epoch, NO_EPOCH, node.isr, (), unknown, node.controller_epoch)


def has_unknown_data(state: PartitionState) -> bool:
    return UNKNOWN_DATA in state.data_ids.values()


def with_presumed_data(state: PartitionState, registrations: Registrations) -> PartitionState:
    """Returns the state with the unknown data ids of live members replaced by those of their registrations."""
    if not has_unknown_data(state):
        return state
    return replace(state, data_ids=_presumed(state.data_ids, registrations))


def _presumed(data_ids: Mapping[int, str], registrations: Registrations) -> dict[int, str]:
    return {
        member: registrations[member].data_id if data_id == UNKNOWN_DATA and member in registrations else data_id
        for member, data_id in data_ids.items()
    }
