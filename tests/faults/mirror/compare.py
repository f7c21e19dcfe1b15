"""Compares a mirror with its source, batch by batch, as both are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from klammtest.history import ReplicaLog
from klammtest.history.replicas import StoredBatch

Range = tuple[int, int]
"""Offsets from the first up to the second, which is not in it."""


def offsets_of(ranges: Iterable[Range]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def below(log: ReplicaLog, promoted_epoch: int) -> list[StoredBatch]:
    """Returns the batches that were copied: those before the first one of the promotion's epoch or a later one."""
    found: list[StoredBatch] = []
    for batch in log.batches:
        if batch.leader_epoch >= promoted_epoch:
            break
        found.append(batch)
    return found


def differences(
    source: Mapping[int, StoredBatch],
    copies: Mapping[int, Sequence[StoredBatch]],
    end: int,
    gaps: Sequence[Range],
    missed: Sequence[Range],
) -> Iterator[tuple[str, str]]:
    """Yields what is wrong as (kind, text).

    `source`: all batches that the source ever committed, by base offset; `copies`: by broker, what a replica of the
    mirror has below `end`; `gaps`: what the link has reported; `missed`: what some replica had not copied when the
    source deleted it. The leader that finds a gap may be behind another replica, which then has records of it, and may
    give them to the first.
    """
    reported, anywhere = offsets_of(gaps), offsets_of(missed)
    for broker, batches in copies.items():
        here = {batch.base: batch for batch in batches}
        for base, batch in here.items():
            if base not in source:
                text = f"the batch at {base} up to {batch.next} of epoch {batch.leader_epoch}"
                yield "not the source's", f"broker {broker}: {text}"
            elif source[base].digest != batch.digest:
                text = f"the batch at {base}: epoch {source[base].leader_epoch}, here {batch.leader_epoch}"
                yield "differs", f"broker {broker}: {text}"
        missing = offsets_of((b.base, b.next) for base, b in source.items() if base not in here and b.next <= end)
        anywhere |= missing
        if missing - reported:
            text = f"{_spans(missing - reported)}, of which no gap is reported (reported: {list(gaps)})"
            yield "missing", f"broker {broker}: {text}"
    if reported - anywhere:
        yield "gap", f"{_spans(reported - anywhere)} reported as a gap, and never missed"


def _spans(offsets: set[int]) -> str:
    """Returns runs of offsets as text, as in "offsets 3 to 7, 9 to 9"."""
    spans: list[list[int]] = []
    for offset in sorted(offsets):
        if spans and offset == spans[-1][1] + 1:
            spans[-1][1] = offset
        else:
            spans.append([offset, offset])
    return "offsets " + ", ".join(f"{first} to {last}" for first, last in spans)
