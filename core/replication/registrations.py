"""The registrations of live brokers, and what a registered broker's data is worth to a partition (R7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

DOUBTED: Final = "?"
"""The data id, in a state, of a replica that is to be compared with all others: nobody knows which records it had,
since the coordination was restored from an older backup."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker's registration.

    `epoch` grows with every registration (the creation id of its path). `incarnation` names the registration: it is a
    separate path that a transaction can check. `data_ids` are those of its log directory, newest first. `full`: its
    disk has no room, so that it stores no more records; it serves those that it has.
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
        """True if the broker may join an ISR (R4), and is to lead rather than one that may not."""
        return not self.leaving and not self.full


Registrations = Mapping[int, BrokerRegistration]
"""The live brokers by id, read after the states that are judged by them (R10)."""


class Standing(Enum):
    """The worth of a member of an ISR or ELR, by its data."""

    SOUND = "sound"
    """Registered, and its newest data id is the one in the state: it has all records that it had."""
    ABSENT = "absent"
    """Not registered; presumed to have all records that it had."""
    DOUBTFUL = "doubtful"
    """Registered with data that descends from that in the state: it may have lost a suffix. Also of every replica whose
    data in the state are `DOUBTED`."""
    NEW = "new"
    """Registered with other data: it has lost everything."""


def standing(registration: BrokerRegistration | None, data_id: str | None) -> Standing:
    """Returns the standing of the member whose data id in the partition's state is `data_id`."""
    if registration is None:
        return Standing.ABSENT
    if registration.data_id == data_id:
        return Standing.SOUND
    return Standing.DOUBTFUL if data_id == DOUBTED or data_id in registration.data_ids else Standing.NEW
