"""Writes one load's rows as Parquet files: reads, assigns rows to files, writes, and proves that nothing is lost."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession

from klamm.core.client.reader.range_reader import OffsetRange

from ..lake.layout import TEMPORARY, is_data
from ..load.progress import Progress
from ..load.rows import RowFormat
from ..load.spark_writer import Counts, FileFormat, by_range
from ..options import ReadOptions
from ..publishing.interface import LakeError, Publisher
from .chunks import Chunk, ReadRanges
from .files import Windows, WriteFiles, Written, join, spark_metadata
from .tally import Tallies, add

TASK_OFFSETS: Final = 50_000
"""The fewest offsets of a reading task, so that a small load does not start a worker for each partition."""
TASK_BYTES: Final = 8 * 1024 * 1024
"""The fewest bytes of chunks of a writing task, for the same reason."""
_SHRINKS: Final = 3
"""The least number of bytes of chunks per byte of Parquet."""
_CODEC: Final = "spark.sql.parquet.compression.codec"
_CODECS: Final[Mapping[str, str]] = {
    "snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "none": "none", "uncompressed": "none",
}  # fmt: skip
_PUTS: Final = 4
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ReadTasks:
    """The ranges that a load reads: each is a task, or a part of one."""

    options: ReadOptions
    ranges: Sequence[OffsetRange]


@dataclass(frozen=True, slots=True)
class ColumnarJob:
    """Writes loads of one lake. `tasks` splits ranges into parts that are read by one task each."""

    publisher: Publisher
    files: FileFormat
    tasks: Callable[[list[OffsetRange]], ReadTasks]
    window_ms: int
    progress: Progress

    def serves(self, context: SparkContext, format_: RowFormat) -> bool:
        """True if Spark's tasks run on this machine, and no option requires Spark's own writer."""
        if self.files.name != "parquet" or format_.quarantine or not re.match(r"local(\[|$)", context.master or ""):
            return False
        settings = dict(context.getConf().getAll())
        if settings.get(_CODEC, "snappy") not in _CODECS or any(
            ".parquet." in key for key in settings.keys() - {_CODEC}
        ):
            return False
        return not any(_has_void(field.type) for field in format_.columns())

    def write(self, session: SparkSession, path: str, ranges: list[OffsetRange], format_: RowFormat) -> Counts:
        """Writes all rows of the ranges below `path`, and counts them from the files. Raises `LakeError` if the files
        do not hold exactly the rows that were read."""
        tasks = self.tasks(ranges)
        context = session.sparkContext
        with _scratch() as scratch:
            with self.progress.watch(session, f"read {format_.topic}"):
                chunks, read = self._read(context, tasks, format_, scratch)
            with self.progress.watch(session, f"write {format_.topic}"):
                written = self._write(context, chunks, path, scratch, spark_metadata(format_.columns()))
        return self._prove(path, ranges, read, written)

    def _read(
        self, context: SparkContext, tasks: ReadTasks, format_: RowFormat, scratch: Path
    ) -> tuple[list[Chunk], Tallies]:
        chunks: list[Chunk] = []
        tallies: Tallies = {}
        sizes = {number: range_.size for number, range_ in enumerate(tasks.ranges)}
        bins = packed(sizes, min(len(sizes), -(-sum(sizes.values()) // TASK_OFFSETS)))
        folder = scratch / "chunks"
        folder.mkdir()
        for read in _run(context, bins, ReadRanges(tasks.options, tasks.ranges, format_, str(folder))):
            chunks += read.chunks
            add(tallies, read.tallies)
        return chunks, tallies

    def _write(
        self, context: SparkContext, chunks: list[Chunk], path: str, scratch: Path, metadata: Mapping[str, str]
    ) -> list[Written]:
        pieces = pieces_of(chunks, self.files.target_size)
        sizes = {number: sum(chunk.size for chunk in piece) for number, piece in enumerate(pieces)}
        most = min(len(pieces), 2 * context.defaultParallelism, -(-sum(sizes.values()) // TASK_BYTES))
        here = self.publisher.folder(path)
        # Not their final place: a task that is run again may leave a file that is not in the result.
        folder = scratch / "files" if here is None else here / TEMPORARY
        codec = _CODECS[context.getConf().get(_CODEC, "snappy") or ""]
        writer = WriteFiles(str(folder), codec, self.files.target_size, self.window_ms, metadata)
        bins = [[pieces[number] for number in numbers] for numbers in packed(sizes, most)]
        written = list(_run(context, bins, writer))

        def give(file: Written) -> None:
            if here is None:
                self.publisher.put(folder / file.name, f"{path}/{file.name}")
                return
            (here / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.name).rename(here / file.name)

        with ThreadPoolExecutor(_PUTS) as pool:
            for _ in pool.map(give, written):
                pass
        self.publisher.remove(f"{path}/{TEMPORARY}")
        return written

    def _prove(self, path: str, ranges: list[OffsetRange], read: Tallies, written: list[Written]) -> Counts:
        there = {name: size for name, size in self.publisher.files(path) if is_data(name)}
        if there != {file.name: file.size for file in written}:
            raise LakeError(f"{path} holds other files than those that were written")
        found: Tallies = {}
        windows: Windows = {}
        for file in written:
            add(found, file.tallies)
            join(windows, file.windows)
        if found != read:
            raise LakeError(f"{path} does not hold exactly the rows that were read")
        counts, first = by_range(map(asdict, windows.values()), ranges, path)
        return Counts(counts, first, [])


def packed(sizes: Mapping[int, int], bins: int) -> list[list[int]]:
    """Distributes the keys over `bins` bins of about the same size, the largest keys first; no bin is empty."""
    found: list[list[int]] = [[] for _ in range(min(bins, len(sizes)))]
    full = [0] * len(found)
    for number in sorted(sizes, key=lambda number: -sizes[number]):
        place = full.index(min(full))
        found[place].append(number)
        full[place] += sizes[number]
    return found


def pieces_of(chunks: Iterable[Chunk], target_size: int) -> list[tuple[Chunk, ...]]:
    """Groups the chunks by directory, in the order of partition and offset; a large directory is split into parts that
    are written concurrently."""
    directories: dict[str, list[Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.directory, chunk.partition, chunk.first)):
        directories.setdefault(chunk.directory, []).append(chunk)
    pieces: list[tuple[Chunk, ...]] = []
    for found in directories.values():
        piece: list[Chunk] = []
        for chunk in found:
            piece.append(chunk)
            if sum(c.size for c in piece) >= target_size * _SHRINKS:
                pieces.append(tuple(piece))
                piece = []
        if piece:
            pieces.append(tuple(piece))
    return pieces


def _run(context: SparkContext, bins: list[list[Any]], work: Callable[[Iterable[Any]], Iterator[Item]]) -> list[Item]:
    """Runs one task per bin."""
    if not bins:
        return []

    def task(given: Iterable[list[Any]]) -> Iterator[Item]:
        for items in given:
            yield from work(items)

    return context.parallelize(bins, len(bins)).mapPartitions(task).collect()


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder in Spark's local directory, which Spark removes when it ends, even if this process is
    killed."""
    folder = Path(tempfile.mkdtemp(prefix="load-", dir=Path(SparkFiles.getRootDirectory()).parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_void(kind: pa.DataType) -> bool:
    """Returns True if a type has a column of nulls only, which Parquet does not support; Spark then raises the
    error.
    """
    if pa.types.is_null(kind):
        return True
    return any(_has_void(kind.field(n).type) for n in range(kind.num_fields))
