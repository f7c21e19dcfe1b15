"""The role of a log: the appends that it accepts, checked under its lock (R11)."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_EPOCH: Final = -2
ANY_EPOCH: Final = -1


class LogRole(NamedTuple):
    """`leads`: the leader epoch in which clients' appends are accepted; `follows`: that in which a follower may append
    and truncate. `NO_EPOCH`: in none. `ANY_EPOCH`: in any, for a log without replication."""

    leads: int = NO_EPOCH
    follows: int = NO_EPOCH

    def may_lead(self, leader_epoch: int) -> bool:
        return self.leads in (leader_epoch, ANY_EPOCH)

    def may_follow(self, leader_epoch: int) -> bool:
        """`ANY_EPOCH` stands for a caller that owns the log, as tools and tests do."""
        return self.follows in (leader_epoch, ANY_EPOCH) or leader_epoch == ANY_EPOCH

    def __str__(self) -> str:
        if self.leads >= 0:
            return f"leads in epoch {self.leads}"
        return f"follows in epoch {self.follows}" if self.follows >= 0 else "has no role"


STANDALONE: Final = LogRole(ANY_EPOCH, ANY_EPOCH)
"""The role of a log that no broker has given one."""
RESTING: Final = LogRole()
