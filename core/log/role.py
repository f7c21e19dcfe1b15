"""The role of a log: the appends that it accepts, checked under its lock (docs/replication.md, R11)."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_EPOCH: Final = -2
ANY_EPOCH: Final = -1


class LogRole(NamedTuple):
    """`leads`: the leader epoch in which clients' appends are accepted; `follows`: the one in which a follower may
    append and truncate; `mirrors`: the one in which the leader of a mirror may append and truncate. `NO_EPOCH`: none.
    `ANY_EPOCH`: any, for a log without replication."""

    leads: int = NO_EPOCH
    follows: int = NO_EPOCH
    mirrors: int = NO_EPOCH

    def may_lead(self, leader_epoch: int) -> bool:
        return self.leads in (leader_epoch, ANY_EPOCH)

    def may_follow(self, leader_epoch: int) -> bool:
        """Returns True if a follower, or a mirror's leader, may append. `ANY_EPOCH` is for a caller that owns the log,
        such as a tool or a test."""
        return leader_epoch in (self.follows, self.mirrors, ANY_EPOCH) or self.follows == ANY_EPOCH

    def __str__(self) -> str:
        if self.leads >= 0:
            return f"leads in epoch {self.leads}"
        if self.mirrors >= 0:
            return f"mirrors in epoch {self.mirrors}"
        return f"follows in epoch {self.follows}" if self.follows >= 0 else "has no role"


STANDALONE: Final = LogRole(ANY_EPOCH, ANY_EPOCH)
"""The role of a log to which no broker has given one."""
RESTING: Final = LogRole()
