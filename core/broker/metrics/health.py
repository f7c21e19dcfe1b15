"""The health of a broker, as the endpoint returns it; `core/broker/health_check.py` finds it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .counters import BrokerState


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """`problems`: one line for each problem, by name."""

    broker_id: int
    state: BrokerState
    is_live: bool
    is_ready: bool
    problems: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(
            {
                "broker": self.broker_id,
                "state": self.state.value,
                "live": self.is_live,
                "ready": self.is_ready,
                "problems": self.problems,
            }
        )
