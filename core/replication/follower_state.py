"""The leader's state of one follower (Kafka's `Replica` and `ReplicaState`)."""

from __future__ import annotations

from dataclasses import dataclass

from .replica_fetch import ReplicaFetch

NEVER = float("-inf")
UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class FollowerState:
    """Updated by each valid Fetch of the follower. Times are monotonic milliseconds."""

    log_end_offset: int = UNKNOWN_OFFSET
    """The offset of the follower's last Fetch: it has every record below."""
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = -1
    """The broker epoch in its last Fetch; -1 if it has not fetched since it left the ISR."""
    last_caught_up_ms: float = NEVER
    _last_fetch_ms: float = NEVER
    _leader_end_at_last_fetch: int = UNKNOWN_OFFSET

    def fetched(self, fetch: ReplicaFetch, leader_end_offset: int, now_ms: float) -> None:
        """Records a Fetch. The follower is caught up now if it fetches at the leader's log end. It was caught up at the
        time of its previous Fetch if it now fetches at the log end of that time."""
        if fetch.fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch.fetch_offset >= self._leader_end_at_last_fetch >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._last_fetch_ms)
        self.log_end_offset = fetch.fetch_offset
        self.log_start_offset = fetch.log_start_offset
        self.broker_epoch = fetch.replica_epoch
        self._leader_end_at_last_fetch = leader_end_offset
        self._last_fetch_ms = now_ms

    def left_isr(self) -> None:
        """Resets the state, so that the follower joins again only after another Fetch: earlier ones do not show that it
        still fetches."""
        self.broker_epoch = -1

    def is_caught_up(self, leader_end_offset: int, now_ms: float, max_lag_ms: float) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms
