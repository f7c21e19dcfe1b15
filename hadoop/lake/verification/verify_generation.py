"""The proof, from the files, that a generation contains the rows of its loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...columnar.tally import OffsetTally, Tallies, add, mixed
from ..contents import LOAD, NONE, FileRows, Longs
from ..directories import PublishedDirectory, absent, examples
from ..files import LakeFiles
from ..generations.generation import Generation, MergedLoad, read_generation
from ..layout import GENERATION, TopicLayout
from ..local_time import local_time
from .findings import Bounds, Finding


def row_tallies(rows: FileRows) -> Tallies:
    """Returns by partition the number of rows, and the sum of a hash of each row's offset, timestamp and size.

    A missing, duplicate or different row changes the sum, except in one case of 2^64. Memory does not grow with the
    rows.
    """
    hashed = mixed(rows.offset ^ mixed(rows.timestamp ^ mixed(rows.size).view(np.int64)).view(np.int64))
    found, index = np.unique(rows.partition, return_inverse=True)
    counts = np.bincount(index, minlength=len(found))
    sums = np.zeros(len(found), np.uint64)
    np.add.at(sums, index, hashed)
    parts = zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True)
    return {partition: OffsetTally(count, total) for partition, count, total in parts}


def _local(rows: FileRows, zones: Mapping[int, str]) -> Longs:
    """Returns the timestamps as local times of each row's load."""
    shown = rows.timestamp.copy()
    for timezone in {*zones.values()} - {"UTC"}:
        of_zone = np.isin(rows.load, [load for load, zone in zones.items() if zone == timezone])
        shown[of_zone] = local_time(rows.timestamp[of_zone], timezone)
    return shown


@dataclass
class LoadRows:
    """The rows of a load's files for readers, by partition. `sound`: the load has no finding; `digest` is that of its
    manifest, None if that cannot be read.
    """

    tallies: Tallies = field(default_factory=dict)
    sound: bool = False
    digest: str | None = None


class GenerationCheck:
    """Compares one generation's directory with its manifest, and with `loads`, by number, as they were found."""

    def __init__(
        self,
        files: LakeFiles,
        layout: TopicLayout,
        number: int,
        bounds: Bounds | None,
        loads: Mapping[int, LoadRows],
    ) -> None:
        self._files = files
        self._layout = layout
        self._number = number
        self._loads = loads
        self._found: list[Finding] = []
        self._directory = PublishedDirectory(
            files, layout.generation(number), "generation", GENERATION, bounds, self._find
        )

    def findings(self) -> list[Finding]:
        data = self._directory.data_files(())
        generation = self._manifest()
        self._directory.check_owner(None if generation is None else generation.job_id)
        rows: dict[int, Tallies] = {}
        whole = True
        for name in data:
            whole &= self._read(name, rows, generation)
        if generation is not None:
            whole &= self._same_files(generation, data)
            self._same_loads(generation)
            if whole:  # otherwise each load would be reported because of one file
                self._same_rows(generation, rows)
        return self._found

    def _find(self, kind: str, text: str) -> None:
        self._found.append(Finding(self._layout.topic, None, kind, text, self._number))

    def _manifest(self) -> Generation | None:
        generation = self._directory.read(
            GENERATION, lambda _: read_generation(self._files, self._layout, self._number)
        )
        if generation is not None and (generation.topic, generation.generation) != (self._layout.topic, self._number):
            self._find("history", f"{GENERATION} is of generation {generation.generation} of {generation.topic}")
        return generation

    def _read(self, name: str, tallies: dict[int, Tallies], generation: Generation | None) -> bool:
        """Reads a file into `tallies`, by load; returns True if it could be read."""
        zones = {merged.load: merged.timezone for merged in (generation.loads if generation else ())}
        rows = self._directory.rows(name, LOAD, lambda rows: _local(rows, zones))
        if rows is None:
            return False
        unknown = (rows.load == NONE) | (rows.partition == NONE)
        if unknown.any():
            named = examples(rows.partition[unknown], rows.offset[unknown])
            self._find("rows", f"{name}: {int(unknown.sum())} rows have no load or no partition: {named}")
            rows = rows.where(~unknown)
        for load in np.unique(rows.load).tolist():
            add(tallies.setdefault(load, {}), row_tallies(rows.where(rows.load == load)))
        return True

    def _same_files(self, generation: Generation, data: Mapping[str, int]) -> bool:
        """Returns True if exactly the files that the manifest names exist, with their sizes."""
        named = {file.name: file.bytes for file in generation.files}
        for name in sorted(named.keys() - data.keys()):
            self._find("files", f"{name} is missing")
        for name in sorted(data.keys() - named.keys()):
            self._find("files", f"{name} is not in {GENERATION}")
        for name in sorted(named.keys() & data.keys()):
            if named[name] != data[name]:
                self._find("files", f"{name} has {data[name]} bytes, {GENERATION} says {named[name]}")
        return named.keys() == data.keys()

    def _same_loads(self, generation: Generation) -> None:
        numbers = [merged.load for merged in generation.loads]
        for first, last in absent(numbers, generation.last):
            missing = f"load {first} is" if first == last else f"the loads {first} to {last} are"
            self._find("numbers", f"{missing} missing in it; it holds loads up to {generation.last}")
        if len(set(numbers)) < len(numbers) or numbers != sorted(numbers):
            self._find("numbers", f"its loads are {', '.join(map(str, numbers))}: one is a duplicate, or out of order")
        for merged in generation.loads:
            load = self._loads.get(merged.load)
            if load is None:
                self._find("history", f"it was made from a load {merged.load}, which does not exist")
            elif load.digest is not None and load.digest != merged.digest:
                self._find("history", f"it was made from another load {merged.load} than the present one")

    def _same_rows(self, generation: Generation, rows: Mapping[int, Tallies]) -> None:
        total = sum(count for merged in generation.loads for count in merged.rows.values())
        if total != generation.rows:
            self._find("counts", f"{GENERATION} says {generation.rows} rows, and {total} by load")
        for number in sorted(rows.keys() - {merged.load for merged in generation.loads}):
            count = sum(tally.count for tally in rows[number].values())
            self._find("rows", f"{count} rows are of load {number}, which is not one of its loads")
        for merged in generation.loads:
            for text in self._differences(merged, rows.get(merged.load, {})):
                self._find("rows", text)

    def _differences(self, merged: MergedLoad, tallies: Tallies) -> Iterator[str]:
        """Yields differences of a damaged load from the manifest only."""
        load = self._loads.get(merged.load)
        sound = load is not None and load.sound and load.digest == merged.digest
        theirs = load.tallies if load is not None and sound else {}
        for partition in sorted({*tallies, *merged.rows, *theirs}):
            mine, loaded = (found.get(partition, OffsetTally()) for found in (tallies, theirs))
            here, said = mine.count, merged.rows.get(partition, 0)
            if here != said:
                yield f"{here} rows of load {merged.load}, partition {partition}, {GENERATION} says {said}"
            elif sound and mine != loaded:
                yield (
                    f"{here} rows of load {merged.load}, partition {partition}, the load has {loaded.count}"
                    if here != loaded.count
                    else f"the {here} rows of load {merged.load}, partition {partition} differ from those of the load"
                )
