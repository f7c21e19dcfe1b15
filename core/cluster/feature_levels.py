"""The features of a cluster (KIP-584): the names, and the levels that this release supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

REPLICATION: Final = "klamm.replication"
"""Brokers copy partitions; level 0: a partition has one replica."""
NOT_REPLICATED: Final = (
    f"the feature {REPLICATION} is at level 0 in this cluster: it is finalized once every live broker supports it, or "
    "by UpdateFeatures"
)


class Levels(NamedTuple):
    """A range of supported levels, both ends included. Level 0 means that a feature is not in use."""

    lowest: int
    highest: int


NONE: Final = Levels(0, 0)
"""The levels of a feature that a broker does not know."""
SUPPORTED: Final[Mapping[str, Levels]] = {REPLICATION: Levels(0, 1)}


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """The levels that are in use in the whole cluster, by name. `path_version`: of the path that holds them."""

    levels: Mapping[str, int] = field(default_factory=dict)
    path_version: int = 0

    def level(self, name: str) -> int:
        """Returns 0 for a feature that is not in use."""
        return self.levels.get(name, 0)


NO_FEATURES: Final = FinalizedFeatures()
