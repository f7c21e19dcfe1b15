"""The number of offsets or rows, and a hash sum that distinguishes sets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class OffsetTally:
    """`digest` is the sum of a 64-bit hash of each offset or row, so that parts can be added in any order. Two
    multisets with equal count and digest are the same, except with a probability of 1 in 2^64."""

    count: int = 0
    digest: int = 0

    @classmethod
    def of(cls, offsets: Offsets) -> OffsetTally:
        """Returns the tally of these offsets."""
        return cls(len(offsets), int(mixed(offsets).sum(dtype=np.uint64)))

    def __add__(self, other: OffsetTally) -> OffsetTally:
        return OffsetTally(self.count + other.count, (self.digest + other.digest) & _MASK)


def mixed(numbers: Offsets) -> npt.NDArray[np.uint64]:
    """Spreads each number over 64 bits: SplitMix64's finalizer."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Tallies = dict[int, OffsetTally]
"""Tallies by partition."""


def add(to: Tallies, more: Mapping[int, OffsetTally]) -> None:
    for partition, tally in more.items():
        to[partition] = to.get(partition, OffsetTally()) + tally
