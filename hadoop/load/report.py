"""The report of a run of `klamm load`: a line for each load, or one JSON object for the run (`--json`).

The object's fields are part of the interface; fields may be added. Offsets include `from` and exclude `to`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from klamm.core.client.reader.range_reader import OffsetRange

if TYPE_CHECKING:  # its imports take a second
    from .job import LoadResult


class Status(StrEnum):
    """The status of a topic or of a run. A run has failed if one topic has, and is empty if all are. A topic is
    postponed if the run's time was used up before it.
    """

    LOADED = "loaded"
    EMPTY = "empty"
    POSTPONED = "postponed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic in one run: its loads in their order, and the line that says why it failed. `postponed`: the run's time
    was used up before it.
    """

    topic: str
    loads: tuple[LoadResult, ...]
    seconds: float
    error: str | None = None
    postponed: bool = False

    @property
    def status(self) -> Status:
        if self.error is not None:
            return Status.FAILED
        if self.postponed:
            return Status.POSTPONED
        return Status.LOADED if self.loads else Status.EMPTY

    def lines(self) -> list[str]:
        """Returns for each load `load topic=flights load=3 rows=… files=… bytes=… offsets=0:10-20,1:5-9 seconds=…`."""
        if self.status is Status.EMPTY:
            return [f"load topic={self.topic} rows=0: nothing new"]
        if self.postponed:
            return [f"load topic={self.topic} rows=0: the time was over, the next run begins with it"]
        return [_line(load) for load in self.loads]

    def to_json(self) -> dict[str, Any]:
        loads = self.loads
        return {
            "topic": self.topic,
            "status": self.status.value,
            "load": loads[-1].load if loads else None,
            "loads": len(loads),
            "records": sum(load.rows for load in loads),
            "bytes": sum(load.bytes for load in loads),
            "files": sum(load.files for load in loads),
            "quarantined": sum(load.quarantined for load in loads),
            "seconds": round(self.seconds, 3),
            "partitions": _spans_json(_joined(load.ranges for load in loads)),
            "gap": _spans_json(span for load in loads for span in load.lost),
            "more": self.postponed or bool(loads and loads[-1].left),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class RunReport:
    """All topics of one run. `started` since the epoch; `error`: why no topic could be loaded."""

    sink: str
    started: float
    seconds: float
    topics: tuple[TopicReport, ...]
    error: str | None = None

    @property
    def status(self) -> Status:
        found = {topic.status for topic in self.topics}
        if self.error is not None or Status.FAILED in found:
            return Status.FAILED
        return next((s for s in (Status.LOADED, Status.POSTPONED) if s in found), Status.EMPTY)

    def failure(self) -> str | None:
        """One line about the failures; None when no topic failed."""
        if self.error is not None:
            return self.error
        failed = [topic.topic for topic in self.topics if topic.status is Status.FAILED]
        return f"{len(failed)} of {len(self.topics)} topics not loaded: {', '.join(failed)}" if failed else None

    def to_json(self) -> str:
        started = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {
                "sink": self.sink,
                "status": self.status.value,
                "started": started,
                "seconds": round(self.seconds, 3),
                "error": self.failure(),
                "topics": [topic.to_json() for topic in self.topics],
            }
        )


def _line(load: LoadResult) -> str:
    lost = f" lost={_spans(load.lost)}" if load.lost else ""
    quarantined = f" quarantined={load.quarantined}" if load.quarantined else ""
    left = f" left={load.left}" if load.left else ""
    return (
        f"load topic={load.topic} load={load.load} rows={load.rows} files={load.files} "
        f"bytes={load.bytes} offsets={_spans(load.ranges)}{lost}{quarantined}{left} seconds={load.seconds:.1f}"
    )


def _spans(ranges: Iterable[OffsetRange]) -> str:
    return ",".join(f"{r.partition.partition}:{r.start}-{r.end}" for r in ranges)


def _spans_json(ranges: Iterable[OffsetRange]) -> list[dict[str, int]]:
    return [{"partition": r.partition.partition, "from": r.start, "to": r.end} for r in ranges]


def _joined(loads: Iterable[Sequence[OffsetRange]]) -> list[OffsetRange]:
    """Returns one range per partition, from the first load's start to the last one's end: ranges of successive loads
    tile.
    """
    found: dict[int, OffsetRange] = {}
    for ranges in loads:
        for r in ranges:
            first = found.get(r.partition.partition, r)
            found[r.partition.partition] = OffsetRange(r.partition, first.start, r.end)
    return [found[number] for number in sorted(found)]
