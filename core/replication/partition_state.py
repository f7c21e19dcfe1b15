"""A partition's state in the coordination, `…/partitions/<n>/state`, and how its members change (docs/replication.md,
R6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..errors import CoordinationError

NO_LEADER: Final = -1
NO_EPOCH: Final = -1
STATE_VERSION: Final = 2
"""The version of the layout; version 1, Kafka's, has no broker epoch, data ids and ELR."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Leader, in-sync replicas and eligible leader replicas (KIP-966) of a partition.

    Invariants: `isr` is never empty; `isr` and `elr` share no member; `data_ids` has an entry for each member of both.
    """

    leader: int
    leader_epoch: int
    leader_broker_epoch: int
    """The broker epoch of the registration that leads; another registration of the same broker does not lead (R1, R8).
    """
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    data_ids: Mapping[int, str]
    """By member: the id of the data that holds every committed record."""
    controller_epoch: int
    mirror: str = ""
    """The link whose source the leader copies; empty for a partition that clients write (docs/mirror.md, M3). It
    changes only together with the leader epoch."""

    promoted_epoch: int = NO_EPOCH
    """The leader epoch that ended the last mirror; -1 if the partition was none. What is older is another cluster's."""

    @property
    def members(self) -> tuple[int, ...]:
        return self.isr + self.elr

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": STATE_VERSION,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "leader_broker_epoch": self.leader_broker_epoch,
                "isr": self.isr,
                "elr": self.elr,
                "data_ids": {str(member): data_id for member, data_id in self.data_ids.items()},
                "controller_epoch": self.controller_epoch,
                **({"mirror": self.mirror} if self.mirror else {}),
                **({"promoted_epoch": self.promoted_epoch} if self.promoted_epoch != NO_EPOCH else {}),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> PartitionState:
        """Decodes the state. Raises `CoordinationError`, which names the path, if the data is not a partition state.
        Unknown fields are ignored.
        """
        try:
            found = json.loads(data)
            return cls(
                leader=int(found["leader"]),
                leader_epoch=int(found["leader_epoch"]),
                leader_broker_epoch=int(found["leader_broker_epoch"]),
                isr=tuple(int(member) for member in found["isr"]),
                elr=tuple(int(member) for member in found["elr"]),
                data_ids={int(member): str(data_id) for member, data_id in found["data_ids"].items()},
                controller_epoch=int(found["controller_epoch"]),
                mirror=str(found.get("mirror", "")),
                promoted_epoch=int(found.get("promoted_epoch", NO_EPOCH)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CoordinationError(f"{path} holds no partition state: {error!r}") from error


def with_isr(
    state: PartitionState, isr: tuple[int, ...], added: Mapping[int, str], min_insync_replicas: int
) -> PartitionState:
    """Returns the state with other in-sync replicas and the same leader. `added`: the data ids of the new members."""
    elr = next_elr(isr, state.elr, [member for member in state.isr if member not in isr], min_insync_replicas)
    data_ids = {member: added[member] if member in added else state.data_ids[member] for member in isr + elr}
    return replace(state, isr=isr, elr=elr, data_ids=data_ids)


def next_elr(
    isr: tuple[int, ...], elr: Iterable[int], removed: Iterable[int], min_insync_replicas: int
) -> tuple[int, ...]:
    """Returns the eligible leader replicas beside `isr`, after `removed` have left it.

    While the ISR is below the minimum, the high watermark does not rise, so that members that left have every committed
    record. Once the ISR reaches the minimum, the watermark rises and they fall behind.
    """
    if len(isr) >= min_insync_replicas:
        return ()
    return tuple(dict.fromkeys(member for member in (*elr, *removed) if member not in isr))
