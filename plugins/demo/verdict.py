"""The last line of the demo: every number in it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    """`produced`: acknowledged flights, by the keys that the producers recorded. `consumed`: distinct (partition,
    offset) that the group's members got. `mirrored`: records in the log of the offline broker. `loaded`: rows of the
    lake. `missing` and `duplicated` compare the multiset of the keys acknowledged with the lake's. `lowest`: the lowest
    completeness over all windows and tiers; None when one is unknown. `audited`: what `klamm audit` says. `differing`:
    partitions whose replicas and mirror do not hold the same bytes.
    `expected`: flights in the data. `registered`: the versions of their schema that the registry took, and refused."""

    expected: int
    produced: int
    consumed: int
    mirrored: int
    loaded: int
    missing: int
    duplicated: int
    lowest: float | None
    audited: bool
    seconds: float
    differing: int = 0
    registered: tuple[int, int] = (2, 1)

    @property
    def passed(self) -> bool:
        counts = (self.produced, self.consumed, self.mirrored, self.loaded)
        clean = (self.missing, self.duplicated) == (0, 0) and self.lowest == 1.0 and self.audited
        return clean and self.differing == 0 and self.registered == (2, 1) and counts == (self.expected,) * 4

    def line(self) -> str:
        complete = "unknown" if self.lowest is None else f"{int(self.lowest * 10_000) / 10_000:.4f}"
        return (
            f"demo: produced={self.produced} consumed={self.consumed} mirrored={self.mirrored} loaded={self.loaded} "
            f"missing={self.missing} duplicated={self.duplicated} complete={complete} "
            f"schemas={self.registered[0]} refused={self.registered[1]} seconds={self.seconds:.0f}"
        )


def acknowledged_keys(files: Iterable[Path]) -> Counter[str]:
    """Returns how often each flight was acknowledged."""
    keys: Counter[str] = Counter()
    for file in files:
        keys.update(file.read_text().split())
    return keys


def differences(acknowledged: Counter[str], lake: Counter[str]) -> tuple[int, int]:
    """Returns (missing, duplicated): acknowledged flights that the lake lacks, and flights in the lake beyond the
    acknowledged ones.
    """
    return (acknowledged - lake).total(), (lake - acknowledged).total()
