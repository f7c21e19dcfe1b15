"""Loads without Spark: `LoadJob` with all that it publishes and reports, where Arrow replaces Spark's two jobs.

As in a real load, ranges are planned, read and decoded, rows are staged, published, counted in the files and reported
to the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.config.settings import Settings
from klamm.core.interfaces.audit import NO_WINDOW
from klamm.hadoop.lake.config import LakeConfig
from klamm.hadoop.load import job
from klamm.hadoop.load.audit import LoadAuditor
from klamm.hadoop.load.job import LoadJob, LoadSpec
from klamm.hadoop.load.reading import RangeRows
from klamm.hadoop.load.rows import RowFormat
from klamm.hadoop.load.spark_writer import Counts, FileFormat, by_range
from klamm.hadoop.load.topics import ClusterTopics
from klamm.hadoop.options import ReadOptions
from klamm.hadoop.publishing.local import LocalPublisher
from klamm.hadoop.spark.cluster import connect

SINK = "lake"
Spoil = Callable[[pa.Table], pa.Table]
"""Changes a load's rows on their way into the files."""


def as_they_are(rows: pa.Table) -> pa.Table:
    return rows


class ArrowTopics(ClusterTopics):
    """Reads the rows in this process and passes those of each load through `spoil`."""

    def __init__(self, settings: Settings, config: LakeConfig) -> None:
        super().__init__(settings, config, quarantine=False)
        self.spoil: Spoil = as_they_are

    def rows(self, session: Any, ranges: list[OffsetRange], format_: RowFormat) -> Any:
        options = ReadOptions(self.bootstrap, (), False, False)
        numbers = pa.record_batch({"id": pa.array(range(len(ranges)))})
        batches = list(RangeRows(options, ranges, format_)(iter([numbers])))
        return self.spoil(pa.Table.from_batches(batches, format_.schema()))


class _NoSession:
    """Replaces `klamm.hadoop.lake_session.LakeSession`."""

    def __init__(self, *_: object) -> None:
        return

    @contextmanager
    def running(self) -> Iterator[None]:
        yield


@contextmanager
def arrow_loads() -> Iterator[None]:
    """Inside the block every `LoadJob` of this process writes and counts with Arrow."""
    with (
        mock.patch.object(job, "write", _write),
        mock.patch.object(job, "count", _count),
        mock.patch.object(job, "LakeSession", _NoSession),
    ):
        yield


class Lake:
    """One topic's lake below `folder`."""

    def __init__(self, folder: Path, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._root = folder / "lake"
        config = LakeConfig.model_validate({"path": str(self._root), "auto.offset.reset": "earliest"})
        self._topics = ArrowTopics(settings, config)
        audit = settings.make_audit()
        assert audit is not None
        publisher = LocalPublisher()
        self._auditor = LoadAuditor(audit, SINK, lambda: connect(self._topics.bootstrap), publisher)
        files = FileFormat("parquet", ("dt",), 1 << 27)
        spec = LoadSpec(str(self._root), files, SINK, reset="earliest", window_ms=audit.window_ms)
        self.untold = False
        """A published load has not sent its audit event yet."""
        self.said: list[str] = []
        self._job = LoadJob(_no_spark, self._topics, publisher, spec, auditor=self._auditor, warn=self.said.append)

    def load(self, spoil: Spoil | None = None) -> None:
        self._topics.spoil = spoil or as_they_are
        self._job.run(self._topic)
        self.untold = False

    def load_and_die(self) -> None:
        """Publishes a load and sends no audit event: the next load does."""
        with mock.patch.object(self._auditor, "send_missing", return_value=[]):
            self.load()
        self.untold = True

    def rows(self) -> list[tuple[int, int, int]]:
        """Returns (partition, offset, timestamp in ms) of every row of every published file."""
        found: list[tuple[int, int, int]] = []
        for path in sorted((self._root / self._topic).glob("load=*/dt=*/*.parquet")):
            table = pq.read_table(path, partitioning=None, columns=["_partition", "_offset", "_timestamp"])
            millis = table["_timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
            found += zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), millis, strict=True)
        return found

    def close(self) -> None:
        self._topics.close()


def _no_spark() -> Any:
    return None


def _write(rows: pa.Table, path: str, files: FileFormat, quarantine: bool) -> None:
    for day in pc.unique(rows["dt"]).to_pylist():
        folder = Path(path, f"dt={day}")
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.filter(pc.equal(rows["dt"], day)).drop_columns(["dt"]), folder / "part-0.parquet")


def _count(
    session: Any, path: str, files: FileFormat, has_bad: bool, window_ms: int, ranges: Iterable[OffsetRange]
) -> Counts:
    """Counts as `klamm.hadoop.load.spark_writer.count` does: by reading the files back."""
    parts = sorted(Path(path).glob("dt=*/*.parquet"))
    table = ds.dataset([str(part) for part in parts]).to_table() if parts else None
    rows = [] if table is None else _grouped(table, window_ms)
    counts, first = by_range(rows, ranges, path)
    return Counts(counts, first, [])


def _grouped(table: pa.Table, window_ms: int) -> list[dict[str, int]]:
    millis = table["_timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    columns: Sequence[list[int]] = [table[name].to_pylist() for name in ("_partition", "_offset", "_size")]
    for stamp, partition, offset, size in zip(millis, *columns, strict=True):
        window = stamp - stamp % window_ms if stamp >= 0 else NO_WINDOW
        groups.setdefault((partition, window), []).append((offset, size))
    return [
        {
            "partition": partition,
            "window": window,
            "count": len(held),
            "bytes": sum(size for _, size in held),
            "first": min(offset for offset, _ in held),
            "last": max(offset for offset, _ in held),
            "offsets": len({offset for offset, _ in held}),
        }
        for (partition, window), held in groups.items()
    ]
