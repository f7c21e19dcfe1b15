"""Registrations of brokers under two paths: `/brokers/ids/<id>` and `/brokers/incarnations/<uuid>`.

Both are created and deleted in one transaction. Other transactions check the incarnation: the version of the broker's
own path starts at 0 with each registration, so it does not identify one.
"""

from __future__ import annotations

from ...interfaces.coordination import Create, Delete, Operation
from ...replication.registrations import BrokerRegistration
from ..changes import incarnation_path
from ..tree import paths


def state_of(*, leaving: bool, full: bool) -> str:
    """Returns the field `state`. A broker that is leaving counts as leaving even if its disk is full."""
    return "leaving" if leaving else "full" if full else "serving"


def register_operations(
    broker_id: int, incarnation: str, data: bytes, replaced: BrokerRegistration | None
) -> list[Operation]:
    """Returns the operations that create both paths. `replaced`: a registration of this broker's own earlier session,
    which is deleted with its incarnation."""
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
