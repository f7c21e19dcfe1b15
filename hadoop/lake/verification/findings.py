"""The results of `klamm lake verify` for a topic: damage, recorded gaps, and what was read."""

from __future__ import annotations

from dataclasses import dataclass, field

from klamm.core.interfaces.audit import NO_WINDOW
from klamm.plugins.audit.windows import iso


@dataclass(frozen=True, slots=True)
class Bounds:
    """Timestamps in microseconds; records outside [`min_us`, `max_us`] belong to `dt=__invalid__`."""

    min_us: int
    max_us: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage. `kind`: numbers, ranges, rows, counts, files or history; without `load` and `generation` it concerns the
    topic."""

    topic: str
    load: int | None
    kind: str
    text: str
    generation: int | None = None

    def line(self) -> str:
        """Returns a line such as `damage topic=flights load=3 kind=rows: …`."""
        where = "" if self.load is None else f" load={self.load}"
        where += "" if self.generation is None else f" generation={self.generation}"
        return f"damage topic={self.topic}{where} kind={self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets [start, end) that were deleted before they could be loaded, as the manifest recorded."""

    topic: str
    load: int
    partition: int
    start: int
    end: int

    def line(self) -> str:
        return f"gap topic={self.topic} load={self.load} partition={self.partition} offsets={self.start}-{self.end}"


@dataclass
class TopicProof:
    """The verification of a topic: what was read, and the findings. `files` and `rows` are those of the loads."""

    topic: str
    loads: int = 0
    generations: int = 0
    files: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    gaps: list[LostOffsets] = field(default_factory=list)

    def line(self) -> str:
        state = "intact" if not self.findings else "damaged"
        return (
            f"{state} topic={self.topic} loads={self.loads} files={self.files} rows={self.rows} "
            f"generations={self.generations} gaps={len(self.gaps)} findings={len(self.findings)}"
        )


def window_text(start_ms: int) -> str:
    """Returns the start of a window of the audit, as `2013-01-31T23:50Z`."""
    return "no timestamp" if start_ms == NO_WINDOW else iso(start_ms)
