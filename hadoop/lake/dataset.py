"""Reads a topic of a lake without Spark and without a JVM: as Arrow, and so into pandas, Polars and DuckDB.

The rows and columns are those of `read_lake`. Batches are read file by file, so memory does not grow with the lake; a
stream that asks for some columns reads only these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc, parquet

from klamm.core.errors import ConfigError

from ..publishing.interface import LakeError
from . import arrow_columns
from .files import LakeFiles, lake_files
from .layout import BAD, NO_VALUE, TopicLayout, is_data, load_number
from .lineage import Chain, sources
from .selection import DIRECTORIES, LOAD, Part, chains_of, select

_BATCH_ROWS: Final = 65_536


def dataset(
    root: str,
    topic: str,
    *,
    generation: int | Literal["latest"] | None = None,
    as_of: int | datetime | None = None,
    webhdfs_url: str | None = None,
) -> LakeDataset:
    """Returns a topic's rows that are published now; the arguments are those of `klamm.hadoop.read_lake`. A path
    without a scheme may be relative to the working directory.

    Raises `ConfigError` when there is nothing to read, and for Avro files, which only Spark reads. The files are read
    when rows are asked for.
    """
    if ":" not in root:
        root = str(Path(root).resolve())
    files, layout = lake_files(root, webhdfs_url), TopicLayout(root, topic)
    selected = select(files, layout, as_of, generation)
    for part in selected.parts:
        if part.format not in ("parquet", "orc"):
            raise ConfigError(f"{part.sample}: {part.format} files are read by klamm.hadoop.read_lake, with Spark")
    return LakeDataset(files, selected.parts, selected.newest)


@dataclass(frozen=True)
class _Source:
    """A part, its chain and the columns of its files without `load`."""

    part: Part
    chain: Chain
    columns: pa.StructType


class LakeDataset:
    """Rows of a lake. It has Arrow's C stream interface: `polars.from_arrow`, `duckdb.from_arrow` and `pyarrow.table`
    take it, or the reader."""

    def __init__(self, files: LakeFiles, parts: Sequence[Part], newest: int | None) -> None:
        self._files = files
        self._newest = newest
        known = [self._columns(part) for part in parts]
        self._sources = [_Source(*each) for each in zip(parts, chains_of(parts), known, strict=True)]
        backwards = self._sources[::-1]
        self._type = arrow_columns.merged([s.columns for s in backwards], [s.chain for s in backwards])
        hours = any(part.partition_by == DIRECTORIES for part in parts)
        places = [pa.field(LOAD, pa.int32()), *(pa.field(d, pa.string()) for d in DIRECTORIES[: 1 + hours])]
        self.schema: pa.Schema = pa.schema([*self._type, *places])

    def to_reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Returns a stream of all rows, or of some `columns`. Raises `ConfigError` for a column that does not exist;
        reading raises `LakeError` if a file is missing or damaged."""
        for name in columns or ():
            if name not in self.schema.names:
                raise ConfigError(f"there is no column {name!r} (there are: {', '.join(self.schema.names)})")
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(wanted, self._batches(wanted))

    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows in memory."""
        return self.to_reader(columns).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Returns a pandas DataFrame."""
        return self.to_table(columns).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        target = pa.struct([field for field in self._type if field.name in wanted.names])
        for source in self._sources:
            found = sources([f.name for f in target], [f.name for f in source.columns], source.chain)
            mine = pa.struct([f for f in source.columns if f.name in {s.name for s in found.values()}])
            for path, places in self._paths(source.part):
                for batch in self._read(path, [f.name for f in mine], numbered=LOAD not in places):
                    rows = arrow_columns.aligned(_rows(batch, mine), target, source.chain)
                    yield self._placed(rows, target, batch, places, wanted)

    def _placed(
        self,
        rows: pa.Array,
        target: pa.StructType,
        batch: pa.RecordBatch,
        places: Mapping[str, str | int | None],
        wanted: pa.Schema,
    ) -> pa.RecordBatch:
        columns = dict(zip((f.name for f in target), rows.flatten(), strict=True))
        if LOAD not in places:
            columns[LOAD] = batch.column(LOAD).cast(pa.int32())
        for name in (LOAD, *DIRECTORIES):
            if name not in columns and name in wanted.names:
                columns[name] = pa.repeat(pa.scalar(places.get(name), wanted.field(name).type), batch.num_rows)
        made = pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)
        if self._newest is None or LOAD in places:
            return made
        return made.filter(pc.less_equal(columns[LOAD], self._newest))

    def _paths(self, part: Part) -> Iterator[tuple[str, dict[str, str | int | None]]]:
        """Yields each file with the values of its directories, and the number of its load unless it has that column."""
        names = [path.removeprefix(f"{part.path}/") for path in part.files] or [
            name for name, _ in self._files.files(part.path) if is_data(name) and not name.startswith(f"{BAD}/")
        ]
        for name in names:
            places: dict[str, str | int | None] = {}
            for directory in name.split("/")[:-1]:
                key, _, value = directory.partition("=")
                places[key] = None if value == NO_VALUE else value
            if not part.files:
                places[LOAD] = load_number(part.path.rpartition("/")[2])
            yield f"{part.path}/{name}", places

    def _columns(self, part: Part) -> pa.StructType:
        with self._files.open(part.sample) as file:
            schema = parquet.ParquetFile(file).schema_arrow if part.format == "parquet" else orc.ORCFile(file).schema
        return pa.struct([pa.field(f.name, arrow_columns.plain(f.type)) for f in schema if f.name != LOAD])

    def _read(self, path: str, columns: list[str], *, numbered: bool) -> Iterator[pa.RecordBatch]:
        wanted = [*columns, LOAD] if numbered else columns
        try:
            with self._files.open(path) as file:
                if path.endswith(".parquet"):
                    opened = parquet.ParquetFile(file, page_checksum_verification=True)
                    yield from opened.iter_batches(batch_size=_BATCH_ROWS, columns=wanted)
                else:
                    stripes = orc.ORCFile(file)
                    for stripe in range(stripes.nstripes):
                        yield stripes.read_stripe(stripe, columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise LakeError(f"{path} cannot be read: {str(error).strip().splitlines()[0]}") from error


def _rows(batch: pa.RecordBatch, mine: pa.StructType) -> pa.Array:
    """Returns a batch of a file as rows of these columns, in their plain types."""
    columns = [batch.column(f.name).cast(f.type) for f in mine]
    if not columns:
        return pa.array([{}] * batch.num_rows, mine)
    return pa.StructArray.from_arrays(columns, fields=list(mine))
