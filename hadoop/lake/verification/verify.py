"""The proof that a lake holds each offset once, read from its files alone.

Of each topic, in the order of its loads:

- *numbers*: the loads are 1, 2, 3 … without a gap; no load is missing whose counts were sent to the audit.
- *ranges*: a partition's ranges cover all offsets from 0, load after load, without a gap or an overlap. Offsets that
  were deleted before they could be loaded are not a finding: the manifest records them, and they are listed.
- *rows*: every row lies in its load's range of its partition; within a load no offset occurs twice. With *ranges*
  this means: each offset is in the lake at most once. Quarantined records, invalid ones and batches that could not be
  opened count.
- *counts*: the number of rows is that of `_offsets.json`, in `_bad` too, and that of `_audit.json` for each partition
  and window; both were counted when the load was made. With the above this means: each offset that had a record is
  there exactly once.
- *files*: each can be read to its end, none is missing or foreign, and rows are in the directory of their day and hour.
- *history*: one topic id, one cluster, one job for each load; leader epochs do not decrease.

Of each generation: it holds the loads 1 to its last one, as they are now; of each load and partition the same rows as
the load's own files, by their offsets, timestamps and sizes; and exactly the files that its manifest names.

A load or a generation that is published meanwhile is not verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final
from uuid import UUID

import numpy as np

from klamm.core.errors import ConfigError
from klamm.core.interfaces.audit import NO_WINDOW

from ...columnar.tally import add
from ...load.audit import LoadAudit, read_audit
from ...publishing.interface import LakeError, LakeReader, LakeUnavailableError
from ..contents import END_OFFSET, NONE, FileRows, Longs
from ..directories import PublishedDirectory, absent, examples
from ..files import LakeFiles
from ..generations.generation import digest, generation_numbers
from ..layout import (
    AUDIT,
    AUDITED,
    BAD,
    GENERATIONS,
    OFFSETS,
    STAGING,
    TopicLayout,
    generation_number,
    load_number,
)
from ..local_time import local_time
from ..manifest import BatchMark, Manifest, PartitionRange, parse_manifest
from .findings import Bounds, Finding, LostOffsets, TopicProof, window_text
from .verify_generation import GenerationCheck, LoadRows, row_tallies

_BESIDE_LOADS: Final = frozenset({STAGING, AUDITED, GENERATIONS})


def verify_topic(files: LakeFiles, layout: TopicLayout, bounds: Bounds | None = None) -> TopicProof:
    """Reads all loads and generations. Without `bounds` a row in `dt=__invalid__` may have any timestamp.

    Raises `LakeUnavailableError` if the file system does not respond: nothing is proved then.
    """
    proof = TopicProof(layout.topic)
    # Read before the loads are listed: an event is sent after its load is published.
    audited = [int(name) for name in files.names(layout.audited_root) if name.isdigit()]
    # Read before them for the same reason: a generation is published after the loads that it contains.
    generations = generation_numbers(files, layout)
    names = files.names(layout.base)
    if not names:
        raise ConfigError(f"{layout.base}: no topic of a lake found")
    numbers = sorted(n for n in map(load_number, names) if n is not None)
    findings = proof.findings
    for name in names:
        if load_number(name) is None and name not in _BESIDE_LOADS:
            findings.append(Finding(layout.topic, None, "files", f"{layout.base}/{name} does not belong to a load"))
    for number in sorted({*audited} - {*numbers}):
        text = f"{layout.load(number)} is missing, but its counts were sent to the audit"
        findings.append(Finding(layout.topic, number, "numbers", text))
    for first, last in absent([*numbers, *audited], max([0, *numbers, *audited])):
        missing = f"{layout.load(first)} is" if first == last else f"{layout.load(first)} to {layout.load(last)} are"
        findings.append(Finding(layout.topic, first, "numbers", f"{missing} missing"))
    history = _History(layout.topic)
    checked: dict[int, LoadRows] = {}
    for number in numbers:
        load = _Load(files, layout, number, bounds, proof)
        manifest = load.check()
        checked[number] = load.rows
        proof.findings += history.follow(number, manifest)
    for name in files.names(layout.generations_root):
        if generation_number(name) is None:
            text = f"{layout.generations_root}/{name} does not belong to a generation"
            findings.append(Finding(layout.topic, None, "files", text))
    for number in generations:
        found = GenerationCheck(files, layout, number, bounds, checked).findings()
        if not found or number in generation_numbers(files, layout):  # otherwise it was removed while it was read
            proof.generations += 1
            findings += found
    return proof


def contradictions(topic: str, manifests: Iterable[Manifest]) -> list[Finding]:
    """Finds contradictions between loads, from their manifests alone, which are given in the order of the loads."""
    history = _History(topic)
    return [finding for manifest in manifests for finding in history.follow(manifest.load, manifest)]


class _History:
    """Checks from one load to the next that ranges tile, and that topic, cluster and history are the same."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._last: int = 0
        self._ends: dict[int, int] = {}
        self._batches: dict[int, BatchMark] = {}
        self._topic_id: UUID | None = None
        self._cluster_id: str | None = None
        self._jobs: dict[str, int] = {}

    def follow(self, number: int, manifest: Manifest | None) -> list[Finding]:
        """Checks a load against those before it. `manifest` None: it cannot be read; the next loads are then checked
        for overlaps only.
        """
        if manifest is None:
            return []
        follows = number == self._last + 1
        found = [("ranges", text) for text in self._tile(manifest, follows)]
        found += [("history", text) for text in self._same(number, manifest)]
        self._last = number
        return [Finding(self._topic, number, kind, text) for kind, text in found]

    def _tile(self, manifest: Manifest, follows: bool) -> Iterator[str]:
        for partition in sorted(self._ends.keys() - manifest.partitions.keys()):
            yield f"partition {partition} is not in {OFFSETS}; earlier loads have it up to {self._ends[partition]}"
        for partition, span in sorted(manifest.partitions.items()):
            before = self._ends.get(partition, 0)
            if span.start < before:
                yield f"partition {partition}: overlap: begins at offset {span.start}, already loaded up to {before}"
            elif span.start > before and follows:
                yield f"partition {partition}: gap: begins at offset {span.start}, already loaded up to {before}"
            if span.end < span.start or not span.start <= _held_from(span) <= span.end:
                yield f"partition {partition}: {span.start} to {span.end} (lost to {span.lost_to}) is not a valid range"
            self._ends[partition] = max(before, span.end)

    def _same(self, number: int, manifest: Manifest) -> Iterator[str]:
        if manifest.topic_id is not None:
            if self._topic_id not in (None, manifest.topic_id):
                yield f"topic id {manifest.topic_id}, before {self._topic_id}: another topic of the same name"
            self._topic_id = manifest.topic_id
        if self._cluster_id not in (None, manifest.cluster_id):
            yield f"loaded from cluster {manifest.cluster_id!r}, before from {self._cluster_id!r}"
        self._cluster_id = manifest.cluster_id
        if (other := self._jobs.setdefault(manifest.job_id, number)) != number:
            yield f"job {manifest.job_id} also published load {other}"
        for partition, span in sorted(manifest.partitions.items()):
            mark, before = span.batch, self._batches.get(partition)
            if mark is None or not mark.holds:
                continue
            if mark.base_offset is not None and mark.base_offset >= span.end:
                yield f"partition {partition}: its last batch begins at {mark.base_offset}, after its end {span.end}"
            if before is not None and 0 <= mark.leader_epoch < before.leader_epoch:
                yield f"partition {partition}: leader epoch {mark.leader_epoch}, before {before.leader_epoch}"
            self._batches[partition] = mark


class _Load:
    """One load's directory against its manifest and its audit."""

    def __init__(
        self, files: LakeFiles, layout: TopicLayout, number: int, bounds: Bounds | None, proof: TopicProof
    ) -> None:
        self._files = files
        self._layout = layout
        self._number = number
        self._proof = proof
        self._path = layout.load(number)
        self._directory = PublishedDirectory(files, self._path, "load", OFFSETS, bounds, self._find)
        self.rows = LoadRows()
        """Digests of the load, for the generations that contain it."""

    def check(self) -> Manifest | None:
        """Checks the load; returns its manifest, if there is one that can be read."""
        self._proof.loads += 1
        before = len(self._proof.findings)
        data = self._directory.data_files({AUDIT})
        self._proof.files += len(data)
        manifest = self._manifest()
        audit = self._audit()
        self._directory.check_owner(None if manifest is None else manifest.job_id)
        held = _Held(audit.window_ms if audit else None)
        whole = True
        for name in data:
            whole &= self._read(name, manifest, held)
        self._proof.rows += held.records
        self._twice(held)
        if manifest is None:
            return None
        if len(data) != manifest.files:
            self._find("files", f"{len(data)} data files, {OFFSETS} says {manifest.files}")
        self._same_load(manifest, audit)
        for partition, span in sorted(manifest.partitions.items()):
            if _held_from(span) > span.start:
                gap = LostOffsets(self._layout.topic, self._number, partition, span.start, _held_from(span))
                self._proof.gaps.append(gap)
        if whole:
            self._counts(manifest, audit, held)
        self.rows.sound = len(self._proof.findings) == before
        return manifest

    def _find(self, kind: str, text: str) -> None:
        self._proof.findings.append(Finding(self._layout.topic, self._number, kind, text))

    def _manifest(self) -> Manifest | None:
        def parse(data: bytes) -> Manifest:
            manifest = parse_manifest(f"{self._path}/{OFFSETS}", data)
            self.rows.digest = digest(data)
            return manifest

        missing = f"{OFFSETS} is missing: no load wrote this directory, or it lost its manifest"
        return self._directory.read(OFFSETS, parse, missing)

    def _audit(self) -> LoadAudit | None:
        return self._directory.read(AUDIT, lambda _: read_audit(self._files, self._layout, self._number))

    def _same_load(self, manifest: Manifest, audit: LoadAudit | None) -> None:
        for name, said in ((OFFSETS, manifest), (AUDIT, audit)):
            if said is not None and (said.topic, said.load) != (self._layout.topic, self._number):
                self._find("history", f"{name} is of load {said.load} of {said.topic}")
        if audit is not None and audit.job_id != manifest.job_id:
            self._find("history", f"{AUDIT} is of job {audit.job_id}, {OFFSETS} of {manifest.job_id}")
        if audit is not None and audit.topic_id != manifest.topic_id:
            self._find("history", f"{AUDIT} is of topic id {audit.topic_id}, {OFFSETS} of {manifest.topic_id}")

    def _read(self, name: str, manifest: Manifest | None, held: _Held) -> bool:
        """Reads a file into `held`; returns True if it could be read."""
        bad = name.startswith(f"{BAD}/")
        timezone = "UTC" if manifest is None else manifest.timezone
        rows = self._directory.rows(
            name, END_OFFSET if bad else None, lambda rows: local_time(rows.timestamp, timezone)
        )
        if rows is None:
            return False
        if manifest is not None:
            self._in_ranges(name, rows, manifest.partitions)
        if not bad:
            add(self.rows.tallies, row_tallies(rows))
        held.add(rows, aside=bad)
        return True

    def _in_ranges(self, name: str, rows: FileRows, partitions: Mapping[int, PartitionRange]) -> None:
        ends = np.where(rows.end_offset == NONE, rows.offset + 1, rows.end_offset)
        outside = np.ones(rows.number, np.bool_)
        for partition, span in partitions.items():
            inside = (rows.offset >= _held_from(span)) & (ends <= span.end)
            outside &= ~((rows.partition == partition) & inside)
        if outside.any():
            named = examples(rows.partition[outside], rows.offset[outside])
            self._find("rows", f"{name}: {int(outside.sum())} rows are not of this load's offsets: {named}")

    def _twice(self, held: _Held) -> None:
        for partition, offsets in held.offsets():
            again = np.unique(offsets[1:][offsets[1:] == offsets[:-1]])
            if len(again):
                named = examples(np.full(len(again), partition), again)
                self._find("rows", f"{len(again)} offsets occur more than once: {named}")
        for one, other in pairwise(sorted(held.unopened)):
            if one[0] == other[0] and other[1] < one[2]:
                self._find("rows", f"partition {one[0]}: the unopened batch at {other[1]} occurs more than once")
        for partition, start, end in held.unopened:
            inside = [
                o for p, offsets in held.offsets() if p == partition for o in offsets[_between(offsets, start, end)]
            ]
            if inside:
                self._find("rows", f"partition {partition}: offset {inside[0]} lies in a batch that was not opened")

    def _counts(self, manifest: Manifest, audit: LoadAudit | None, held: _Held) -> None:
        if held.records != manifest.rows:
            self._find("counts", f"{held.records} rows, {OFFSETS} says {manifest.rows}")
        if held.aside != manifest.quarantined:
            self._find("counts", f"{held.aside} records in {BAD}, {OFFSETS} says {manifest.quarantined} quarantined")
        said = Counter((b.partition, b.start, b.end) for b in manifest.unopened)
        if Counter(held.unopened) != said:
            self._find(
                "counts", f"{len(held.unopened)} unopened batches in {BAD}, {OFFSETS} names {len(manifest.unopened)}"
            )
        if audit is None:
            return
        for text in _audit_differences(manifest, audit, held):
            self._find("counts", text)


class _Held:
    """The content of a load's files: offsets, counts by partition and window, unopened batches. Of the `records`, those
    `aside` are in `_bad`."""

    def __init__(self, window_ms: int | None) -> None:
        self._window_ms = window_ms
        self._offsets: dict[int, list[Longs]] = {}
        self.records = 0
        self.aside = 0
        self.unopened: list[tuple[int, int, int]] = []
        self.windows: dict[int, dict[int, tuple[int, int]]] = {}

    def add(self, rows: FileRows, *, aside: bool) -> None:
        batches = rows.where(rows.end_offset != NONE)
        self.unopened += [(int(p), int(o), int(e)) for p, o, e in zip(
            batches.partition, batches.offset, batches.end_offset, strict=True)]  # fmt: skip
        records = rows.where(rows.end_offset == NONE)
        self.records += records.number
        self.aside += records.number if aside else 0
        for partition in np.unique(records.partition):
            mine = records.where(records.partition == partition)
            self._offsets.setdefault(int(partition), []).append(mine.offset)
            self._count(int(partition), mine)

    def offsets(self) -> Iterator[tuple[int, Longs]]:
        """Yields (partition, offsets), the offsets sorted, with duplicates."""
        for partition, parts in sorted(self._offsets.items()):
            if len(parts) > 1 or not (parts[0][1:] >= parts[0][:-1]).all():
                parts[:] = [np.sort(np.concatenate(parts))]
            yield partition, parts[0]

    def _count(self, partition: int, rows: FileRows) -> None:
        if self._window_ms is None:
            return
        millis = rows.timestamp // 1000
        starts = np.where(millis >= 0, millis - millis % self._window_ms, NO_WINDOW)
        found, index = np.unique(starts, return_inverse=True)
        counts = np.bincount(index, minlength=len(found))
        sizes = np.zeros(len(found), np.int64)
        np.add.at(sizes, index, np.where(rows.size == NONE, 0, rows.size))
        windows = self.windows.setdefault(partition, {})
        for start, count, size in zip(found, counts, sizes, strict=True):
            before = windows.get(int(start), (0, 0))
            windows[int(start)] = before[0] + int(count), before[1] + int(size)


def _audit_differences(manifest: Manifest, audit: LoadAudit, held: _Held) -> Iterator[str]:
    """Yields differences of `_audit.json` from the ranges of the manifest and from the rows of the files."""
    said = sorted((r.partition, r.start, r.end, r.lost) for r in audit.ranges if r.end > r.start)
    expected = []
    for partition, span in sorted(manifest.partitions.items()):
        kept = _held_from(span)
        expected += [(partition, span.start, kept, True)] if kept > span.start else []
        expected += [(partition, kept, span.end, False)] if span.end > kept else []
    for partition, start, end, lost in sorted({*said} ^ {*expected}):
        which = AUDIT if (partition, start, end, lost) in said else OFFSETS
        yield f"partition {partition}: only {which} has the {'lost ' if lost else ''}range {start} to {end}"
    windows: dict[int, dict[int, tuple[int, int]]] = {}
    for r in audit.ranges:
        of = windows.setdefault(r.partition, {})
        for start, count, size in r.windows:
            before = of.get(start, (0, 0))
            of[start] = before[0] + count, before[1] + size
    for partition in sorted(windows.keys() | held.windows.keys()):
        there, told = held.windows.get(partition, {}), windows.get(partition, {})
        unlike = sorted(start for start in there.keys() | told.keys() if there.get(start) != told.get(start))
        if unlike:
            start = unlike[0]
            more = f" (and {len(unlike) - 1} windows more)" if len(unlike) > 1 else ""
            (rows, size), (rows_told, size_told) = there.get(start, (0, 0)), told.get(start, (0, 0))
            yield (
                f"partition {partition}: {rows} rows of {size} bytes in the window {window_text(start)}, "
                f"{AUDIT} says {rows_told} of {size_told}{more}"
            )


def _held_from(span: PartitionRange) -> int:
    """Returns the first offset that was not lost."""
    return span.start if span.lost_to is None else span.lost_to


def _between(offsets: Longs, start: int, end: int) -> slice:
    low, high = np.searchsorted(offsets, [start, end])
    return slice(int(low), int(high))


def topics_of(files: LakeReader, root: str) -> list[str]:
    """Returns the directories of the lake that contain loads or staging directories."""
    return [name for name in files.names(root) if _is_topic(files, root, name)]


def _is_topic(files: LakeReader, root: str, name: str) -> bool:
    try:
        layout = TopicLayout(root, name)
        below = files.names(layout.base)
    except LakeUnavailableError:
        raise
    except (ConfigError, LakeError):  # its name is not a topic's, or it is a file
        return False
    return any(load_number(n) is not None or n in (STAGING, AUDITED) for n in below)
