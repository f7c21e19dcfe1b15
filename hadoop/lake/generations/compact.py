"""Compaction: all loads of a topic merged into larger files, published as a generation in one rename.

    plan      the published loads, which must follow each other without a gap; the number after the newest generation's
    write     their rows below `_staging/<job id>/`, clustered by directory as a load's are
    count     by load and partition, what the loads' files and the written files hold: the same rows with the same
              values, and as many as the loads' manifests say
    publish   `_generation.json`, `_SUCCESS`, then one rename to `_generations/generation=<number>/`

Loads are only read. A generation is made from loads only, never from another generation, so that damage is not
propagated. A crash before the rename leaves nothing visible to readers. Fault points: `compact.planned`,
`compact.written`, `compact.staged`, `compact.published`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from klamm.core.faults import fault_point

from ...lake_session import LakeSession
from ...load.progress import Progress
from ...load.spark_writer import FileFormat, write_clustered
from ...load.staging import Staging, sweep
from ...publishing.interface import LakeError, Publisher
from ..frame import frame
from ..layout import BAD, GENERATION, SUCCESS, TopicLayout, is_data
from ..listing import LoadEntry, loads_of
from ..selection import LOAD, partitioning, parts_of
from ..verification.verify import contradictions
from .generation import (
    DataFile,
    Generation,
    generation_numbers,
    merged_load,
    read_generation,
)

_HINT: Final = "`klamm lake verify` says what is wrong; nothing is published"
_READ_BYTES: Final = 128 * 2**20
_AS_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""A row as text in which all values differ that differ, microseconds included. Spark's hash of the columns
themselves does not accept maps, and ignores a null."""
Held = dict[tuple[int, int], tuple[int, int]]
"""The content by load and partition: the number of rows, and the exclusive or of their hashes."""


@dataclass(frozen=True, slots=True)
class CompactSpec:
    """The lake `root`, the wanted size of files in bytes, staging retention in seconds."""

    root: str
    target_size: int
    staging_retention_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class CompactResult:
    """A published generation, and the number of load files that it replaces."""

    generation: Generation
    merged_files: int
    seconds: float

    def line(self) -> str:
        """`compact topic=flights generation=2 loads=1-40 rows=… files=… bytes=… merged_files=… seconds=…`."""
        made = self.generation
        return (
            f"compact topic={made.topic} generation={made.generation} loads={made.loads[0].load}-{made.last} "
            f"rows={made.rows} files={len(made.files)} bytes={made.size} merged_files={self.merged_files} "
            f"seconds={self.seconds:.1f}"
        )


@dataclass(eq=False)
class CompactJob:
    """Compacts one topic after another of one lake."""

    spark: Callable[[], SparkSession]
    publisher: Publisher
    spec: CompactSpec
    progress: Progress = field(default_factory=Progress)
    check: Callable[[], None] = lambda: None
    now_s: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex

    def __post_init__(self) -> None:
        root, target = self.spec.root, self.spec.target_size
        # The shuffle splits a directory between reading tasks, not within one: no task reads more than a file may have.
        reads = {"spark.sql.files.maxPartitionBytes": str(min(target, _READ_BYTES))}
        self._session = LakeSession(self.spark, self.publisher, root, target, reads)

    def run(self, topic: str) -> CompactResult | None:
        """Merges all loads into one generation; returns None if the newest one contains them already, or there are no
        rows. Raises `LoadConflictError` if another compaction published first.
        """
        started = self.now_s()
        layout = TopicLayout(self.spec.root, topic)
        sweep(self.publisher, layout, self.spec.staging_retention_s)
        # Before the loads: a generation published meanwhile may be newer than the loads that this compaction reads.
        numbers = generation_numbers(self.publisher, layout)
        loads = self._plan(layout)
        if not any(load.readable for load in loads) or (numbers and self._is_held(layout, numbers[-1], loads)):
            return None
        job_id, number = self.new_id(), numbers[-1] + 1 if numbers else 1
        fault_point("compact.planned")
        with Staging(self.publisher, layout, job_id) as staging:
            files, held = self._write(layout, loads, staging.path)
            self.check()
            fault_point("compact.written")
            generation = self._describe(layout, number, job_id, loads, files, held, staging.path)
            self.publisher.write(f"{staging.path}/{GENERATION}", generation.to_bytes())
            self.publisher.write(f"{staging.path}/{SUCCESS}", b"")
            fault_point("compact.staged")
            self.check()  # raises if the user has interrupted: from here on the generation is visible
            staging.publish_generation(number)
            fault_point("compact.published")
        return CompactResult(generation, sum(len(load.readable) for load in loads), self.now_s() - started)

    def _plan(self, layout: TopicLayout) -> list[LoadEntry]:
        """Returns the published loads. Raises `LakeError` unless they are complete and intact."""
        loads = loads_of(self.publisher, layout)
        for index, load in enumerate(loads):
            if load.number != index + 1:
                raise LakeError(f"{layout.load(index + 1)} is missing; {_HINT}")
        found = contradictions(layout.topic, [load.manifest for load in loads])
        if found:
            raise LakeError(f"{layout.base}: {found[0].line()}; {_HINT}")
        return loads

    def _is_held(self, layout: TopicLayout, number: int, loads: Sequence[LoadEntry]) -> bool:
        newest = read_generation(self.publisher, layout, number)
        if newest is None:
            raise LakeError(f"{layout.generation(number)} has no {GENERATION}; {_HINT}")
        return [(m.load, m.digest) for m in newest.loads] == [(load.number, load.digest) for load in loads]

    def _write(self, layout: TopicLayout, loads: Sequence[LoadEntry], path: str) -> tuple[FileFormat, Held]:
        parts = parts_of(layout, loads)
        files = FileFormat(parts[-1].format, partitioning(parts), self.spec.target_size)
        with self._session.running() as session:
            rows = frame(session, parts).drop(*({"dt", "hr"} - {*files.partition_by}))
            with self.progress.watch(session, f"compact {layout.topic}"):
                write_clustered(rows, path, files)
            with self.progress.watch(session, f"count {layout.topic}"):
                written = session.read.schema(rows.schema).format(files.name).load(path)
                held, source = _held(written), _held(rows)
                aside = _set_aside(session, layout, loads)
        for load in loads:
            there = sum(count for (number, _), (count, _) in source.items() if number == load.number)
            there += aside.get(load.number, 0)
            if there != load.manifest.rows:
                raise LakeError(
                    f"{layout.load(load.number)} holds {there} rows, its manifest says {load.manifest.rows}; {_HINT}"
                )
        if held != source:
            number, partition = min(key for key in held.keys() | source.keys() if held.get(key) != source.get(key))
            raise LakeError(
                f"{path}: the written rows of load {number}, partition {partition} differ from those of the load"
            )
        return files, held

    def _describe(
        self,
        layout: TopicLayout,
        number: int,
        job_id: str,
        loads: Sequence[LoadEntry],
        files: FileFormat,
        held: Held,
        path: str,
    ) -> Generation:
        newest = loads[-1].manifest
        rows: dict[int, dict[int, int]] = {}
        for (load_number, partition), (count, _) in sorted(held.items()):
            rows.setdefault(load_number, {})[partition] = count
        return Generation(
            topic=layout.topic,
            topic_id=newest.topic_id,
            cluster_id=newest.cluster_id,
            generation=number,
            job_id=job_id,
            created_ms=int(self.now_s() * 1000),
            format=files.name,
            partition_by=files.partition_by,
            avro_schema=next((s for load in reversed(loads) if (s := load.manifest.avro_schema) is not None), None),
            rows=sum(count for count, _ in held.values()),
            loads=[merged_load(load.manifest, load.digest, rows.get(load.number, {})) for load in loads],
            files=[DataFile(name=name, bytes=size) for name, size in self.publisher.files(path) if is_data(name)],
        )


def _set_aside(session: SparkSession, layout: TopicLayout, loads: Sequence[LoadEntry]) -> Mapping[int, int]:
    """Returns the number of records in `_bad`, by load."""
    formats: dict[str, list[str]] = {}
    for load in loads:
        for name in {*(name for name, _ in load.files)} - {*load.readable}:
            formats.setdefault(name.rpartition(".")[2], []).append(f"{layout.load(load.number)}/{name}")
    found: dict[int, int] = {}
    for format_, names in formats.items():
        rows = session.read.schema("_end_offset LONG").format(format_).load(names)
        number = sf.regexp_extract(sf.input_file_name(), rf"/load=(\d+)/{BAD}/[^/]*$", 1).cast("int")
        for row in rows.where("_end_offset is null").groupBy(number.alias(LOAD)).count().collect():
            found[row[LOAD]] = found.get(row[LOAD], 0) + row["count"]
    return found


def _held(rows: DataFrame) -> Held:
    hashed = sf.xxhash64(sf.to_json(sf.struct("*"), _AS_JSON))
    grouped = rows.groupBy(LOAD, "_partition").agg(sf.count("*").alias("rows"), sf.bit_xor(hashed).alias("hash"))
    return {(row[LOAD], row["_partition"]): (row["rows"], row["hash"]) for row in grouped.collect()}
