"""The registrations of live brokers, and what a registered broker's data is worth to a partition (docs/replication.md,
R7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

DOUBTED: Final = "?"
"""The data id, in a state, of a replica that must be compared with all others: the coordination was restored from an
older backup, so the records that the replica had are unknown."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker's registration.

    `epoch` grows with every registration (the creation id of its path). `incarnation` names the registration: a
    separate path that a transaction can check. `data_ids` are those of its log directory, newest first. `full`: its
    disk is full; it stores no more records and serves those that it has.
    """

    broker_id: int
    epoch: int
    incarnation: str
    data_ids: tuple[str, ...]
    leaving: bool = False
    full: bool = False

    @property
    def data_id(self) -> str:
        return self.data_ids[0]

    @property
    def takes_records(self) -> bool:
        """True if the broker may join an ISR (R4). Such brokers are preferred as leaders."""
        return not self.leaving and not self.full


Registrations = Mapping[int, BrokerRegistration]
"""The live brokers by id, read after the states that are judged by them (R10)."""


class Standing(Enum):
    """What a member of an ISR or ELR has, judged by its data id."""

    SOUND = "sound"
    """Registered, and its newest data id is the one in the state: it has lost nothing."""
    ABSENT = "absent"
    """Not registered; presumed to have lost nothing."""
    DOUBTFUL = "doubtful"
    """Registered with data that descends from that in the state: it may have lost its last records. Also every replica
    whose data id in the state is `DOUBTED`."""
    NEW = "new"
    """Registered with other data: it has lost everything."""


def standing(registration: BrokerRegistration | None, data_id: str | None) -> Standing:
    """Returns the standing of the member whose data id in the partition's state is `data_id`."""
    if registration is None:
        return Standing.ABSENT
    if registration.data_id == data_id:
        return Standing.SOUND
    return Standing.DOUBTFUL if data_id == DOUBTED or data_id in registration.data_ids else Standing.NEW
