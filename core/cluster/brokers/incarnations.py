"""Registrations of brokers under two paths: `/brokers/ids/<id>` and `/brokers/incarnations/<uuid>`.

Both are created and deleted in one transaction. Other transactions check the incarnation: the version of the broker's
own path begins at 0 with each registration, and so does not identify it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from ...errors import CoordinationError
from ...interfaces.coordination import Create, Delete, Operation
from ...replication.registrations import BrokerRegistration
from ..changes import incarnation_path
from ..tree import paths
from ..tree.steps import Steps, children, find


class FoundRegistration(NamedTuple):
    """A registration and the session that holds it."""

    registration: BrokerRegistration
    session_id: int


def registration_fields(
    incarnation: str, data_ids: tuple[str, ...], *, leaving: bool, full: bool = False
) -> dict[str, object]:
    """Returns the fields of `/brokers/ids/<id>` that `BrokerIdNode` does not have."""
    return {"incarnation": incarnation, "data": list(data_ids), "state": state_of(leaving=leaving, full=full)}


def state_of(*, leaving: bool, full: bool) -> str:
    """Returns the field `state`. A broker that leaves is not asked whether it has room."""
    return "leaving" if leaving else "full" if full else "serving"


def register_operations(
    broker_id: int, incarnation: str, data: bytes, replaced: BrokerRegistration | None
) -> list[Operation]:
    """`replaced`: a registration of this broker's own earlier session, which is deleted with its incarnation."""
    path = paths.broker(broker_id)
    return [
        *(_delete_operations(replaced) if replaced is not None else ()),
        Create(path, data, ephemeral=True),
        Create(incarnation_path(incarnation), ephemeral=True),
    ]


def evict_operations(registration: BrokerRegistration) -> list[Operation]:
    """Returns the operations that end a registration, but no later one of the same broker."""
    return list(_delete_operations(registration))


def _delete_operations(registration: BrokerRegistration) -> tuple[Operation, ...]:
    return Delete(incarnation_path(registration.incarnation)), Delete(paths.broker(registration.broker_id))


def read_registration(broker_id: int) -> Steps[FoundRegistration | None]:
    path = paths.broker(broker_id)
    found = yield from find(path)
    if found is None:
        return None
    data, stat = found
    try:
        registration = _decode(broker_id, stat.creation_id, data)
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinationError(f"{path} holds no registration: {error!r}") from error
    return FoundRegistration(registration, stat.ephemeral_owner)


@lru_cache(maxsize=1024)
def _decode(broker_id: int, epoch: int, data: bytes) -> BrokerRegistration:
    """All registrations are read again after each change of the metadata, and are mostly the same as before."""
    node = json.loads(data)
    registration = BrokerRegistration(
        broker_id,
        epoch,
        str(node["incarnation"]),
        tuple(str(data_id) for data_id in node["data"]),
        leaving=node.get("state") == "leaving",
        full=node.get("state") == "full",
    )
    if not registration.data_ids:
        raise ValueError("no data id")
    return registration


def read_registrations() -> Steps[dict[int, BrokerRegistration]]:
    """Reads the live brokers; one that registers or leaves during the read may be missed, and the watch then reports
    it.
    """
    found = {}
    for name in (yield from children(paths.BROKER_IDS)):
        registration = yield from read_registration(int(name))
        if registration is not None:
            found[registration.registration.broker_id] = registration.registration
    return found
